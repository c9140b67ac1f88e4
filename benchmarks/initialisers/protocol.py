"""What every start is given: the same tasks, modules, rates, seeds and budgets.

The core set is what claims are made of; the wider set is more of the same kind, run as far as there is time.

All runs but those of modules that say otherwise: one layer, one direction, 64 units. All: batches of 32, Adam at a
constant rate, gradient norm clipped at 1. A start is asked to bridge the task's whole sequence. Thresholds and budgets
were set before starts were compared, by what a network that has begun to solve the task shows; copying's after pilots
of `critical_`, which did not get below half of the loss without memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from solved import SOLVED

from isornn import critical, isometric
from isornn.cells import GRU, LSTM, TRNN, Cell, Input, Minimal, Peephole, Spec
from isornn.cells.starts import IN_USE, TIMED, start

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
        inputs: numbers of a step.
        budget: updates.
        metric: of the validation; ``threshold`` is what it has to reach.
        mean_square: of the numbers that come in, which `critical_` may be told as it is told the length.
        mnist: whether the images are MNIST's; the package's digits if not.
    """

    task: Fields
    length: int
    inputs: int
    budget: int
    metric: Literal["accuracy", "loss"]
    threshold: float
    mean_square: float
    mnist: bool = False

    def reached(self, value: float) -> bool:
        return value >= self.threshold if self.metric == "accuracy" else value <= self.threshold


def _padded(length: int, budget: int) -> Goal:
    task = {"name": "noise_padded", "length": length, "pooled": True, "held_out": HELD_OUT}
    return Goal(task, length, 49, budget, "accuracy", 0.7, 1.0, mnist=True)


CORE_GOALS: Mapping[str, Goal] = {
    "padded-200": _padded(200, 400),
    "padded-500": _padded(500, 500),
    "adding-200": Goal({"name": "adding", "length": 200, "held_out": HELD_OUT}, 200, 2, 1200, "loss", 0.05, 0.17),
    # a tenth below 10 ln 8 / (T + 20), the loss without memory
    "copy-100": Goal({"name": "copy", "length": 100, "held_out": HELD_OUT}, 120, 10, 1500, "loss", 0.156, 0.1),
    "digits": Goal({"name": "sequential_images", "held_out": HELD_OUT}, 64, 1, 600, "accuracy", 0.7, 0.24),
}
WIDER_GOALS: Mapping[str, Goal] = {"padded-1000": _padded(1000, 600)}
GOALS = {**CORE_GOALS, **WIDER_GOALS}


@dataclass(frozen=True)
class Module:
    """A model by its name in configurations, its cell, and what is not as in the core set."""

    model: str
    cell: Cell
    options: Fields = field(default_factory=dict)


CORE_MODULES: Mapping[str, Module] = {"LSTM": Module("torch.nn.LSTM", LSTM()), "GRU": Module("torch.nn.GRU", GRU())}
_OTHERWISE: Mapping[str, Fields] = {
    "2-layers": {"layers": 2},
    "bidirectional": {"bidirectional": True},
    "256-units": {"hidden": 256},
}
WIDER_MODULES: Mapping[str, Module] = {
    **{cell.name: Module(cell.name, cell) for cell in (Peephole(), Minimal(), TRNN())},
    **{
        f"{name}-{what}": replace(module, options=options)
        for what, options in _OTHERWISE.items()
        for name, module in CORE_MODULES.items()
    },
}
MODULES = {**CORE_MODULES, **WIDER_MODULES}


def _papers(cell: Cell, goal: Goal) -> Fields:
    """Gilboa et al. 2019, D.4's variances; all units share one forget bias, at which xi = T."""
    return _of_spec(isometric(cell, goal.length, biases="redrawn").spec)


def _ours(cell: Cell, goal: Goal) -> Fields:
    """What `isornn.init.critical_` draws that is told the length and how large the inputs are."""
    return _of_spec(critical(cell, goal.length, input=Input(goal.mean_square)).spec)


def _ours_for_batch(cell: Cell, goal: Goal) -> Fields:
    """`isornn.init.critical_` given a batch, as `isornn train` calls it."""
    return {"name": "critical", "length": goal.length}


def _ours_by_length(cell: Cell, goal: Goal) -> Fields:
    """What `isornn.init.critical_` draws that is told the length alone."""
    return _of_spec(critical(cell, goal.length).spec)


def _of_spec(spec: Spec) -> Fields:
    form = spec.to_json()
    return {"name": "spec", "gates": form["gates"], "biases": form["biases"]}


CORE_STARTS: Mapping[str, Callable[[Cell, Goal], Fields]] = {
    "torch": lambda cell, goal: {"name": "torch"},
    "standard": lambda cell, goal: {"name": "standard"},
    "chrono": lambda cell, goal: {"name": "chrono", "length": goal.length},
    "uniform_gate": lambda cell, goal: {"name": "uniform_gate"},
    "papers": _papers,
    "critical": _ours,
    "critical_by_length": _ours_by_length,
    "critical_for_batch": _ours_for_batch,
}
OURS = ("critical_for_batch", "critical", "critical_by_length")


def _papers_told(cell: Cell, goal: Goal) -> Fields:
    return _of_spec(isometric(cell, goal.length, input=Input(goal.mean_square), biases="redrawn").spec)


def _told(name: str) -> Callable[[Cell, Goal], Fields]:
    """A start of the field's whose input weights are divided by the root of the inputs' mean square."""

    def of(cell: Cell, goal: Goal) -> Fields:
        spec = start(name, cell, UNITS, goal.inputs, goal.length)
        for gate, law in spec.gates.items():
            spec = spec.replace(f"{gate}.input_var", law.input_var / goal.mean_square)
        return _of_spec(spec)

    return of


def _in_use(name: str) -> Callable[[Cell, Goal], Fields]:
    """What libraries in use do to LSTMs."""
    return lambda cell, goal: {"name": name, **({"length": goal.length} if name in TIMED else {})}


WIDER_STARTS: Mapping[str, Callable[[Cell, Goal], Fields]] = {
    **{name: _in_use(name) for name in IN_USE},
    "gradient_flossing": lambda cell, goal: {"name": "gradient_flossing"},
    "orthogonal": lambda cell, goal: {"name": "orthogonal"},
    "glorot": lambda cell, goal: {"name": "glorot"},
    "standard_told": _told("standard"),
    "chrono_told": _told("chrono"),
    "uniform_gate_told": _told("uniform_gate"),
    "papers_told": _papers_told,
}
STARTS = {**CORE_STARTS, **WIDER_STARTS}


@cache
def _start(name: str, module: str, goal: str) -> Fields:
    """`papers` takes a second or two, unless it is kept."""
    return SOLVED.get(f"start {goal} {module} {name}", lambda: STARTS[name](MODULES[module].cell, GOALS[goal]))


@dataclass(frozen=True)
class Place:
    """A cell of the protocol: one task, one module, one start."""

    goal: str
    module: str
    start: str

    def configuration(self, rate: float, seed: int, share: float = 1.0) -> Fields:
        """Of one run over a ``share`` of the budget; a shorter run is the beginning of the longer one."""
        goal, module = GOALS[self.goal], MODULES[self.module]
        return {
            "task": goal.task,
            "model": {"name": module.model, "hidden": UNITS, **module.options},
            "start": _start(self.start, self.module, self.goal),
            "optimiser": {"name": "adam", "rate": rate},
            "updates": round(share * goal.budget),
            "batch_size": BATCH,
            "validate_every": goal.budget // VALIDATIONS,
            "clip": CLIP,
            "seed": seed,
        }
