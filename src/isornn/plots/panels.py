"""Draws what `isornn.experiments.panels` describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isornn.experiments.panels import Curve, HeatMap, Panel
from isornn.files import replacing

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"ls": "-"},
    "dashed": {"ls": "--"},
    "points": {"ls": "none", "marker": "o", "ms": 4},
}
_ACROSS = 3  # panels beside each other, at the most


def draw_panels(title: str, panels: Sequence[Panel], figure: Path) -> None:
    """Panels side by side, in rows of at most three.

    Args:
        title: over all of them.
        panels: at least one.
        figure: where to; the ending (.png, .pdf, .svg) says the format. Written atomically.

    Raises:
        OSError: the figure cannot be written there.
    """
    columns = 2 if len(panels) == 4 else min(len(panels), _ACROSS)
    rows = math.ceil(len(panels) / columns)
    # A figure of its own, without pyplot: nothing global, and no display needed.
    canvas = Figure(figsize=(1.5 + 4.2 * columns, 0.6 + 3.4 * rows), layout="constrained")
    canvas.suptitle(title)
    axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for one, panel in zip(axes, panels, strict=False):
        _draw(one, panel, canvas)
    for spare in axes[len(panels) :]:
        spare.set_axis_off()
    with replacing(figure) as new:
        canvas.savefig(new, dpi=130)


def _draw(axes: Axes, panel: Panel, canvas: Figure) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.heat is not None:
        _draw_heat(axes, panel.heat, canvas)
    for place, histogram in enumerate(panel.histograms):
        colour = _COLOURS[place % len(_COLOURS)]
        axes.stairs(histogram.heights, histogram.edges, fill=True, alpha=0.3, color=colour, label=histogram.label)
    for place, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, _COLOURS[(place if curve.colour is None else curve.colour) % len(_COLOURS)])
    for mark in panel.marks:
        across = axes.axvline if mark.axis == "x" else axes.axhline
        across(mark.place, color="black", lw=0.8, ls=":", label=mark.label or None)
    for axis in panel.log:
        getattr(axes, f"set_{axis}scale")("log")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize="small")


def _draw_curve(axes: Axes, curve: Curve, colour: str) -> None:
    y = np.array([np.nan if value is None else value for value in curve.y], dtype=float)
    axes.plot(curve.x, y, color=colour, label=curve.label or None, **_STYLES[curve.style])
    if curve.error is not None:
        error = np.asarray(curve.error, dtype=float)
        axes.fill_between(np.asarray(curve.x, dtype=float), y - error, y + error, color=colour, alpha=0.2, lw=0)


def _draw_heat(axes: Axes, heat: HeatMap, canvas: Figure) -> None:
    values = np.array([[np.nan if v is None else v for v in row] for row in heat.values], dtype=float)
    axes.set_facecolor("#cccccc")  # seen where there is no number
    mesh = axes.pcolormesh(heat.x, heat.y, values, shading="nearest", cmap="viridis")
    canvas.colorbar(mesh, ax=axes, label=heat.label)
