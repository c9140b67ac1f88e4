"""Where untied networks can be trained, against the time scale of the theory."""

from __future__ import annotations

import math

from isornn.experiments.reproductions import _by_seeds as by_seeds
from isornn.experiments.reproductions import _noise_padded as padded
from isornn.experiments.target import Bench, Measured, Target, Verdict


def measure(bench: Bench) -> Measured:
    """Accuracy of networks whose steps have weights of their own."""
    return padded.measure(bench, tied=False)


def judge(measured: Measured) -> Verdict:
    """In every cell the border keeps to the band from 3 xi to 6 xi."""
    parts, effects, details = {}, [], []
    for case in measured["cells"]:
        name, found = padded.NAMES[case["cell"]], padded.follows(measured, case)
        parts[name] = None if found is None else found.within
        if found is not None:
            effects += [found.slope, found.ratio]
            low, high = 1 - math.log(2) / found.reach, 1 + math.log(2) / found.reach
            details.append(
                f"{name}: borders at xi from {found.shortest:.2g} to {found.longest:.2g}, of which slopes from "
                f"{low:.2f} to {high:.2f} stay in the band"
            )
        details += [
            f"{name}, bias {bias:g}: the border is beyond {times:.1f} xi"
            for bias, times in padded.beyond(measured, case).items()
        ]
    judged = "; ".join(f"{name} keeps to 3 xi to 6 xi: {by_seeds.SAID[yes]}" for name, yes in parts.items())
    return Verdict(by_seeds.answer_of(parts), f"{judged}. {'; '.join(details)}", tuple(effects))


TARGET = Target(
    id="gilboa-fig2",
    source="Gilboa et al. 2019, figure 2",
    claim="In untied GRUs, peephole LSTMs and LSTMs, the border between lengths that can be trained and those that "
    "cannot grows in proportion to xi, from 3 xi to 6 xi.",
    published="no numbers; heat maps with the curves 3 xi and 6 xi, after 1000 (GRU) and 2000 (LSTM) iterations",
    choices=f"{padded.CHOICES} Every step has weights of its own, all trained. Scale medium has biases from -1 to 3: "
    "at bias 4 xi is 17 and more (GRU), and even 5 xi is longer than its sequences. A border beyond the longest "
    "sequences is no part of the fit; the verdict says how many xi these are.",
    settings={
        "small": padded.SMALL,
        "medium": {**padded.MEDIUM, "bias_means": [-1.0, 0.0, 1.0, 2.0, 3.0]},
        "paper": padded.PAPER,
    },
    measure=measure,
    judge=judge,
    panels=padded.panels,
    data=padded.data_name,
    kind="training",
    untested={
        "small": "32 units and 100 updates where the paper has 1000 (GRU) and 2000 (LSTM), and accuracy on held-out "
        "digits for that of training"
    },
)
