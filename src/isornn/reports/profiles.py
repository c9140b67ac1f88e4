"""Gradient backwards and distance of nearby states forwards, with the fit and the theory."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from isornn.diagnosis import LayerDiagnosis, Profile
from isornn.diagnosis.profiles import RESOLUTION
from isornn.formatting import power_of_ten, share, steps, with_error, with_error_of
from isornn.present.plotly import BLUE, GREEN, GREY, ORANGE, figure
from isornn.reports.decades import decades, drawable
from isornn.reports.panel import LEGEND, LOG10, ReportPanel, log_axis

_TABLE = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_BAND = "rgba(63, 131, 224, 0.15)"


def backward_panel(layer: LayerDiagnosis) -> ReportPanel:
    """The gradient of the layer's last output with respect to its earlier states."""
    drawn = _figure(layer.backward, "steps back from the last output", "gradient", layer.length)
    return ReportPanel(
        "Gradient, backwards",
        _with_theory(drawn, layer),
        "The gradient of the last output with respect to the state: "
        f"{_fit_in_words(layer.backward, layer.length)} {_theory(layer)}",
        *_table(layer.backward),
    )


def forward_panel(layer: LayerDiagnosis) -> ReportPanel:
    """How fast two nearby states converge or diverge."""
    drawn = _figure(layer.forward, "steps after a small perturbation", "distance", layer.length)
    return ReportPanel(
        "Nearby states, forwards",
        _with_theory(drawn, layer),
        "The distance of two copies with the same input, one perturbed: "
        f"{_fit_in_words(layer.forward, layer.length)} The theory is that of the gradient.",
        *_table(layer.forward),
    )


def loss_panel(layer: LayerDiagnosis, loss: Profile) -> ReportPanel:
    """The gradient of the user's loss with respect to the layer's states; a fit only where it reads the end alone."""
    share_read = layer.loss_steps
    at_end = share_read is not None and share_read * layer.info.mean_steps < 2
    if at_end:
        fitted = _fit_in_words(loss, layer.length)
    elif share_read is None:
        fitted = "the layer is called piece by piece, so the gradient from the last step is not known alone: no fit."
    else:
        fitted = (
            f"it enters at {share(share_read)} of the steps, so this is not what came back from the end alone: no fit."
        )
    return ReportPanel(
        "Gradient of your loss",
        _figure(loss, "steps back from the sequence's end", "gradient", layer.length, fit=at_end),
        f"The gradient of the loss with respect to the state, through the whole model: {fitted}",
        *_table(loss),
    )


def _figure(profile: Profile, x: str, y: str, length: int, fit: bool = True) -> go.Figure | None:
    lags, values = profile.lags.numpy(), drawable(decades(profile))
    shown = np.isfinite(values)
    if not shown.any():
        return None
    low, high = min(float(values[shown].min()), -0.5), max(float(values[shown].max()), 0.0)
    drawn = figure(x, f"{y}, 1 after one step", showlegend=True, legend=LEGEND)
    _add_band(drawn, profile, lags, values)
    _add_states(drawn, profile)
    _add_line(drawn, lags, values, BLUE, "measured", width=2.5)
    if fit:
        _add_fit(drawn, profile, lags, values)
    drawn.update_xaxes(range=[0, max(float(lags[-1]), 3.0) * 1.02])
    drawn.update_yaxes(**log_axis(low, high))
    lost = math.log10(RESOLUTION)
    if low < lost:
        drawn.add_hline(y=lost, line={"color": GREY, "dash": "dot", "width": 1})
        label = {"text": "lost in float32", "showarrow": False, "xanchor": "right", "yshift": 8}
        drawn.add_annotation(x=1, xref="paper", y=lost, **label)
    if length <= 1.02 * lags[-1]:
        drawn.add_vline(x=length, line={"color": GREY, "dash": "dash", "width": 1})
        label = {"text": f"T = {length}", "showarrow": False, "xanchor": "right", "xshift": -4, "yanchor": "bottom"}
        drawn.add_annotation(x=length, y=0, yref="paper", **label)
    return drawn


def _add_band(drawn: go.Figure, profile: Profile, lags: np.ndarray, values: np.ndarray) -> None:
    """One standard deviation over sequences to either side."""
    spread = profile.spread.numpy() / math.log(10)
    known = np.isfinite(values) & np.isfinite(spread)
    x, up, down = lags[known], (values + spread)[known], (values - spread)[known]
    drawn.add_scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([up, down[::-1]]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=_BAND,
        hoverinfo="skip",
        showlegend=False,
    )


def _add_states(drawn: go.Figure, profile: Profile) -> None:
    names = [name for name in profile.log_norm if name != "all"]
    for name, dash in zip(names if len(names) > 1 else [], ("dot", "dash", "dashdot"), strict=False):
        _add_line(drawn, profile.lags.numpy(), drawable(decades(profile, name)), GREY, name, 1.2, dash)


