"""The picture of a phase diagram: one quantity over two hyper-parameters, and where the critical line runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from isornn.present.labels import LABELS
from isornn.present.matplotlib import NOTHING, Drawing, edges, save
from isornn.theory.phase import PhaseDiagram
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import MARGINAL, UNENDING

_ENDLESS = "#f3e3b3"  # where the number is infinite
_LINES = ("#006400", "#32cd32", "#0072b2", "#d55e00")  # the papers' dark and light green first
_WIDE = 30.0  # ratio of largest to smallest number from which colours are logarithmic
_DECADES = 1e-6  # of the largest number: smaller numbers have one colour


def draw_phase(
    diagram: PhaseDiagram, show: str, figure: str | Path | None = None, overlay: Sequence[tuple[float, float]] = ()
) -> Drawing:
    """The map of ``show`` with the critical line and, for each (k, T) of ``overlay``, the line ``k xi = T``.

    A spec without a number is drawn hatched in grey, one whose number is infinite in sand, never as a number. Where
    the input correlation is 1 the line of ``chi = 1`` is that of ``chi_1 = 1``: chi touches 1 there from below.

    Args:
        show: a name of the diagram's quantities.
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.
        overlay: Gilboa et al. 2019, figure 2, draw 3 xi and 6 xi: between them is the length T up to which a network
            can be trained.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> from isornn.theory import phase_diagram
    >>> base = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.1)})
    >>> diagram = phase_diagram(base, ("h.weight_var", [0.5, 1.0, 1.5]), ("h.bias_var", [0.0, 0.1, 0.2]))
    >>> len(draw_phase(diagram, "xi").axes)  # the map and its scale
    2
    """
    canvas = Drawing(figsize=(7, 5), layout="constrained")
    axes = canvas.subplots()
    # What no colour covers is seen through to this.
    axes.set_facecolor(NOTHING)
    axes.patch.set(hatch="///", edgecolor="#888888")
    legend = [*_map(canvas, axes, diagram, show), *_critical_line(axes, diagram)]
    for (multiple, length), colour in zip(overlay, cycle(_LINES), strict=False):
        label = rf"${multiple:g}\,\xi = {length:g}$"
        legend += _line(axes, diagram, "xi", length / multiple, colour, "-", label)
    axes.set(title=f"{diagram.spec.cell.name}, by {diagram.engine}", xlabel=diagram.x.path, ylabel=diagram.y.path)
    axes.set_xscale("log" if _is_geometric(diagram.x.values.numpy()) else "linear")
    axes.set_yscale("log" if _is_geometric(diagram.y.values.numpy()) else "linear")
    if legend:
        canvas.legend(handles=legend, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return save(canvas, figure)


def _map(canvas: Figure, axes: Axes, diagram: PhaseDiagram, show: str) -> list[Artist]:
    """Colours where there is a number, one colour where it is infinite, nothing elsewhere; what the legend says."""
    value = _numbers(diagram.quantities[show])
    defined, endless = np.isfinite(value), np.isinf(value)
    borders = cell_edges(diagram.x.values.numpy()), cell_edges(diagram.y.values.numpy())
    legend: list[Artist] = []
    if defined.any():
        # On a log scale 0 would have no colour.
        scale, lowest = _scale(value[defined])
        shown = np.ma.masked_where(~defined, np.maximum(value, lowest))
        drawn = axes.pcolormesh(*borders, shown, norm=scale, cmap="viridis", rasterized=True)
        canvas.colorbar(drawn, ax=axes, label=str(LABELS[show]))
    if endless.any():
        axes.pcolormesh(
            *borders, np.ma.masked_where(~endless, endless), cmap=ListedColormap([_ENDLESS]), rasterized=True
        )
        legend.append(Patch(facecolor=_ENDLESS, edgecolor="#888888", label="infinite: changes do not fade"))
    if not (defined | endless).all():
        legend.append(
            Patch(facecolor=NOTHING, edgecolor="#888888", hatch="///", label="no fixed point, or no such number")
        )
    axes.set(xlim=(borders[0][0], borders[0][-1]), ylim=(borders[1][0], borders[1][-1]))
    return legend


def _numbers(quantity: Quantity) -> np.ndarray:
    """Values; infinite where changes do not fade, NaN where there is no number for any other reason."""
    endless = torch.zeros_like(quantity.defined)
    for reason, where in quantity.reasons:
        if reason in (UNENDING, MARGINAL):
            endless = endless | where
    return torch.where(endless, torch.inf, torch.where(quantity.defined, quantity.value, torch.nan)).numpy()


def _scale(value: np.ndarray) -> tuple[Normalize, float]:
    """Colours for ``value`` and the smallest number that has one of its own."""
    low, high = float(value.min()), float(value.max())
    if low < 0 or high <= _WIDE * low or high == 0:
        return Normalize(low, high), low
    low = max(low, _DECADES * high)
    return LogNorm(low, high), low


def _critical_line(axes: Axes, diagram: PhaseDiagram) -> list[Artist]:
    correlation = "input.correlation" not in (diagram.x.path, diagram.y.path) and diagram.spec.input.correlation
    name, label = ("chi_1", r"$\chi_1 = 1$: critical") if correlation == 1 else ("chi", r"$\chi = 1$: critical")
    return _line(axes, diagram, name, 1.0, "black", "--", label)


def _line(
    axes: Axes, diagram: PhaseDiagram, name: str, level: float, colour: str, style: str, label: str
) -> list[Artist]:
    """The contour of a quantity at ``level``, if it runs through the map; an infinite number is above every level."""
    known = _up_to(diagram, name, 10 * level)
    if not has_line(diagram, name, level):
        return []
    x, y = diagram.x.values.numpy(), diagram.y.values.numpy()
    drawn = axes.contour(x, y, known, levels=[level], colors=[colour], linestyles=[style], linewidths=1.5)
    drawn.set_path_effects([withStroke(linewidth=3, foreground="white")])  # seen on dark and light
    return [Line2D([], [], color=colour, ls=style, label=label)]


def has_line(diagram: PhaseDiagram, name: str, level: float) -> bool:
    """Whether the contour of a quantity at ``level`` runs through the map."""
    known = _up_to(diagram, name, 10 * level)
    return min(known.shape) >= 2 and bool(known.count()) and bool(known.min() < level < known.max())


def _up_to(diagram: PhaseDiagram, name: str, most: float) -> Any:
    """A quantity, masked where there is none; at most ``most``."""
    return np.ma.masked_invalid(np.minimum(_numbers(diagram.quantities[name]), most))


def cell_edges(centres: np.ndarray) -> np.ndarray:
    """Where the cells around ``centres`` end: halfway between them, on a log axis in the logarithm."""
    return np.exp(edges(np.log(centres))) if _is_geometric(centres) else edges(centres)


def _is_geometric(values: np.ndarray) -> bool:
    """Whether each value is the same multiple of the one before."""
    if len(values) < 3 or values[0] <= 0:
        return False
    ratios = values[1:] / values[:-1]
    return bool(np.allclose(ratios, ratios[0], rtol=1e-6) and not np.isclose(ratios[0], 1.0))
