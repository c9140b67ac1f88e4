"""What a figure shows, as data: matplotlib and plotly draw it (`isornn.present`), and a record can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Numbers = Sequence[float]
Style = Literal["line", "dashed", "dotted", "dashdot", "points", "steps"]


@dataclass(frozen=True)
class Curve:
    """Points (x, y), joined or not.

    Args:
        x, y: as many of each; ``None`` in y leaves a gap: there is no number.
        label: for the legend; none if empty.
        style: how it is drawn; ``"steps"`` keeps each value from the point before up to its own.
        error: how far a band, or the bars of points, extend to either side of y.
        colour: curves of one number have one colour; by default each has its own.
        x_error: how far bars extend to either side of x, of points.
        filled: whether the area down to 0 is shaded.
        hover: what an interactive figure says of each point, one text for all or one each; the two numbers if empty.
    """

    x: Numbers
    y: Sequence[float | None]
    label: str = ""
    style: Style = "line"
    error: Numbers | None = None
    colour: int | None = None
    x_error: Numbers | None = None
    filled: bool = False
    hover: str | Sequence[str] = ""


@dataclass(frozen=True)
class Histogram:
    """A density over bins: heights are ``len(edges) - 1``."""

    edges: Numbers
    heights: Numbers
    label: str = ""


@dataclass(frozen=True)
class HeatMap:
    """``values[j][i]`` over x_i and y_j; ``None`` where there is no number.

    Args:
        value_range: what the colours span, so that maps can be compared; all values if ``None``.
    """

    x: Numbers
    y: Numbers
    values: Sequence[Sequence[float | None]]
    label: str
    value_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Mark:
    """A straight line across the panel at ``place`` on the axis ``axis``."""

    axis: Literal["x", "y"]
    place: float
    label: str = ""
    style: Literal["dotted", "dashed"] = "dotted"


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Args:
        log: axes that are logarithmic.
        x_range, y_range: what the axes take in; all that is drawn if ``None``.
        percent: axes of shares, shown in percent.
        names: of places on the x-axis, where it has names instead of numbers.
        caption: what is seen, in words and numbers, or why nothing is drawn.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve] = ()
    histograms: Sequence[Histogram] = ()
    heat: HeatMap | None = None
    marks: Sequence[Mark] = ()
    log: Sequence[Literal["x", "y"]] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    percent: Sequence[Literal["x", "y"]] = ()
    names: Sequence[tuple[float, str]] = ()
    caption: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw; the caption then says why."""
        return not (self.curves or self.histograms or self.heat)
