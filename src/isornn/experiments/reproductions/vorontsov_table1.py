"""Digits pixel by pixel in order, by margin and start."""

from __future__ import annotations

from functools import partial

from isornn.experiments.reproductions import _images_by_margin as by_margin
from isornn.experiments.target import Target

_PUBLISHED = dict(
    zip((*by_margin.ROWS, by_margin.LSTM), (77.18, 79.26, 85.47, 94.1, 93.84, 93.24, 66.71, 53.53, 97.3), strict=True)
)
TARGET = Target(
    id="vorontsov-table1",
    source="Vorontsov et al. 2017, table 1, figure 6 (left)",
    claim="On ordered pixels an orthogonal matrix is beaten by margins .1 and 1, Glorot's and the identity start by an "
    "orthogonal one, and all of them by an LSTM.",
    published="test accuracy %: m = 0 77.18, .001 79.26, .01 85.47, .1 94.10, 1 93.84, none 93.24, none from Glorot "
    "66.71, none from the identity 53.53, LSTM 97.30",
    choices=f"{by_margin.CHOICES} At scale medium, a twelfth of the paper's updates, the LSTM's training loss still "
    "falls over the last 2,000 of 10,000 updates by 22 to 27 %, that of the margins by 3 to 13 %.",
    settings=by_margin.SETTINGS,
    measure=partial(by_margin.measure, permutation=None),
    judge=partial(by_margin.judge, published=_PUBLISHED),
    panels=partial(by_margin.panels, published=_PUBLISHED),
    data=by_margin.data_name,
    kind="training",
    untested=by_margin.UNTESTED,
)
