"""Tables and a sentence about tied networks, printed after an analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator

from isornn.cli.show import print_table
from isornn.formatting import with_error, with_error_of
from isornn.present.labels import LABELS
from isornn.theory.quantity import Quantity
from isornn.theory.records import QUANTILES, Tied

MOST_ROWS = 10


def print_tied(tied: Tied) -> None:
    """Moments with tied and untied weights at each step, and the growth of a displacement."""
    title = "Tied weights, from state 0, compared with E[h^2] where weights are redrawn each step"
    print_table(title, ("step", "mean E[h]", "E[h^2]", "untied E[h^2]", "correlation"), _steps(tied))
    start, end = tied.window
    print_table(f"Over steps {start} to {end}", ("quantity", "value", "why not"), _numbers(tied))
    print(untied_sentence(tied))


def untied_sentence(tied: Tied) -> str:
    """The step from which tied and untied networks differ, and whether a displacement grows."""
    at = tied.differs_from()
    where = (
        f"E[h^2] stays within 10 % of the untied theory's over all {tied.steps} steps"
        if at is None
        else f"From step {at} on E[h^2] is more than 10 % off the untied theory's"
    )
    exponent, error = tied.lyapunov.number(), tied.lyapunov.error()
    if exponent is None or error is None:
        return f"{where}. No growth can be given: {tied.lyapunov.reason()}."
    if abs(exponent) <= 2 * error:
        how = "neither fades nor grows beyond the error"
    else:
        factor = math.exp(exponent)
        how = f"{'grows' if exponent > 0 else 'decays'} by a factor {with_error_of(factor, factor * error)} per step"
    return f"{where}. A displacement {how} in networks of {tied.width} units."


def _steps(tied: Tied) -> Iterator[tuple[str, ...]]:
    """Rows at steps that are spread evenly on a log scale."""
    ratio = tied.steps ** (1 / (MOST_ROWS - 1))
    for step in sorted({round(ratio**j) for j in range(MOST_ROWS)}):
        lines = (tied.mean, tied.second_moment, tied.untied, tied.correlation)
        yield (str(step), *(_at(line, step - 1) for line in lines))


def _at(line: Quantity, place: int) -> str:
    if not bool(line.defined[place]):
        return "-"
    return with_error_of(float(line.value[place]), float(line.stderr[place]))


def _numbers(tied: Tied) -> Iterator[tuple[str, str, str]]:
    for name, quantity in tied.numbers():
        yield str(LABELS[name]), with_error(quantity), quantity.reason() or ""
    for state, scales in tied.time_scales.items():
        for place, level in enumerate(QUANTILES):
            why = "" if bool(scales.defined[place]) else scales.reasons[0][0]
            label = f"time scale of a unit's {state}, quantile {level:g}, steps"
            yield label, _at(scales, place), why
