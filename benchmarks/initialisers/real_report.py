"""The table of scores on real sets, and what is claimed of `critical_` given a batch."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

import torch
from rich.console import Console
from rich.table import Table

OURS = "critical_for_batch"


@dataclass(frozen=True)
class Result:
    """The accuracies on the test part of one set, module and start at its best rate, one for each seed.

    A run that diverged has ``None`` and counts as 0.
    """

    set: str
    module: str
    start: str
    rate: float
    scores: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        return mean(score or 0.0 for score in self.scores)

    @property
    def error(self) -> float:
        """The mean's standard error over seeds."""
        return stdev(score or 0.0 for score in self.scores) / len(self.scores) ** 0.5


Cells = Mapping[tuple[str, str], Sequence[Result]]


def report(results: Sequence[Result], held_out: Sequence[str]) -> None:
    """Print the table, best start first in each cell, and the claims: of the protocol's sets, and of those held out."""
    cells: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        cells.setdefault((result.set, result.module), []).append(result)
    console = Console(width=120)
    console.print(f"{platform.machine()}, torch {torch.__version__}, one thread; {len(cells)} sets and modules known")
    console.print(_table(cells))
    for title, out in (("the protocol's sets", False), ("sets held out", True)):
        chosen = {cell: found for cell, found in cells.items() if (cell[0] in held_out) == out}
        for line in [title, *_claims(chosen)] if chosen else []:
            console.print(line)


def rank(result: Result, others: Sequence[Result]) -> int:
    """1 for the highest mean; equal means share the best of their ranks."""
    return 1 + sum(other.mean > result.mean for other in others)


def behind(result: Result, others: Sequence[Result]) -> float:
    """How far the mean is below the highest, in that one's standard errors; infinite if that has none."""
    best = max(others, key=lambda other: (other.mean, other.error))
    gap = best.mean - result.mean
    return 0.0 if gap == 0 else gap / best.error if best.error else float("inf")


def _table(cells: Cells) -> Table:
    table = Table("set", "module", "rank", "start", "rate", "accuracy", "seeds", "diverged")
    for (name, module), found in cells.items():
        for result in sorted(found, key=lambda one: -one.mean):
            table.add_row(
                name,
                module,
                f"{rank(result, found)} of {len(found)}",
                result.start,
                f"{result.rate:g}",
                f"{result.mean:.3f} ± {result.error:.3f}",
                " ".join("-" if score is None else f"{score:.3f}" for score in result.scores),
                str(sum(score is None for score in result.scores)),
            )
    return table


def _claims(cells: Cells) -> list[str]:
    lines, ranks, close = [], [], []
    for (name, module), found in cells.items():
        ours = next((one for one in found if one.start == OURS), None)
        if ours is not None:
            ranks.append(rank(ours, found))
            close.append(behind(ours, found) <= 1)
            lines.append(
                f"{name} {module}: {OURS} {ours.mean:.3f} ± {ours.error:.3f}, rank {ranks[-1]} of {len(found)}, "
                f"{behind(ours, found):.1f} standard errors of the best below it"
            )
    if not ranks:
        return lines
    return [
        *lines,
        _claim(f"best or within one standard error of the best on {sum(close)} of {len(close)}", all(close)),
        _claim(f"median rank {median(ranks):g}, wanted 1", median(ranks) == 1),
    ]


def _claim(text: str, holds: bool) -> str:
    return f"{'holds' if holds else 'does NOT hold'}: {text}"
