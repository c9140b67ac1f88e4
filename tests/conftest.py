"""One thread per worker, and property tests that are the same everywhere."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("ISORNN_DATA", None)  # tests know the digits that come with the package

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("everywhere", deadline=None, derandomize=True)
settings.load_profile("everywhere")
