"""Draws what `isornn.figures` describes, for notebooks and into files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from isornn.figures import Curve, HeatMap, Panel, Style
from isornn.files import replacing

ENDINGS = (".png", ".pdf", ".svg")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
NOTHING = "#cccccc"  # seen where a map has no number
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"ls": "-"},
    "dashed": {"ls": "--"},
    "dotted": {"ls": ":"},
    "dashdot": {"ls": "-."},
    "points": {"ls": "none", "marker": "o", "ms": 4},
    "steps": {"ls": "-", "drawstyle": "steps-pre"},
}
_ACROSS = 3  # the most panels in a row
_INSIDE = 6  # the most labels of a legend within its panel


class Drawing(Figure):
    """A figure of its own, without pyplot: nothing global, and no display needed. Notebooks show it."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, dpi=100)
        return image.getvalue()


def draw_panels(title: str, panels: Sequence[Panel], figure: str | Path | None = None) -> Drawing:
    """Panels side by side, in rows of at most three. A panel with nothing to draw shows its caption.

    Args:
        title: over all of them; none if empty.
        panels: at least one.
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> curve = Curve([0, 1, 2], [1.0, 0.5, 0.25], "measured")
    >>> [axes.get_xlabel() for axes in draw_panels("", [Panel("decay", "steps", "norm", [curve])]).axes]
    ['steps']
    """
    columns = 2 if len(panels) == 4 else min(len(panels), _ACROSS)
    canvas, axes = grid(len(panels), columns, (4.2, 3.4) if len(panels) > 1 else (5.5, 3.6))
    if title:
        canvas.suptitle(title)
    for one, panel in zip(axes, panels, strict=True):
        _draw(one, panel, canvas)
    return save(canvas, figure)


def grid(panels: int, columns: int, size: tuple[float, float]) -> tuple[Drawing, list[Axes]]:
    """A figure, and axes for so many panels of this size in inches, row by row."""
    rows = math.ceil(panels / columns)
    canvas = Drawing(figsize=(1.5 + size[0] * columns, 0.6 + size[1] * rows), layout="constrained")
    axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.set_axis_off()
    return canvas, axes[:panels]


def save(canvas: Drawing, file: str | Path | None) -> Drawing:
    """The figure, written atomically where a file is given.

    Raises:
        ValueError: the file's name has another ending than `ENDINGS`.
        OSError: the folder is missing or cannot be written to.
    """
    if file is not None:
        if Path(file).suffix.lower() not in ENDINGS:
            raise ValueError(f"file: {str(file)!r} is not allowed; its name must end in {', '.join(ENDINGS)}")
        with replacing(Path(file)) as new:
            canvas.savefig(new, dpi=150)
    return canvas


def say(axes: Axes, reason: str) -> None:
    """Why nothing is drawn, in the middle of the axes."""
    axes.text(0.5, 0.5, reason, ha="center", va="center", wrap=True, fontsize="small", transform=axes.transAxes)
    axes.set(xticks=[], yticks=[])


def edges(places: np.ndarray) -> np.ndarray:
    """Borders of the cells about ``places``: halfway between them; a single cell is as wide as 1.

    >>> edges(np.array([1.0, 2.0, 4.0])).tolist()
    [0.5, 1.5, 3.0, 5.0]
    """
    if len(places) == 1:
        return np.array([places[0] - 0.5, places[0] + 0.5])
    between = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - between[0]], between, [2 * places[-1] - between[-1]]])


def _draw(axes: Axes, panel: Panel, canvas: Figure) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.empty:
        say(axes, panel.caption)
        return
    if panel.heat is not None:
        _draw_heat(axes, panel.heat, canvas)
    for place, histogram in enumerate(panel.histograms):
        colour = COLOURS[place % len(COLOURS)]
        axes.stairs(histogram.heights, histogram.edges, fill=True, alpha=0.3, color=colour, label=histogram.label)
    for place, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, place if curve.colour is None else curve.colour)
    for mark in panel.marks:
        across = axes.axvline if mark.axis == "x" else axes.axhline
        across(mark.place, color="black", lw=0.8, ls=":" if mark.style == "dotted" else "--", label=mark.label or None)
    for axis in panel.log:
        getattr(axes, f"set_{axis}scale")("log")
    for axis in panel.percent:
        getattr(axes, f"{axis}axis").set_major_formatter(PercentFormatter(1.0))
    axes.set(xlim=panel.x_range, ylim=panel.y_range)
    if panel.names:
        axes.set_xticks(*map(list, zip(*panel.names, strict=True)), rotation=35, ha="right", fontsize="small")
    labels = len(axes.get_legend_handles_labels()[0])
    if labels:  # many beside the panel, where they cover nothing
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if labels > _INSIDE else {}
        axes.legend(frameon=panel.heat is not None, framealpha=0.85, fontsize="small", **beside)


def _draw_curve(axes: Axes, curve: Curve, number: int) -> None:
    """In its number's colour; lines for which no colour is left are dashed."""
    colour = COLOURS[number % len(COLOURS)]
    style: Style = "dashed" if curve.style == "line" and number >= len(COLOURS) else curve.style
    x, y = np.asarray(curve.x, dtype=float), np.array([np.nan if value is None else value for value in curve.y], float)
    axes.plot(x, y, color=colour, label=curve.label or None, **_STYLES[style])
    if curve.error is not None:
        error = np.asarray(curve.error, dtype=float)
        if curve.style == "points":  # between which there is nothing
            axes.errorbar(x, y, yerr=error, fmt="none", ecolor=colour, capsize=2)
        else:
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.2, lw=0)
    if curve.x_error is not None:
        axes.errorbar(x, y, xerr=np.asarray(curve.x_error, dtype=float), fmt="none", ecolor=colour)
    if curve.filled:
        step: Literal["pre"] | None = "pre" if curve.style == "steps" else None
        axes.fill_between(x, y, color=colour, alpha=0.15, lw=0, step=step)


def _draw_heat(axes: Axes, heat: HeatMap, canvas: Figure) -> None:
    values = np.array([[np.nan if v is None else v for v in row] for row in heat.values], dtype=float)
    axes.set_facecolor(NOTHING)
    low, high = (None, None) if heat.value_range is None else heat.value_range
    mesh = axes.pcolormesh(heat.x, heat.y, values, shading="nearest", cmap="viridis", vmin=low, vmax=high)
    canvas.colorbar(mesh, ax=axes, label=heat.label)
