"""What `isornn.memory` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from isornn.formatting import counted, share, steps, with_error_of
from isornn.lookback.rows import Score
from isornn.notebook import table, tag

TOO_FEW = "too few sequences to tell"
NOTHING = "nothing in the inputs predicts the target"
NOTHING_READ = "nothing in the last steps that were read predicts the target"
GROWING = "still growing at the longest length"


@dataclass(frozen=True)
class Memory:
    """How well the last L steps of the inputs predict the target, against L.

    Args:
        lengths: L, growing.
        scores: the cross-validated score with the last L steps: 0 is the base rate, 1 is perfect.
        errors: their standard errors.
        needed: the smallest L whose score is within one standard error of the best (at least .001, or half of what the
            best leaves unexplained where that is less); ``None`` for a ``reason``.
        reason: `TOO_FEW`, `NOTHING`, `NOTHING_READ` or `GROWING`; empty where ``needed`` is a number.
        score: ``"R^2"`` of values, ``"Brier skill"`` of classes: the share of the squared error, of the indicators of
            the classes, that the base rate makes and the predictions do not.
        sequences, rows: of how many sequences, and how many targets of them, it is the result.
        detectable: the share of the target that one sample far back must explain to be found with probability .95.
        whole: whether the longest length is that of the sequences, so that there is nothing before.
        per_step: whether each step has a target.
        directions: of more features than can be searched one by one, how many combinations were, those of largest
            variance; ``None`` where each feature was.

    >>> import torch
    >>> from isornn.lookback import memory
    >>> x = torch.randn(300, 20, 1, generator=torch.Generator().manual_seed(0))
    >>> found = memory(x, x[:, -4, 0])  # the target is the sample 3 steps before the last
    >>> found.needed
    4
    """

    lengths: tuple[int, ...]
    scores: tuple[float, ...]
    errors: tuple[float, ...]
    needed: int | None
    reason: str
    score: Score
    sequences: int
    rows: int
    detectable: float
    whole: bool
    per_step: bool = False
    directions: int | None = None

    def __str__(self) -> str:
        """The finding first, then the evidence for it."""
        data = f"{counted(self.sequences, 'sequence')}, {counted(self.rows, 'target')}{self._whose()}"
        if self.needed is None and not self.lengths:
            return f"No length: {self.reason}.\n{data}.{self._limit()}"
        best = max(range(len(self.scores)), key=lambda place: self.scores[place])
        if self.needed is None and self.reason == GROWING:
            found = f"More than {steps(self.lengths[-1])}: the score is {self.reason}"
        elif self.reason == NOTHING_READ:
            found = f"No length: nothing in the {_last(self.lengths[-1])} predicts the target"
        elif self.needed is None:
            found = f"No length: {self.reason}"
        else:
            found = f"The {_last(self.needed)} of the inputs {'is' if self.needed == 1 else 'are'} enough"
            if self.needed == self.lengths[-1] and self.whole and len(self.lengths) > 1:
                found += ", which is the whole sequence"
        return f"{found}.\n{self._evidence(best)}\n{data}.{self._limit()}"

    def _repr_html_(self) -> str:
        rows = (
            (str(length), with_error_of(score, error))
            for length, score, error in zip(self.lengths, self.scores, self.errors, strict=True)
        )
        finding, *evidence = str(self).splitlines()
        paragraphs = "".join(tag("p", line) for line in evidence)
        return tag("h4", finding) + paragraphs + table(("last steps", str(self.score)), rows)

    def _evidence(self, best: int) -> str:
        value, error = self.scores[best], self.errors[best]
        if self.needed is None:
            return f"{self.score} {with_error_of(value, error)} at best."
        own = self.lengths.index(self.needed)
        sentence = f"{self.score} {with_error_of(self.scores[own], self.errors[own])}"
        if own:
            below = with_error_of(self.scores[own - 1], self.errors[own - 1])
            sentence += f"; with {steps(self.lengths[own - 1])} {below}"
        if own != best:
            sentence += f"; at best {with_error_of(value, error)}, with {steps(self.lengths[best])}"
        return sentence

    def _whose(self) -> str:
        return ", one for each step" if self.per_step else ""

    def _limit(self) -> str:
        if self.reason not in (TOO_FEW, NOTHING, NOTHING_READ):
            return ""
        if self.directions is not None:
            return (
                f" The features are too many to be searched one by one: {self.directions} combinations of them were, "
                f"those of largest variance. Give fewer features, or a shorter longest length."
            )
        unread = "" if self.whole else " Earlier steps were not read; a larger `longest` reads them."
        if self.reason == TOO_FEW and self.per_step:
            unread += " Long sequences can be cut into more, which must not overlap."
        if self.detectable >= 1:
            return f" Even a target that is one of the inputs would not be found for sure.{unread}"
        where, least = "far back" if self.whole else "of these steps", share(self.detectable)
        return f" One sample {where} would very probably be found if it explained {least} of the target.{unread}"

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON has them."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def _last(length: int) -> str:
    return "last step" if length == 1 else f"last {steps(length)}"
