"""What every start is given: the same tasks, modules, rates, seeds and budgets.

All runs: 64 units, batches of 32, Adam at a constant rate, gradient norm clipped at 1. A start is asked to bridge the
task's whole sequence. Thresholds and budgets were set before starts were compared, by what a network that has begun to
solve the task shows; copying's after pilots of `critical_`, which did not get below half of the loss without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from isornn import critical
from isornn.cells import GRU, LSTM, Cell

UNITS, BATCH, CLIP, HELD_OUT = 64, 32, 1.0, 256
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = (0, 1, 2)
VALIDATIONS = 50  # of a whole budget

Fields = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A task, how long it may take, and when it counts as learned.

    Args:
        task: of a configuration.
        length: T, the steps of a sequence.
        budget: updates.
        metric: of the validation; ``threshold`` is what it has to reach.
        mnist: whether the images are MNIST's; the package's digits if not.
    """

    task: Fields
    length: int
    budget: int
    metric: Literal["accuracy", "loss"]
    threshold: float
    mnist: bool = False

    def reached(self, value: float) -> bool:
        return value >= self.threshold if self.metric == "accuracy" else value <= self.threshold


def _padded(length: int, budget: int) -> Goal:
    task = {"name": "noise_padded", "length": length, "pooled": True, "held_out": HELD_OUT}
    return Goal(task, length, budget, "accuracy", 0.7, mnist=True)


GOALS: Mapping[str, Goal] = {
    "padded-200": _padded(200, 400),
    "padded-500": _padded(500, 500),
    "adding-200": Goal({"name": "adding", "length": 200, "held_out": HELD_OUT}, 200, 1200, "loss", 0.05),
    # a tenth below 10 ln 8 / (T + 20), the loss without memory
    "copy-100": Goal({"name": "copy", "length": 100, "held_out": HELD_OUT}, 120, 1500, "loss", 0.156),
    "digits": Goal({"name": "sequential_images", "held_out": HELD_OUT}, 64, 600, "accuracy", 0.7),
}
MODULES: Mapping[str, Cell] = {"LSTM": LSTM(), "GRU": GRU()}


def _papers(cell: Cell, length: int) -> Fields:
    """Gilboa et al. 2019, D.4's variances; all units share one forget bias, at which xi = T."""
    return _of_spec(critical(cell, length, biases="redrawn").spec.to_json())


def _ours(cell: Cell, length: int) -> Fields:
    """What `isornn.init.critical_` draws."""
    return _of_spec(critical(cell, length, time_scales="octaves").spec.to_json())


def _of_spec(spec: Mapping[str, Any]) -> Fields:
    return {"name": "spec", "gates": spec["gates"], "biases": spec["biases"]}


STARTS: Mapping[str, Callable[[Cell, int], Fields]] = {
    "torch": lambda cell, length: {"name": "torch"},
    "standard": lambda cell, length: {"name": "standard"},
    "chrono": lambda cell, length: {"name": "chrono", "length": length},
    "uniform_gate": lambda cell, length: {"name": "uniform_gate"},
    "papers": _papers,
    "critical": _ours,
}


@cache
def _start(name: str, module: str, length: int) -> Fields:
    """`critical` takes a second or two."""
    return STARTS[name](MODULES[module], length)


@dataclass(frozen=True)
class Place:
    """A cell of the protocol: one task, one module, one start."""

    goal: str
    module: str
    start: str

    def configuration(self, rate: float, seed: int, share: float = 1.0) -> Fields:
        """Of one run over a ``share`` of the budget; a shorter run is the beginning of the longer one."""
        goal = GOALS[self.goal]
        return {
            "task": goal.task,
            "model": {"name": f"torch.nn.{self.module}", "hidden": UNITS},
            "start": _start(self.start, self.module, goal.length),
            "optimiser": {"name": "adam", "rate": rate},
            "updates": round(share * goal.budget),
            "batch_size": BATCH,
            "validate_every": goal.budget // VALIDATIONS,
            "clip": CLIP,
            "seed": seed,
        }
