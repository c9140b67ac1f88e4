"""The figures of one analysis: the response to a perturbation of the state, and E[h^2] of tied networks over time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from isornn.figures import Curve, Mark, Panel
from isornn.formatting import with_error
from isornn.present.matplotlib import Drawing, draw_panels
from isornn.theory.records import Analysis, Tied

_LOWEST = 1e-6  # of the response after the first step; smaller values are not drawn
_POINTS = 400


def draw_analysis(analysis: Analysis, figure: str | Path | None = None, length: int | None = None) -> Drawing:
    """`response_panel`, and with tied networks in the analysis `tied_panel` as well, as a figure.

    Args:
        analysis: of one spec, no batch.
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.
        length: T, marked if given.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> from isornn.theory import analyze
    >>> drawing = draw_analysis(analyze(Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.1)})), length=20)
    >>> len(drawing.axes)
    1
    """
    tied = [] if analysis.tied is None else [tied_panel(analysis.tied)]
    return draw_panels("", [response_panel(analysis, length), *tied], figure)


def response_panel(analysis: Analysis, length: int | None = None) -> Panel:
    """``P_t / P_1`` against t on a log scale, the level 1/e, the reach (one step later in t), and the length T.

    Where there is no response to draw the caption says why.
    """
    title, x, y = f"{analysis.spec.cell.name}: response to a perturbation of the state", "steps t", "response Pₜ / P₁"
    steps, response, error = _response(analysis)
    if not len(steps):
        return Panel(title, x, y, caption=analysis.reach.reason() or "Nothing is left of a change after one step.")
    end = max(1.05 * float(steps[-1]), 3.0)
    low = min(float(response[response > 0].min()), 0.2)
    sampled = analysis.engine == "population"
    band = (2 * error).tolist() if sampled else None
    curves = [Curve(steps.tolist(), response.tolist(), error=band, hover="t = %{x}: %{y:.3g}")]
    reach = analysis.reach.number()
    if reach is not None and 1 + reach <= end:
        spread, known = analysis.reach.error() or 0.0, f"reach {with_error(analysis.reach)} steps"
        curves.append(Curve([1 + reach], [1 / math.e], known, "points", x_error=[2 * spread], hover=known))
    marks = [Mark("y", 1 / math.e, "1/e")]
    if length is not None and length <= end:
        marks.append(Mark("x", length, f"T = {length}", "dashed"))
    spans = (0.0, end), (low / 1.2, max(1.0, float(response.max())) * 1.2)
    bars = " Sampled: bar and band are two standard errors." if sampled else ""
    caption = (
        "Response to a small perturbation of the state, relative to its value after one step. "
        f"Reach: {with_error(analysis.reach)}.{bars}"
    )
    return Panel(title, x, y, curves, marks=marks, log=["y"], x_range=spans[0], y_range=spans[1], caption=caption)


def tied_panel(tied: Tied) -> Panel:
    """E[h^2] over time from state 0 with two standard errors, with tied and with untied weights."""
    curves = []
    for label, line in (("tied", tied.second_moment), ("untied", tied.untied)):
        value = np.where(line.defined.numpy() & (line.value.numpy() > 0), line.value.numpy(), np.nan)
        error = 2 * np.where(np.isnan(value), 0.0, line.stderr.numpy())
        curves.append(Curve(np.arange(1, tied.steps + 1).tolist(), value.tolist(), label, error=error.tolist()))
    positive = bool((tied.second_moment.defined & (tied.second_moment.value > 0)).any())
    title = "weights drawn once, and redrawn at each step"
    return Panel(title, "steps t", "second moment E[hₜ²]", curves, log=["y"] if positive else [])


def _response(analysis: Analysis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, ``P_t / P_1`` and the standard errors of P_t over P_1, as far as they are finite and not negligible; at
    most `_POINTS` of them."""
    profile = analysis.profile.numpy()
    if profile.ndim != 1 or len(profile) < 2 or not np.isfinite(profile[1]) or profile[1] <= 0:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    response, error = profile[1:] / profile[1], analysis.profile_stderr.numpy()[1:] / profile[1]
    drawn = np.isfinite(response) & (response >= _LOWEST)
    last = len(response) if drawn.all() else max(int(np.argmin(drawn)), 1)
    steps = np.unique(np.geomspace(1, last, _POINTS).round().astype(int) if last > _POINTS else np.arange(1, last + 1))
    return steps, response[steps - 1], error[steps - 1]
