"""Where untied networks can be trained, against the time scale of the theory."""

from __future__ import annotations

import math

from isornn.experiments.reproductions import _noise_padded as padded
from isornn.experiments.target import UNTESTED, Bench, Measured, Target, Verdict

_RANK = 0.8
_SLACK = 2.0
_LEARNED = 0.3  # a range of accuracies below which there is no border to speak of


def measure(bench: Bench) -> Measured:
    """Accuracy of networks whose steps have weights of their own."""
    return padded.measure(bench, tied=False)


def judge(measured: Measured) -> Verdict:
    """In every cell the border follows xi in rank, and is mostly within a factor of 2 of 3 xi to 6 xi."""
    answers, details = [], []
    for case in measured["cells"]:
        borders = padded.borders(measured, case)
        seen = [(border, xi) for border, xi in zip(borders, case["xi"], strict=True) if 0 < border < math.inf]
        within = sum(padded.inside(border, xi) for border, xi in seen)
        near = sum(padded.inside(border, xi, _SLACK) for border, xi in seen)
        rank = padded.rank_correlation(borders, case["xi"])
        flat = [value for row in padded.mean_accuracy(case) for value in row]
        if max(flat) - min(flat) < _LEARNED or len(seen) < 3 or rank is None:
            answers.append(UNTESTED)
        else:
            answers.append("holds" if rank > _RANK and near > len(seen) / 2 else "does not hold")
        details.append(
            f"{padded.NAMES[case['cell']]}: border between 3 xi and 6 xi in {within} of {len(seen)} columns, within a "
            f"factor {_SLACK:g} of that in {near}, rank correlation with xi "
            f"{'not defined' if rank is None else f'{rank:.2f}'} (bar {_RANK})"
        )
    for answer in ("does not hold", UNTESTED):
        if answer in answers:
            return Verdict(answer, "; ".join(details))
    return Verdict("holds", "; ".join(details))


TARGET = Target(
    id="gilboa-fig2",
    source="Gilboa et al. 2019, figure 2",
    claim="In untied GRUs, peephole LSTMs and LSTMs, the border between lengths that can be trained and those that "
    "cannot grows with xi, and is mostly within a factor 2 of 3 xi to 6 xi.",
    published="no numbers; heat maps with the curves 3 xi and 6 xi, after 1000 (GRU) and 2000 (LSTM) iterations",
    choices=f"{padded.CHOICES} Every step has weights of its own, all trained. Bars: rank correlation above 0.8 "
    "(columns whose border is beyond the lengths count as first or last), and more than half of the columns within "
    "a factor 2.",
    settings={"small": padded.SMALL, "paper": padded.PAPER},
    measure=measure,
    judge=judge,
    panels=padded.panels,
    data=padded.data_name,
)