def _add_fit(drawn: go.Figure, profile: Profile, lags: np.ndarray, values: np.ndarray) -> None:
    """The fitted slope over its window, through the middle of the profile there."""
    rate = profile.rate.number()
    if profile.window is None or rate is None:
        return
    slope, ends = rate / math.log(10), np.array(profile.window)
    inside = np.isfinite(values) & (lags >= ends[0]) & (lags <= ends[1])
    offset = float((values[inside] - slope * lags[inside]).mean())
    _add_line(drawn, ends, offset + slope * ends, ORANGE, "fit", dash="dash")


def _with_theory(drawn: go.Figure | None, layer: LayerDiagnosis) -> go.Figure | None:
    """The theory's lines, where it has any, through 1 after one step."""
    untied, tied = layer.predicted.untied, layer.predicted.tied
    if drawn is None:
        return None
    if untied is not None:
        squares = untied.profile.numpy()
        alive = np.isfinite(squares) & (squares > 0)
        if len(squares) > 1 and alive[1]:
            x = np.flatnonzero(alive[1:]) + 1
            _add_theory(drawn, x, np.log10(squares[x] / squares[1]) / 2, "theory, untied", "dot")
    if tied is not None and (growth := tied.lyapunov.number()) is not None:
        along = np.linspace(1, float(drawn.layout.xaxis.range[1]), 200)
        _add_theory(drawn, along, growth / math.log(10) * (along - 1), "theory, tied", "dashdot")
    return drawn


def _add_theory(drawn: go.Figure, x: np.ndarray, y: np.ndarray, name: str, dash: str) -> None:
    """A line as far as the axes reach, which are those of what was measured."""
    (low, high), end = drawn.layout.yaxis.range, drawn.layout.xaxis.range[1]
    inside = (y >= low) & (y <= high) & (x <= end)
    _add_line(drawn, x[inside], y[inside], GREEN, name, dash=dash)


def _add_line(
    drawn: go.Figure, x: np.ndarray, y: np.ndarray, colour: str, name: str, width: float = 1.6, dash: str = "solid"
) -> None:
    drawn.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "width": width, "dash": dash},
        name=name,
        meta=LOG10,
        hovertemplate="%{x:.4g} steps: %{customdata}<extra>" + name + "</extra>",
    )


def _fit_in_words(profile: Profile, length: int) -> str:
    """xi with its fit, the reach, and T."""
    rate, window = profile.rate.number(), profile.window
    if rate is None or window is None:
        fit = f"ξ: {profile.xi.reason()}."
    else:
        off = f"fitted over steps {window[0]} to {window[1]}, off the line by {profile.misfit:.2g} in ln"
        each = math.exp(rate) * (profile.rate.error() or 0.0)
        known = profile.xi.number() is not None
        scale = f"ξ = {with_error(profile.xi)} steps" if known else "ξ is infinite: it does not fade"
        fit = f"{scale}; a factor {with_error_of(math.exp(rate), each)} each step, {off}."
    reach = profile.reach.number()
    known_reach = profile.reach.reason() if reach is None else steps(reach)
    return f"{fit} Its square is down to 1/e {'' if reach is None else 'after '}{known_reach}; T = {length:,}."


def _theory(layer: LayerDiagnosis) -> str:
    untied, tied, reason = layer.predicted.untied, layer.predicted.tied, layer.predicted.reason
    if untied is None:
        return f"Theory: {reason}."
    missing = untied.xi.reason()
    scale = f"no ξ ({missing})" if missing else f"ξ = {with_error(untied.xi)} steps"
    expected = f"Theory for its hyper-parameters, weights fresh at each step: reach {with_error(untied.reach)}, {scale}"
    if tied is not None and tied.lyapunov.number() is not None:
        expected += f"; one draw of weights: ln of the norm changes by {with_error(tied.lyapunov)} each step"
    return f"{expected}."


def _table(profile: Profile) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Some lags of the profile, by state."""
    names = tuple(profile.log_norm) if len(profile.log_norm) > 2 else ("all",)
    lags = profile.lags.tolist()
    columns = {name: decades(profile, name) for name in names}
    spread = profile.spread.numpy()
    wanted = [lag for lag in _TABLE if lag < lags[-1]] + [lags[-1]]
    chosen = sorted({int(np.argmin(np.abs(profile.lags.numpy() - lag))) for lag in wanted})
    rows = tuple(
        (
            str(lags[place]),
            *(power_of_ten(float(columns[name][place])) for name in names),
            "-" if math.isnan(spread[place]) else f"{spread[place]:.2g}",
        )
        for place in chosen
    )
    return ("steps", *("norm" if name == "all" else name for name in names), "sd of ln over sequences"), rows
