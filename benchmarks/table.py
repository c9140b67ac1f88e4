"""What every benchmark here prints: where it ran, and one table."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def heading(title: str) -> None:
    """The benchmark's name, the device and the number of threads."""
    print(f"{title}\n{device()}\n")


def device() -> str:
    """Processor, number of threads, torch's version."""
    return f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else platform.processor() or platform.machine()


def show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their columns."""
    cells = [list(columns), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(columns))]
    for row in cells:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    print()


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def median_seconds(what: Callable[[], object], runs: int) -> float:
    """The median wall time of several runs."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        what()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def claim(text: str, holds: bool | None) -> None:
    """Print what is claimed and whether the measurement says so; None: it cannot tell."""
    print(f"{ {True: 'holds', False: 'does NOT hold', None: 'cannot tell'}[holds] }: {text}")
