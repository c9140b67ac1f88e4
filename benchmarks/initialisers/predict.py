"""How soon starts should learn, from theory alone and before any training: memory of the lags that a goal asks about.

A unit b keeps ``rho_b`` of the variance of its slow state in a step, so that the input k steps back has the share
``phi_b(k)^2`` of its state (`Carry.share_of`). Over units, ``K(k, l) = E_b phi_b(k) phi_b(l)`` is the kernel with which
a linear readout learns what came in k steps back; with N units it resolves what is above 1/N of the kernel's trace, and

    m_k = [K (K + I/N)^-1]_kk

is the share of lag k that it can tell: short-term memory capacity (Jaeger 2002) with a ridge. The score of a start is
the mean of ln m_k over the lags that matter; what is below one in all the sequences that are trained on counts as that.
Recurrent weights enter by the noise that they put into gates alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from statistics import mean

import torch
from protocol import BATCH, GOALS, MODULES, STARTS, UNITS, Place
from race import Result
from scipy.stats import spearmanr
from solved import SOLVED

from isornn.cells import Input, Spec
from isornn.cells.starts import STARTS as NAMED
from isornn.cells.starts import start
from isornn.theory import analyze
from isornn.theory.carry import Carry, carry_of

# the lags that a goal asks about
LAGS: Mapping[str, Iterable[int]] = {
    "padded-200": [199],
    "padded-500": [499],
    "padded-1000": [999],
    "adding-200": range(200),
    # symbol j of ten came in at step j and is asked for at step T + 10 + j
    "copy-100": [110],
    "digits": range(64),
}


def score(place: Place) -> float:
    """The higher, the sooner it should learn; kept."""
    return SOLVED.get(f"score {place.goal} {place.module} {place.start}", lambda: _score(place))


def _score(place: Place) -> float:
    goal = GOALS[place.goal]
    kernel = _carry(place).memory(goal.length)
    capacity = torch.linalg.solve(kernel + torch.eye(len(kernel)) / UNITS, kernel).diagonal()
    told = [max(float(capacity[lag]), 1 / (goal.budget * BATCH)) for lag in LAGS[place.goal]]
    return sum(math.log(one) for one in told) / len(told)


@cache
def _carry(place: Place) -> Carry:
    spec = _spec(place)
    return carry_of(spec, analyze(spec, length=1).fixed_point.second_moment.number() or 0.0)


def _spec(place: Place) -> Spec:
    cell, goal = MODULES[place.module].cell, GOALS[place.goal]
    input = Input(goal.mean_square)
    if place.start in NAMED:
        return start(place.start, cell, UNITS, goal.inputs, goal.length, input)
    # for a batch: the same law, of the input less its mean
    name = "critical" if place.start == "critical_for_batch" else place.start
    fields = STARTS[name](cell, goal)
    return replace(
        Spec.from_json({"cell": cell.name, "gates": fields["gates"], "biases": fields["biases"]}), input=input
    )


def order(results: Sequence[Result]) -> list[int]:
    """Ranks of starts of one cell of the protocol: by updates; those that stay below the threshold, by their ends."""
    goal = GOALS[results[0].place.goal]

    def key(result: Result) -> tuple[float, float]:
        end = sorted(result.final)[len(result.final) // 2] if result.final else math.inf
        return result.median, end if goal.metric == "loss" else -end

    keys = sorted({key(result) for result in results})
    return [keys.index(key(result)) for result in results]


def between_seeds(results: Sequence[Result]) -> float | None:
    """Spearman's, of the orders that two seeds give, in the mean over pairs of seeds: how far an order can be known at
    all. ``None`` where a run diverged."""
    goal = GOALS[results[0].place.goal]
    if any(result.diverged for result in results):
        return None
    sign = 1 if goal.metric == "loss" else -1
    seeds = range(len(results[0].updates))
    orders = []
    for seed in seeds:
        keys = [(result.updates[seed], sign * result.final[seed]) for result in results]
        orders.append([sorted(set(keys)).index(key) for key in keys])
    return mean(float(spearmanr(one, other).statistic) for one, other in combinations(orders, 2))


def correlation(results: Sequence[Result], by_updates_alone: bool = False) -> float | None:
    """Spearman's, of predicted and measured ranks; ``None`` where nothing was learned."""
    measured = [result.median for result in results] if by_updates_alone else order(results)
    if len(set(measured)) == 1:
        return None
    predicted = [-round(score(result.place), 9) for result in results]
    return float(spearmanr(predicted, measured).statistic)
