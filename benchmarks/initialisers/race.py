"""The same chances for every start: rates raced on one seed, then further seeds at the best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kept import Asked, Kept, Known
from protocol import GOALS, RATES, SEEDS, Goal, Place

QUARTER = 0.25


@dataclass(frozen=True)
class Result:
    """What came of a place of the protocol, over seeds at its best rate.

    Args:
        updates: of each seed until the threshold, between validations by a straight line; the budget where it was not
            reached.
        reached: which did.
        final: the last validation's metric.
        diverged: how many of the seeds.
    """

    place: Place
    rate: float
    updates: tuple[float, ...]
    reached: tuple[bool, ...]
    final: tuple[float, ...]
    diverged: int

    @property
    def median(self) -> float:
        return median(self.updates)


def race(places: Sequence[Place], kept: Kept[Known]) -> list[Result]:
    """Train what is not known yet, stage by stage over all places; interrupted, the same call goes on."""
    first = SEEDS[0]
    kept.run([Asked(place, rate, first, QUARTER) for place in places for rate in RATES])
    kept.run([Asked(place, rate, first) for place in places for rate in _better_half(place, kept)])
    best = {place: _best(place, kept) for place in places}
    kept.run([Asked(place, best[place], seed) for place in places for seed in SEEDS])
    return [_result(place, best[place], kept) for place in places]


def found(places: Sequence[Place], kept: Kept[Known]) -> list[Result]:
    """The results of those places that are known whole."""
    return [_result(place, _best(place, kept), kept) for place in places if _is_whole(place, kept)]


def _is_whole(place: Place, kept: Kept[Known]) -> bool:
    if any(kept.get(Asked(place, rate, SEEDS[0], QUARTER)) is None for rate in RATES):
        return False
    if any(kept.get(Asked(place, rate, SEEDS[0])) is None for rate in _better_half(place, kept)):
        return False
    return all(kept.get(Asked(place, _best(place, kept), seed)) is not None for seed in SEEDS)


def _better_half(place: Place, kept: Kept[Known]) -> list[float]:
    """The rates that go on: by the last validation at a quarter of the budget."""
    goal = GOALS[place.goal]
    order = sorted(RATES, key=lambda rate: _shortfall(_of(Asked(place, rate, SEEDS[0], QUARTER), kept), goal))
    return order[: len(RATES) // 2]


def _best(place: Place, kept: Kept[Known]) -> float:
    """The rate that reaches the threshold first; of those that do not, the one with the best end."""
    goal = GOALS[place.goal]

    def order(rate: float) -> tuple[float, float]:
        known = _of(Asked(place, rate, SEEDS[0]), kept)
        return _updates(known, goal) or math.inf, _shortfall(known, goal)

    return min(_better_half(place, kept), key=order)


def _result(place: Place, rate: float, kept: Kept[Known]) -> Result:
    goal = GOALS[place.goal]
    runs = [_of(Asked(place, rate, seed), kept) for seed in SEEDS]
    updates = [_updates(known, goal) for known in runs]
    return Result(
        place,
        rate,
        tuple(float(goal.budget) if count is None else count for count in updates),
        tuple(count is not None for count in updates),
        tuple(known.values[-1] for known in runs if known.diverged is None),
        sum(known.diverged is not None for known in runs),
    )


def _of(asked: Asked, kept: Kept[Known]) -> Known:
    known = kept.get(asked)
    if known is None:
        raise KeyError(f"{asked.key}: not run yet")
    return known


def _updates(known: Known, goal: Goal) -> float | None:
    """Until the threshold, on the line from the validation before: a sixth of the updates may lie between the two."""
    seen = list(zip(known.updates, known.values, strict=True))
    place = next((place for place, (_, value) in enumerate(seen) if goal.reached(value)), None)
    if place is None or place == 0:
        return None if place is None else seen[0][0]
    (before, below), (at, value) = seen[place - 1 : place + 1]
    return before + (at - before) * (goal.threshold - below) / (value - below)


def _shortfall(known: Known, goal: Goal) -> float:
    """How far the last validation is from good: the lower, the better."""
    if known.diverged is not None:
        return math.inf
    return known.values[-1] if goal.metric == "loss" else -known.values[-1]
