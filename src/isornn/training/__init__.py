"""Training: one loop, and runs from configuration files, each in its folder, which resume after an interrupt."""

from isornn.training.configuration import Configuration
from isornn.training.evaluation import evaluate
from isornn.training.fields import ConfigurationError
from isornn.training.finite import NonFiniteLoss
from isornn.training.loop import State, train
from isornn.training.model import SequenceModel
from isornn.training.record import RunRecord
from isornn.training.run import run

__all__ = [
    "Configuration",
    "ConfigurationError",
    "NonFiniteLoss",
    "RunRecord",
    "SequenceModel",
    "State",
    "evaluate",
    "run",
    "train",
]
