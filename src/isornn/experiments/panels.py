"""What a figure shows, as data: `isornn.plots.panels` draws it, and a record can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Numbers = Sequence[float]
Style = Literal["line", "dashed", "points"]


@dataclass(frozen=True)
class Curve:
    """Points (x, y), joined or not.

    Args:
        x, y: as many of each; ``None`` in y leaves a gap: there is no number.
        label: for the legend; none if empty.
        style: how it is drawn.
        error: one standard error of y, or half the spread where the label says so.
        colour: curves of one number have one colour; by default each has its own.
    """

    x: Numbers
    y: Sequence[float | None]
    label: str = ""
    style: Style = "line"
    error: Numbers | None = None
    colour: int | None = None


@dataclass(frozen=True)
class Histogram:
    """A density over bins: heights are ``len(edges) - 1``."""

    edges: Numbers
    heights: Numbers
    label: str = ""


@dataclass(frozen=True)
class HeatMap:
    """``values[j][i]`` over x_i and y_j; ``None`` where there is no number."""

    x: Numbers
    y: Numbers
    values: Sequence[Sequence[float | None]]
    label: str


@dataclass(frozen=True)
class Mark:
    """A straight line across the panel at ``place`` on the axis ``axis``."""

    axis: Literal["x", "y"]
    place: float
    label: str = ""


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = ()
    histograms: Sequence[Histogram] = ()
    heat: HeatMap | None = None
    marks: Sequence[Mark] = ()
    log: Sequence[Literal["x", "y"]] = ()
