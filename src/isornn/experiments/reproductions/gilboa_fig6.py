"""Where tied networks can be trained, against the time scales of untied and of tied networks."""

from __future__ import annotations

import math

from isornn.experiments.reproductions import _noise_padded as padded
from isornn.experiments.target import UNTESTED, Bench, Measured, Target, Verdict

_FEWEST = 3
_TIED_STEPS = {"tied_steps": 24}


def measure(bench: Bench) -> Measured:
    """Accuracy of networks with one set of weights, and xi of networks with and without."""
    return padded.measure(bench, tied=True)


def judge(measured: Measured) -> Verdict:
    """At every length accuracy does not fall with xi in rank, in every cell, and somewhere the border is off."""
    positive, details, outside, seen_at_all = True, [], 0, 0
    for case in measured["cells"]:
        ranks = {name: _mean_rank(case, name) for name in ("xi", "tied_xi")}
        borders = padded.borders(measured, case)
        places = [place for place, border in enumerate(borders) if 0 < border < math.inf]
        within = {name: sum(padded.inside(borders[k], case[name][k]) for k in places) for name in ranks}
        if ranks["xi"] is None:
            return Verdict(UNTESTED, f"{padded.NAMES[case['cell']]}: neither accuracy nor xi varies enough")
        positive &= ranks["xi"] > 0
        outside += len(places) - within["xi"]
        seen_at_all += len(places)
        tied = "not defined" if ranks["tied_xi"] is None else f"{ranks['tied_xi']:.2f}"
        details.append(
            f"{padded.NAMES[case['cell']]}: rank correlation of accuracy with xi, mean over lengths, "
            f"{ranks['xi']:.2f} (with tied xi {tied}); border between 3 xi and 6 xi in {within['xi']} of {len(places)} "
            f"columns, by tied xi in {within['tied_xi']}"
        )
    if seen_at_all < _FEWEST:
        return Verdict(UNTESTED, "; ".join(details))
    return Verdict("holds" if positive and outside > 0 else "does not hold", "; ".join(details))


def _mean_rank(case: Measured, name: str) -> float | None:
    """Of accuracy and xi over biases, averaged over the lengths at which both vary."""
    ranks = [padded.rank_correlation(row, case[name]) for row in padded.mean_accuracy(case)]
    known = [rank for rank in ranks if rank is not None]
    return padded.mean(known) if known else None


TARGET = Target(
    id="gilboa-fig6",
    source="Gilboa et al. 2019, figure 6 (D.2)",
    claim="With tied weights accuracy still is higher where the untied xi is larger, and the border deviates from "
    "3 xi to 6 xi.",
    published="no numbers; heat maps with the curves 3 xi and 6 xi of untied networks",
    choices=f"{padded.CHOICES} The curves of tied networks are drawn too: growth over the later half of 24 steps "
    "from state 0; there are none where displacements grow. Deviation means at least one column whose border is "
    "outside 3 xi to 6 xi.",
    settings={
        "small": {**padded.SMALL, **_TIED_STEPS},
        "medium": {**padded.MEDIUM, **_TIED_STEPS},
        "paper": {**padded.PAPER, **_TIED_STEPS},
    },
    measure=measure,
    judge=judge,
    panels=padded.panels,
    data=padded.data_name,
)
