"""Concatenated digits, the top row of figure 4: the standard start fails where the critical one learns."""

from __future__ import annotations

from isornn.experiments.reproductions import _concatenated as concatenated
from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import Target

TARGET = Target(
    id="gilboa-fig4-concat",
    source="Gilboa et al. 2019, figure 4, top row",
    claim="On several digits in a row with one joint label, both starts of a peephole LSTM learn short sequences, and "
    "at long ones only the critical start does.",
    published="no numbers; curves at three lengths, 70 steps a digit",
    choices=f"{concatenated.CHOICES} The runs are those of figure 1: measured after it, this takes no time.",
    settings={
        "small": {"sizes": [1, 2, 4], **concatenated.SMALL},
        "medium": concatenated.MEDIUM,
        "paper": {"sizes": [1, 4, 8], **concatenated.PAPER},
    },
    measure=concatenated.measure,
    judge=two.judge,
    panels=two.curves_over_updates,
    data=two.data_name,
    kind="training",
    untested={
        "small": "600 updates of 64 units, at rates of which the critical start does best with the lowest, so that "
        "lower ones of D.5.1 may do better yet"
    },
)
