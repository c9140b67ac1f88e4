"""Accuracy after a fixed number of updates over the length of a row of digits, from two starts."""

from __future__ import annotations

from isornn.experiments.reproductions import _concatenated as concatenated
from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import Measured, Target, Verdict
from isornn.figures import Curve, Panel


def judge(measured: Measured) -> Verdict:
    """As figure 4, on test digits where they were measured, after the last update alone."""
    sizes = [
        {
            **one,
            "starts": {
                name: {**start, "curves": [[v] for v in _tested(start)]} for name, start in one["starts"].items()
            },
        }
        for one in measured["sizes"]
    ]
    return two.judge({"updates": measured["updates"][-1:], "sizes": sizes})


def _tested(start: Measured) -> list[float]:
    """Of each seed, the accuracy on test digits; records of scale small have that on validation digits."""
    return list(start.get("test") or (curve[-1] for curve in start["curves"]))


def panels(measured: Measured) -> list[Panel]:
    """Means over seeds and every seed, of both starts, and chance."""
    lengths = [one["length"] for one in measured["sizes"]]
    curves = []
    for colour, start in enumerate(two.STARTS):
        tested = [_tested(one["starts"][start]) for one in measured["sizes"]]
        curves.append(Curve(lengths, [two.mean(each) for each in tested], f"{start}, mean and seeds", colour=colour))
        curves += [Curve(lengths, seed, "", "points", colour=colour) for seed in zip(*tested, strict=True)]
    curves.append(Curve(lengths, [one["chance"] for one in measured["sizes"]], "chance", "dashed", colour=2))
    return [Panel(f"after {measured['updates'][-1]} updates", "length T", "accuracy", curves, y_range=(0.0, 1.0))]


TARGET = Target(
    id="gilboa-fig1",
    source="Gilboa et al. 2019, figure 1",
    claim="After a fixed number of updates a peephole LSTM from the standard start fails beyond some length of the "
    "sequence of digits, at which the critical start still learns.",
    published="no numbers; two curves after 8000 iterations",
    choices=f"{concatenated.CHOICES} The task is most likely that of figure 4's top row, and is taken to be; the runs "
    "that both figures have are trained once, so the seconds of the one measured second are few.",
    settings={
        "small": {"sizes": [1, 2, 3, 4], **concatenated.SMALL},
        "medium": concatenated.MEDIUM,
        "paper": {"sizes": [1, 2, 4, 6, 8], **concatenated.PAPER},
    },
    measure=concatenated.measure,
    judge=judge,
    panels=panels,
    data=two.data_name,
    kind="training",
    untested={
        "small": "600 updates of 64 units where the paper has 8000, at rates of which the critical start does best "
        "with the lowest, so that lower ones of D.5.1 may do better yet"
    },
)
