"""How a change of the state fades: the response over time, and where its reach ends."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from isornn.plots.interactive import BLUE, GREY, ORANGE, blank, figure
from isornn.theory import Analysis
from isornn.words import value_of

_LOWEST = 1e-4  # of the response after the first step; what lies below is not drawn
_POINTS = 400
_TICKS = ("1", "0.1", "0.01", "0.001", "0.0001")


def fading_figure(analysis: Analysis, length: int) -> go.Figure:
    """``P_t / P_1`` against t on a log scale, the level 1/e, the reach, and the length T that is wanted."""
    steps, curve = _curve(analysis)
    if not len(steps):
        return blank()
    drawn = figure("steps t after the change", "response P<sub>t</sub> / P<sub>1</sub>")
    mode = "lines+markers" if len(steps) <= 30 else "lines"
    line = {"color": BLUE, "width": 2.5}
    drawn.add_scatter(x=steps, y=curve, mode=mode, line=line, hovertemplate="t = %{x}: %{y:.3g}<extra></extra>")
    top = max(1.0, float(curve.max()))
    low = min(float(curve[curve > 0].min()), 0.2)
    drawn.update_yaxes(
        type="log",
        range=[math.log10(low) - 0.08, math.log10(top) + 0.08],
        tickvals=[float(tick) for tick in _TICKS],
        ticktext=_TICKS,
    )
    end = max(1.04 * float(steps[-1]), 3)
    drawn.update_xaxes(range=[0, end])
    drawn.add_hline(y=1 / math.e, line={"color": GREY, "dash": "dot", "width": 1})
    drawn.add_annotation(x=end, y=-math.log10(math.e), text="1/e", showarrow=False, xanchor="right", yshift=9)
    if length <= end:
        dashed = {"color": GREY, "dash": "dash", "width": 1}
        drawn.add_vline(x=length, line=dashed)
        drawn.add_annotation(
            x=length, y=math.log10(top), text=f"T = {length}", showarrow=False, xanchor="right", xshift=-4
        )
    _mark_reach(drawn, analysis, end)
    return drawn


def fading_caption(analysis: Analysis) -> str:
    """What is drawn, or why nothing is."""
    if not len(_curve(analysis)[0]):
        return analysis.reach.reason() or "Nothing is left of a change after one step."
    sampled = " Sampled: the bar is two standard errors of the reach." if analysis.engine == "population" else ""
    return (
        "What is left of a small change of the state, as a share of its effect after one step. "
        f"Reach: {value_of(analysis.reach)}.{sampled}"
    )


def _curve(analysis: Analysis) -> tuple[np.ndarray, np.ndarray]:
    """Times and ``P_t / P_1``, as far as they are finite and not negligible, no more than can be seen."""
    profile = analysis.profile.numpy()
    if len(profile) < 2 or not np.isfinite(profile[1]) or profile[1] <= 0:
        return np.zeros(0), np.zeros(0)
    curve = profile[1:] / profile[1]
    alive = np.isfinite(curve) & (curve >= _LOWEST)
    last = len(curve) if alive.all() else max(int(np.argmin(alive)), 1)
    places = np.unique(np.geomspace(1, last, _POINTS).round().astype(int) if last > _POINTS else np.arange(1, last + 1))
    return places, curve[places - 1]


def _mark_reach(drawn: go.Figure, analysis: Analysis, end: float) -> None:
    reach = analysis.reach.number()
    if reach is None or 1 + reach > end:
        return
    drawn.add_scatter(
        x=[1 + reach],
        y=[1 / math.e],
        mode="markers",
        marker={"color": ORANGE, "size": 10},
        error_x={"array": [2 * (analysis.reach.error() or 0.0)], "color": ORANGE},
        hovertemplate=f"reach {value_of(analysis.reach)} steps",
        name="",
    )
