"""Standard data files and synthetic tasks as sequences."""

from isornn.tasks.digits import DataError, Digits, load_digits
from isornn.tasks.noise_padded import batches, held_out, noise_padded

__all__ = ["DataError", "Digits", "batches", "held_out", "load_digits", "noise_padded"]
