"""Standard data files and synthetic tasks as sequences."""

from isornn.tasks.adding import Adding
from isornn.tasks.cifar import load_cifar
from isornn.tasks.concatenated import ConcatenatedDigits
from isornn.tasks.copying import Copy
from isornn.tasks.data_files import DataError, DataWarning, data_folder
from isornn.tasks.digits import load_digits
from isornn.tasks.image_set import ImageSet
from isornn.tasks.loading import NO_TARGET, loader, one_pass
from isornn.tasks.noise_padded import NoisePadded, batches, held_out, noise_padded
from isornn.tasks.repeated_pixels import RepeatedPixels
from isornn.tasks.running_text import Characters, RunningText, Words
from isornn.tasks.sentences import Sentences
from isornn.tasks.sequential import SequentialImages
from isornn.tasks.task import Part, Task
from isornn.tasks.text import Text, load_book, load_ptb
from isornn.tasks.ucr import Series, SeriesSet, load_series
from isornn.tasks.unrolled_colour import UnrolledColour

__all__ = [
    "NO_TARGET",
    "Adding",
    "Characters",
    "ConcatenatedDigits",
    "Copy",
    "DataError",
    "DataWarning",
    "ImageSet",
    "NoisePadded",
    "Part",
    "RepeatedPixels",
    "RunningText",
    "Sentences",
    "SequentialImages",
    "Series",
    "SeriesSet",
    "Task",
    "Text",
    "UnrolledColour",
    "Words",
    "batches",
    "data_folder",
    "held_out",
    "load_book",
    "load_cifar",
    "load_digits",
    "load_ptb",
    "load_series",
    "loader",
    "noise_padded",
    "one_pass",
]
