"""What figure 1 and the top row of figure 4 share: the task, and the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import Bench, Measured

SMALL: Mapping[str, Any] = {
    "repeats": 5,
    "inputs": 112,
    "held_out": 300,
    "hidden": 64,
    "batch": 32,
    "updates": 600,
    "validate_every": 100,
    "rates": [3e-3, 1e-2, 1e-1],
    "clip": 1.0,
    "seeds": 3,
}
MEDIUM: Mapping[str, Any] = {
    "sizes": [1, 2, 3, 4, 6],
    "repeats": 10,
    "inputs": 112,
    "held_out": 1000,
    "hidden": 64,
    **two.MEDIUM,
}
PAPER: Mapping[str, Any] = {
    "repeats": 10,
    "inputs": 112,
    "held_out": 10_000,
    "hidden": 600,
    "batch": 128,
    "updates": 8000,
    "validate_every": 500,
    "rates": two.RATES,
    "clip": 1.0,
    "seeds": 3,
}
CHOICES = (
    f"{two.CHOICES} The numbers of digits are unsaid. At scale small pixels are repeated 5 times, not 10: 35 steps a "
    "digit of MNIST."
)


def measure(bench: Bench) -> Measured:
    """Accuracy over updates for each number of digits; sizes are these.

    Both figures keep their runs in one folder: what one of them has trained, the other need not.
    """
    shared = replace(bench, folder=bench.folder.with_name("gilboa-concatenated"))
    return two.measure(shared, _task, lambda digits: 2.0**-digits)


def _task(settings: Mapping[str, Any], digits: int) -> dict[str, Any]:
    options = {name: settings[name] for name in ("repeats", "inputs", "held_out")}
    return {"name": "concatenated_digits", "digits": digits, **options}
