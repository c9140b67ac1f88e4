"""A layer's states over time."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from isornn.diagnosis import LayerDiagnosis, StateMoments
from isornn.formatting import rounded, with_error
from isornn.present.plotly import BLUE, GREEN, GREY, ORANGE, figure
from isornn.reports.panel import LEGEND, ReportPanel

_COLOURS = (BLUE, ORANGE, GREY)


def moments_panel(layer: LayerDiagnosis) -> ReportPanel:
    """Second moments and correlations of the states, with the theory's fixed point for the first of them."""
    lasts = ". ".join(_last(name, moments) for name, moments in layer.moments.items())
    return ReportPanel(
        "States over time",
        _drawn(layer),
        f"{lasts}. {_fixed_point(layer)} Exact over units and sequences of this batch.",
        ("state", "step", "mean", "second moment", "correlation", "sd over sequences"),
        tuple(row for name, moments in layer.moments.items() for row in _moment_rows(name, moments)),
    )


def _drawn(layer: LayerDiagnosis) -> go.Figure:
    """Second moments above, correlations below where there are pairs of sequences."""
    rows = {"second moment": {name: moments.second_moment for name, moments in layer.moments.items()}}
    correlations = {name: moments.correlation for name, moments in layer.moments.items()}
    if any(bool(values.isfinite().any()) for values in correlations.values()):
        rows["correlation"] = correlations
    empty = figure("", "", showlegend=True, legend=LEGEND)
    drawn = make_subplots(rows=len(rows), cols=1, shared_xaxes=True, vertical_spacing=0.08, figure=empty)
    drawn.update_xaxes(zeroline=False)
    for row, (what, by_state) in enumerate(rows.items(), 1):
        for (name, values), colour in zip(by_state.items(), _COLOURS, strict=False):
            drawn.add_scatter(
                x=layer.moments[name].times.numpy(),
                y=values.numpy(),
                mode="lines",
                line={"color": colour, "width": 2},
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                hovertemplate=what + " of " + name + " = %{y:.4g} at step %{x}<extra></extra>",
                row=row,
                col=1,
            )
        drawn.update_yaxes(title={"text": what}, zeroline=False, automargin=True, row=row, col=1)
        if (level := _expected(layer, what)) is not None:
            drawn.add_hline(y=level, line={"color": GREEN, "dash": "dot", "width": 1.6}, row=row, col=1)
    drawn.update_xaxes(title={"text": "step", "standoff": 8}, automargin=True, row=len(rows), col=1)
    return drawn


def _expected(layer: LayerDiagnosis, what: str) -> float | None:
    untied = layer.predicted.untied
    if untied is None:
        return None
    fixed = untied.fixed_point
    return (fixed.second_moment if what == "second moment" else fixed.correlation).number()


def _last(name: str, moments: StateMoments) -> str:
    known = np.flatnonzero(np.isfinite(moments.second_moment.numpy()))
    place = int(known[-1])
    correlation = float(moments.correlation[place])
    also = "" if math.isnan(correlation) else f", correlation between sequences {correlation:.3g}"
    return f"E[{name}²] at step {int(moments.times[place])} = {rounded(float(moments.second_moment[place]))}{also}"


def _fixed_point(layer: LayerDiagnosis) -> str:
    untied, name = layer.predicted.untied, next(iter(layer.moments))
    if untied is None:
        return f"Theory: {layer.predicted.reason}."
    fixed = untied.fixed_point
    return f"Theory (dotted): E[{name}²] = {with_error(fixed.second_moment)}, C* = {with_error(fixed.correlation)}."


def _moment_rows(name: str, moments: StateMoments) -> list[tuple[str, ...]]:
    last = len(moments.times) - 1
    places = sorted({round(last * part) for part in (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)})
    columns = (moments.mean, moments.second_moment, moments.correlation, moments.spread)
    return [
        (name, str(int(moments.times[place])), *(_shown(float(column[place])) for column in columns))
        for place in places
    ]


def _shown(value: float) -> str:
    return "-" if math.isnan(value) else rounded(value)
