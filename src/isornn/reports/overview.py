"""Several layers in one figure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from itertools import cycle

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isornn.diagnosis import Diagnosis, LayerDiagnosis
from isornn.present.plotly import BLUE, GREEN, GREY, ORANGE, figure
from isornn.reports.decades import decades, drawable
from isornn.reports.panel import LOG10, log_axis

_COLOURS = (BLUE, ORANGE, GREEN, "#a067d0", "#c94f7c", "#7f8c1f", "#2aa4b8", GREY)
_BACK, _FORWARD, _UNITS, _GROWTH = (1, 1), (1, 2), (2, 1), (2, 2)


def overview(diagnosis: Diagnosis) -> go.Figure:
    """All layers of a model in one figure, as `together`."""
    return together({layer.info.name: layer for layer in diagnosis.layers})


def together(layers: Mapping[str, LayerDiagnosis]) -> go.Figure:
    """Gradients backwards, nearby states forwards, time constants of units, Lyapunov exponents; a colour a layer.

    Args:
        layers: by the name that the figure has for each; their T are marked among the time constants.
    """
    drawn = figure("", "", showlegend=True, legend={"orientation": "h", "y": 1.04, "yanchor": "bottom"}, height=640)
    drawn = make_subplots(rows=2, cols=2, horizontal_spacing=0.1, vertical_spacing=0.14, figure=drawn)
    lowest = {_BACK: -0.3, _FORWARD: -0.3}
    highest = {_BACK: 0.0, _FORWARD: 0.0}
    for (plain, layer), colour in zip(layers.items(), cycle(_COLOURS), strict=False):
        # Plotly reads some HTML in names, and modules are called what their owners like.
        name = html.escape(plain)
        for cell, profile in ((_BACK, layer.backward), (_FORWARD, layer.forward)):
            values = drawable(decades(profile))
            if np.isfinite(values).any():
                lowest[cell] = min(lowest[cell], float(np.nanmin(values)))
                highest[cell] = max(highest[cell], float(np.nanmax(values)))
            _add(drawn, cell, profile.lags.numpy(), values, name, colour, "%{x} steps: %{customdata}", LOG10)
        _add_units(drawn, layer, name, colour)
        _add_exponents(drawn, layer, name, colour)
    titles = {
        _BACK: ("steps back from the last output", "norm of the gradient"),
        _FORWARD: ("steps after a small perturbation", "distance of two copies"),
        _UNITS: ("time constant t, steps", "share of units with at least t"),
        _GROWTH: ("Lyapunov exponent, from the leading one", "ln growth per step"),
    }
    for (row, column), (x, y) in titles.items():
        axis = {"zeroline": False, "automargin": True}
        drawn.update_xaxes(title={"text": x, "standoff": 6}, row=row, col=column, **axis)
        drawn.update_yaxes(title={"text": y, "standoff": 6}, row=row, col=column, **axis)
    for row, column in (_BACK, _FORWARD):
        drawn.update_yaxes(**log_axis(lowest[row, column], highest[row, column]), row=row, col=column)
    drawn.update_xaxes(type="log", dtick=1, row=2, col=1)
    drawn.update_yaxes(range=[0, 1.05], tickformat=".0%", row=2, col=1)
    drawn.update_xaxes(dtick=1, row=2, col=2)
    drawn.add_hline(y=0, line={"color": GREY, "dash": "dot", "width": 1}, row=2, col=2)
    for length in sorted({layer.length for layer in layers.values()}):
        drawn.add_vline(x=length, line={"color": GREY, "dash": "dash", "width": 1}, row=2, col=1)
    return drawn


def _add_units(drawn: go.Figure, layer: LayerDiagnosis, name: str, colour: str) -> None:
    constants = layer.memory.time_constants
    if constants is None:
        return
    found = np.sort(constants.numpy())
    left = 1 - np.arange(len(found)) / len(found)
    finite = np.isfinite(found)
    _add(drawn, _UNITS, found[finite], left[finite], name, colour, "%{y:.1%} of units keep at least %{x:.3g} steps")


def _add_exponents(drawn: go.Figure, layer: LayerDiagnosis, name: str, colour: str) -> None:
    known = [(place, one) for place, one in enumerate(layer.lyapunov.exponents, 1) if one.number() is not None]
    drawn.add_scatter(
        x=[place for place, _ in known],
        y=[one.number() for _, one in known],
        error_y={"array": [2 * (one.error() or 0.0) for _, one in known], "color": colour},
        mode="markers",
        marker={"color": colour, "size": 8},
        name=name,
        legendgroup=name,
        showlegend=False,
        hovertemplate="number %{x}: %{y:.4g}<extra>" + name + "</extra>",
        row=_GROWTH[0],
        col=_GROWTH[1],
    )


def _add(
    drawn: go.Figure,
    cell: tuple[int, int],
    x: np.ndarray,
    y: np.ndarray,
    name: str,
    colour: str,
    hover: str,
    meta: str | None = None,
) -> None:
    drawn.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "width": 2},
        meta=meta,
        name=name,
        legendgroup=name,
        showlegend=cell == _BACK,
        hovertemplate=hover + "<extra>" + name + "</extra>",
        row=cell[0],
        col=cell[1],
    )


def overview_caption(layers: Iterable[LayerDiagnosis]) -> str:
    """What is drawn; its numbers are the summary table's."""
    marked = " and ".join(f"{length:,}" for length in sorted({layer.length for layer in layers}))
    return (
        "Top: the gradient of each layer's last output, backwards, and the distance of two nearby states, forwards, "
        "each 1 after one step. Bottom: the share of units that keep at least t steps by their retention gate, with "
        f"T = {marked} dashed, and Lyapunov exponents with two standard errors. The table above has the numbers."
    )
