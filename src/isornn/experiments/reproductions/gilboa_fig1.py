"""Accuracy after a fixed number of updates over the length of a row of digits, from two starts."""

from __future__ import annotations

from isornn.experiments.reproductions import _concatenated as concatenated
from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import Measured, Target
from isornn.figures import Curve, Panel


def panels(measured: Measured) -> list[Panel]:
    """Mean over seeds and half their range, of both starts, and chance."""
    lengths = [one["length"] for one in measured["sizes"]]
    curves = []
    for start in two.STARTS:
        finals = [two.finals(one, start) for one in measured["sizes"]]
        half = [(max(values) - min(values)) / 2 for values in finals]
        curves.append(Curve(lengths, [two.mean(values) for values in finals], f"{start}, half the range", error=half))
    curves.append(Curve(lengths, [one["chance"] for one in measured["sizes"]], "chance", "dashed"))
    return [Panel(f"after {measured['updates'][-1]} updates", "length T", "accuracy", curves)]


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
        "paper": {"sizes": [1, 2, 4, 6, 8], **concatenated.PAPER},
    },
    measure=concatenated.measure,
    judge=two.judge,
    panels=panels,
    data=two.data_name,
)
