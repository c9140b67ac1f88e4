"""Training loops."""

from isornn.training.loop import LastOutput, NonFiniteLoss, accuracy, train

__all__ = ["LastOutput", "NonFiniteLoss", "accuracy", "train"]
