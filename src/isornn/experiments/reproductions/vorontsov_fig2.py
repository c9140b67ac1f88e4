"""How the gradient travels back through the steps while a factorised network trains, by margin."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

from torch import Tensor
from torch.nn import functional
from torch.nn.utils import parametrize

from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.reproductions._copying import RATES
from isornn.experiments.reproductions._followed import DECAY, PUBLISHED, followed
from isornn.experiments.runs import Look
from isornn.experiments.target import UNTESTED, Answer, Bench, Measured, Target, Verdict
from isornn.figures import HeatMap, Panel
from isornn.tasks import Copy, one_pass
from isornn.training import SequenceModel, State

_FLAT = 1e-4
_MARGINS: dict[str, float | None] = {"0": 0.0, ".001": 0.001, ".01": 0.01, ".1": 0.1, "1": 1.0, "none": None}


def measure(bench: Bench) -> Measured:
    """ln |d(loss of the last step)/dh_t| over t, every so many updates; mean 0 over t. A table for each seed."""
    settings = bench.settings
    (probe,) = one_pass(Copy(settings["length"], size=settings["probe"], seed=1), settings["probe"])
    models = {
        name: {"nonlinearity": "identity"} | ({} if margin is None else {"margin": margin})
        for name, margin in _MARGINS.items()
    }
    look = Look(settings["every"], partial(_norms, probe))
    task = {"name": "copy", "length": settings["length"], "held_out": settings["probe"]}
    return {"every": settings["every"], "margins": followed(bench, task, models, look)}


def _norms(probe: tuple[Tensor, ...], state: State) -> list[float]:
    """ln |d(loss)/dh_t|, mean 0 over t; by one step a call, so that each state is at hand."""
    model = state.model
    assert isinstance(model, SequenceModel)
    x, y = probe
    h, states = None, []
    with parametrize.cached():  # W once, not at every step
        for step in model.encoder(x):
            h, _ = model.recurrent(step.unsqueeze(0), h)  # the output is the state
            h.retain_grad()
            states.append(h)
    functional.cross_entropy(model.readout(states[-1][0]), y[-1]).backward()
    model.zero_grad()
    norms = [math.log(float(h.grad.norm())) for h in states]
    mean = sum(norms) / len(norms)
    return [round(norm - mean, 9) for norm in norms]


def _spread(row: list[float]) -> float:
    """Standard deviation over t of the logarithm."""
    return math.sqrt(sum(v * v for v in row) / len(row))


def _later(rows: list[list[float]]) -> float:
    """Mean spread over the second half of training."""
    half = [_spread(row) for row in rows[len(rows) // 2 :]]
    return sum(half) / len(half)


def judge(measured: Measured) -> Verdict:
    """m = 0 keeps the norm; what the others lose grows with the margin."""
    margins = measured["margins"]
    zero = max(_spread(row) for rows in margins["0"] for row in rows)
    later = {name: [_later(rows) for rows in each] for name, each in margins.items()}
    means = {name: sum(values) / len(values) for name, values in later.items()}
    grows = all(means[a] < means[b] for a, b in pairwise(means))
    apart = all(max(later[a]) < min(later[b]) for a, b in pairwise(later))
    answer: Answer = "does not hold" if zero > _FLAT or not grows else "holds" if apart else UNTESTED
    details = ", ".join(
        f"{name}: {means[name]:.2g} ({min(each):.2g} to {max(each):.2g})" for name, each in later.items()
    )
    seeds = len(margins["0"])
    return Verdict(
        answer,
        f"spread over t of ln |gradient|, mean over the second half of training and range over {seeds} seeds, by "
        f"margin: {details}; with margin 0 at most {zero:.1e} at any time (bar {_FLAT})",
        tuple(
            by_seeds.effect(f"spread over t of ln |gradient|, later half of training, margin {name}", each)
            for name, each in later.items()
        ),
    )


def panels(measured: Measured) -> list[Panel]:
    """The first seed's maps, as in the paper, with one scale of colours; the spreads of all seeds are numbers."""
    every, found = measured["every"], []
    # That of the margins: the extreme values of 'none' would leave them grey.
    margins = {name: seeds[0] for name, seeds in measured["margins"].items()}
    widest = max(abs(v) for name, rows in margins.items() if name != "none" for row in rows for v in row)
    for name, rows in margins.items():
        steps = list(range(1, len(rows[0]) + 1))
        columns = [list(column) for column in zip(*rows, strict=True)]
        updates = [every * k for k in range(1, len(rows) + 1)]
        heat = HeatMap(updates, steps, columns, "ln |gradient|, mean 0", (-widest, widest))
        found.append(Panel(f"margin {name}", "update", "step t", heat=heat))
    return found


_PUBLISHED = {
    "length": 200,
    "hidden": 128,
    "updates": 1000,
    "every": 20,
    "validate_every": 100,
    "seeds": 5,
    "probe": 50,
    "optimiser": PUBLISHED,
    "penalty": DECAY,
    "clip": 100.0,
}
TARGET = Target(
    id="vorontsov-fig2",
    source="Vorontsov et al. 2017, figure 2",
    claim="While the copy task is learned without a transition nonlinearity, the gradient's norm is the same at all "
    "steps with margin 0, and differs the more the wider the margin is.",
    published="no numbers; maps over 1000 updates, copy T = 200, 128 units",
    choices="Norms are taken on one held-out batch. With the paper's rates (bases 1e-6, the rest 1e-4) little moves in "
    "so few updates: bases 0.01, spectrum 1 (over 2m), the rest 0.001, clip 1, as in this library's copy benchmark.",
    settings={
        "small": {
            "length": 30,
            "hidden": 64,
            "updates": 200,
            "every": 10,
            "validate_every": 200,
            "seeds": 2,
            "probe": 50,
            "optimiser": RATES,
            "clip": 1.0,
        },
        "medium": {**_PUBLISHED, "seeds": 3},
        "paper": _PUBLISHED,
    },
    measure=measure,
    judge=judge,
    panels=panels,
    kind="training",
    untested={"small": "T = 30 where the paper has 200, and 10,000 times its rate of the bases"},
)
