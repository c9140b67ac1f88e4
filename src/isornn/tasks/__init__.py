"""Standard data files and synthetic tasks as sequences."""

from isornn.tasks.adding import Adding
from isornn.tasks.copying import Copy
from isornn.tasks.digits import DataError, Digits, load_digits
from isornn.tasks.loading import NO_TARGET, loader, one_pass
from isornn.tasks.noise_padded import batches, held_out, noise_padded
from isornn.tasks.task import Task

__all__ = [
    "NO_TARGET",
    "Adding",
    "Copy",
    "DataError",
    "Digits",
    "Task",
    "batches",
    "held_out",
    "load_digits",
    "loader",
    "noise_padded",
    "one_pass",
]
