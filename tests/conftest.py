"""One thread per worker, property tests that are the same everywhere, and a browser for those who ask for one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some virtual machines name AMX and refuse its instructions: oneDNN then fails on bfloat16, and on LSTMs after that.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.pop("ISORNN_DATA", None)  # tests know the digits that come with the package

import pytest
import torch
from hypothesis import settings

# Shells give commands in the background a Ctrl-C that is ignored, and children inherit it; tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
settings.register_profile("everywhere", deadline=None, derandomize=True)
settings.load_profile("everywhere")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Headless Chromium."""
    from chromium import started

    with started(tmp_path / "profile") as found:
        yield found
