"""Draws what `isornn.figures` describes, for pages. Text and grid take their colours from the page's style sheet."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from isornn.figures import Curve, Mark, Panel

BLUE, ORANGE, GREEN, GREY = "#3f83e0", "#d9691a", "#1f9a73", "#8a919c"  # read on white and on black
COLOURS = (BLUE, ORANGE, GREEN, "#a067d0", "#c94f7c", "#7f8c1f", "#2aa4b8", GREY)
_DASHES = {"line": "solid", "dashed": "dash", "dotted": "dot", "dashdot": "dashdot", "steps": "solid"}
_FEW = 30  # points, up to which each is shown


def figure_of(panel: Panel) -> go.Figure:
    """The panel's curves and marks; an empty figure where there is nothing to draw.

    >>> drawn = figure_of(Panel("", "x", "y", [Curve([1, 2], [3, 4])], marks=[Mark("x", 1.5, "T = 1.5")]))
    >>> drawn.data[0].y, drawn.layout.annotations[0].text
    ((3, 4), 'T = 1.5')
    """
    if panel.empty:
        return figure("", "", xaxis={"visible": False}, yaxis={"visible": False})
    drawn = figure(panel.x_label, panel.y_label)
    for place, curve in enumerate(panel.curves):
        _add(drawn, curve, COLOURS[(place if curve.colour is None else curve.colour) % len(COLOURS)])
    for axis, update, span in (
        ("x", drawn.update_xaxes, panel.x_range),
        ("y", drawn.update_yaxes, panel.y_range),
    ):
        log = axis in panel.log
        update(
            type="log" if log else "linear",
            range=None if span is None else [math.log10(end) for end in span] if log else list(span),
            dtick=1 if log and _decades(span) >= 1 else None,
            tickformat=".0%" if axis in panel.percent else None,
        )
    if panel.names:
        places, names = zip(*panel.names, strict=True)
        drawn.update_xaxes(tickmode="array", tickvals=places, ticktext=names)
    for mark in panel.marks:
        _mark(drawn, mark, mark.axis in panel.log)
    return drawn


def figure(x: str, y: str, **layout: Any) -> go.Figure:
    """An empty figure with named axes."""
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    drawn = go.Figure()
    drawn.update_layout(
        template=None,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        xaxis={**axis, "title": {"text": x, "standoff": 8}},
        yaxis={**axis, "title": {"text": y, "standoff": 8}},
        showlegend=False,
        hovermode="closest",
        uirevision="kept",
    )
    drawn.update_layout(**layout)
    return drawn


def as_json(drawn: go.Figure) -> dict[str, Any]:
    """The figure as plain numbers, which travel between processes and to the page."""
    return json.loads(drawn.to_json())


def shade(colour: str, opacity: float = 0.15) -> str:
    """A colour that lets through what is below it.

    >>> shade("#3f83e0")
    'rgba(63, 131, 224, 0.15)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def _add(drawn: go.Figure, curve: Curve, colour: str) -> None:
    points = curve.style == "points"
    if curve.error is not None and not points:
        _band(drawn, curve, colour)
    few = "lines+markers" if len(curve.x) <= _FEW and curve.style == "line" else "lines"
    label = curve.hover if isinstance(curve.hover, str) else "%{text}"
    drawn.add_scatter(
        x=curve.x,
        y=curve.y,
        mode="markers" if points else few,
        marker={"color": colour, "size": 10 if points else 6},
        line={
            "color": colour,
            "width": 2.5,
            "dash": _DASHES.get(curve.style),
            "shape": "vh" if curve.style == "steps" else "linear",
        },
        error_x=_bars(curve.x_error, colour),
        error_y=_bars(curve.error, colour) if points else None,
        fill="tozeroy" if curve.filled else None,
        fillcolor=shade(colour),
        text=None if isinstance(curve.hover, str) else curve.hover,
        hovertemplate=(label or "%{x}: %{y:.3g}") + "<extra></extra>",
        name=curve.label,
    )


def _band(drawn: go.Figure, curve: Curve, colour: str) -> None:
    """As far as the error to either side."""
    x, y, error = (np.array(values, dtype=float) for values in (curve.x, curve.y, curve.error))
    known = np.isfinite(y)
    drawn.add_scatter(
        x=np.concatenate([x[known], x[known][::-1]]),
        y=np.concatenate([(y + error)[known], (y - error)[known][::-1]]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=shade(colour),
        hoverinfo="skip",
        showlegend=False,
    )


def _bars(error: Any, colour: str) -> dict[str, Any] | None:
    return None if error is None else {"array": list(error), "color": colour}


def _mark(drawn: go.Figure, mark: Mark, log: bool) -> None:
    line = {"color": GREY, "dash": "dot" if mark.style == "dotted" else "dash", "width": 1}
    at = math.log10(mark.place) if log else mark.place
    if mark.axis == "x":
        drawn.add_vline(x=mark.place, line=line)
        where = {"x": at, "y": 1, "yref": "paper", "xanchor": "right", "yanchor": "top", "xshift": -4}
    else:
        drawn.add_hline(y=mark.place, line=line)
        where = {"x": 1, "xref": "paper", "y": at, "xanchor": "right", "yshift": 9}
    if mark.label:
        drawn.add_annotation(text=mark.label, showarrow=False, **where)


def _decades(span: tuple[float, float] | None) -> float:
    return 1.0 if span is None else math.log10(span[1] / span[0])
