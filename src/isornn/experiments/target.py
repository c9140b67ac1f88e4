"""A figure, table or statement of the papers: what it claims, how it is measured here, and whether it holds."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from isornn.cells.errors import suggested
from isornn.figures import Panel

Scale = Literal["small", "medium", "paper"]
SCALES: tuple[Scale, ...] = ("small", "medium", "paper")
Answer = Literal["holds", "does not hold", "not tested at this size"]
UNTESTED: Answer = "not tested at this size"
"""What the measurement was too small, too short or too uncertain for; the verdict says which."""
Kind = Literal["theory", "training", "timing", "file"]
Measured = Mapping[str, Any]
"""What was measured: numbers, texts, lists and tables of them, as JSON has them."""
Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much."""
Spent = Callable[[float], None]
"""Called with the processor seconds that other processes worked for a measurement."""


class TargetError(ValueError):
    """There is no target of this name, or it has no such scale."""


@dataclass(frozen=True)
class Effect:
    """A number that the claim is about.

    Args:
        what: it is.
        value: the mean over seeds, or a count.
        low, high: its 95 % confidence interval; ``None`` where one seed has none, or the number is exact.
        seeds: how many.
        published: the paper's number as printed, or what it says in words; empty where there is none.
    """

    what: str
    value: float | None
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    published: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether the claim holds, the reason, and the numbers that it is about."""

    answer: Answer
    why: str
    effects: tuple[Effect, ...] = ()

    @staticmethod
    def from_mapping(found: Mapping[str, Any]) -> Verdict:
        """What a record has of one."""
        return Verdict(found["answer"], found["why"], tuple(Effect(**one) for one in found.get("effects", ())))

    def to_mapping(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"answer": self.answer, "why": self.why, "effects": [vars(one) for one in self.effects]}


@dataclass(frozen=True)
class Bench:
    """What a measurement has to work with.

    Args:
        settings: the target's at the scale asked for.
        folder: for runs that it keeps, so that an interrupted measurement goes on.
        data: the user's folder of data files, or ``None``.
        seed: of everything random.
        progress: called with what is done.
        jobs: how many processes train.
        spent: called with the processor seconds of those that are not this one.
    """

    settings: Mapping[str, Any]
    folder: Path
    data: Path | None
    seed: int
    progress: Progress
    jobs: int = 2
    spent: Spent = lambda seconds: None

    def generator(self, stream: int = 0) -> torch.Generator:
        """A generator of the seed's; streams are independent of each other."""
        return torch.Generator().manual_seed(1_000_003 * self.seed + stream)


@dataclass(frozen=True)
class Target:
    """One thing that the papers show.

    Args:
        id: its name on the command line.
        source: paper, and figure, table or equation.
        claim: what must be seen; the verdict is about this sentence.
        published: the numbers printed, or that there are none.
        choices: what the paper leaves unsaid, and what was chosen.
        settings: sizes, seeds and lengths by scale.
        measure: settings to numbers; all that takes time.
        judge: numbers to a verdict, which can come out against the claim.
        panels: numbers to the figure.
        data: the name of the data that it is measured on, of what is in the user's folder; ``None`` where only random
            numbers are needed.
        kind: what is measured: a theory and its networks, training, time, or what a file holds.
        untested: by scale, why measurements of its size cannot decide the claim, whatever comes out.
        undecided: why no scale that can be run here decides it.
        corrected: whether the claim is about a formula that is printed with an error, as corrected here.
        see: a page with further measurements of the same, below ``docs/``.
    """

    id: str
    source: str
    claim: str
    published: str
    choices: str
    settings: Mapping[Scale, Mapping[str, Any]]
    measure: Callable[[Bench], Measured]
    judge: Callable[[Measured], Verdict]
    panels: Callable[[Measured], Sequence[Panel]]
    data: Callable[[Path | None], str] | None = None
    kind: Kind = "theory"
    untested: Mapping[Scale, str] = field(default_factory=dict)
    undecided: str = ""
    corrected: bool = False
    see: str = ""

    def verdict(self, scale: Scale, measured: Measured) -> Verdict:
        """What ``judge`` says, where this scale can decide the claim."""
        found = self.judge(measured)
        if scale not in self.untested:
            return found
        return Verdict(UNTESTED, f"{self.untested[scale]}. Measured: {found.why}", found.effects)


def target_ids() -> list[str]:
    """All targets' names, a file each in `isornn.experiments.reproductions`.

    >>> "gilboa-fig5" in target_ids()
    True
    """
    from isornn.experiments import reproductions

    files = (module.name for module in pkgutil.iter_modules(reproductions.__path__))
    return sorted(name.replace("_", "-") for name in files if not name.startswith("_"))


def target_named(name: str) -> Target:
    """The target of a name.

    Raises:
        TargetError: there is none of it.
    """
    if name not in target_ids():
        close = suggested(name, ("all", "list", "report", *target_ids()))
        raise TargetError(f"target: {name!r} is not allowed; {close}targets are {', '.join(target_ids())}")
    module = importlib.import_module(f"isornn.experiments.reproductions.{name.replace('-', '_')}")
    target: Target = module.TARGET
    return target
