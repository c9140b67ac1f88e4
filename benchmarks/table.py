"""What every benchmark here prints: where it ran, and one table."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from isornn.modes import denormal_mode, processor

RESULTS = Path(__file__).parent / "results"


def heading(title: str) -> None:
    """The benchmark's name, the device, the number of threads, and what they do with denormal numbers: 0 from here on.

    Networks from torch's default start are slow with them on many CPUs, and a comparison of code would compare starts.
    """
    torch.set_flush_denormal(True)
    print(f"{title}\n{device()}\n")


def device() -> str:
    """Processor, number of threads, torch's version, denormal numbers."""
    threads = torch.get_num_threads()
    cpu = f"{processor()} ({os.cpu_count()} cores), {threads} threads"
    return f"{cpu}, torch {torch.__version__}, denormal numbers {denormal_mode()}"


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
