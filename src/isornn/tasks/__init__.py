"""Standard data files and synthetic tasks as sequences."""

from isornn.tasks.adding import Adding
from isornn.tasks.copying import Copy
from isornn.tasks.data_files import DataError, DataWarning, data_folder
from isornn.tasks.digits import load_digits
from isornn.tasks.image_set import ImageSet
from isornn.tasks.loading import NO_TARGET, loader, one_pass
from isornn.tasks.noise_padded import batches, held_out, noise_padded
from isornn.tasks.task import Task

__all__ = [
    "NO_TARGET",
    "Adding",
    "Copy",
    "DataError",
    "DataWarning",
    "ImageSet",
    "Task",
    "batches",
    "data_folder",
    "held_out",
    "load_digits",
    "loader",
    "noise_padded",
    "one_pass",
]
