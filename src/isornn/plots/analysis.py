"""The picture of one analysis: how a change of the state fades, and where its reach ends."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isornn.files import replacing
from isornn.theory.records import Analysis, Tied

LOWEST = 1e-8  # of the response after the first step; what lies below is not drawn


def draw_analysis(analysis: Analysis, figure: Path, length: int | None = None) -> None:
    """The response ``P_t / P_1`` against t on a log scale, the line 1/e, and the reach, one step later in t.

    With tied networks in the analysis, beside it their E[h^2] and untied ones', from state 0, with 2 standard errors.
    Where the theory has no answer the figure says why.

    Args:
        analysis: of one spec, no batch.
        figure: where to; the ending (.png, .pdf, .svg) says the format. Written atomically.
        length: T, marked if given.

    Raises:
        OSError: the figure cannot be written there.
    """
    # A figure of its own, without pyplot: nothing global, and no display needed.
    tied = analysis.tied
    canvas = Figure(figsize=(7 if tied is None else 12, 4), layout="constrained")
    axes, *beside = canvas.subplots(1, 1 if tied is None else 2, squeeze=False)[0]
    if tied is not None:
        _moments(beside[0], tied)
    axes.set(title=_title(analysis), xlabel="steps t after the change", ylabel="response $P_t / P_1$")
    curve = _relative(analysis)
    if curve is None:
        axes.text(0.5, 0.5, _why(analysis), ha="center", va="center", transform=axes.transAxes, wrap=True)
        axes.set(xticks=[], yticks=[])
    else:
        _curve(axes, curve)
        _marks(axes, analysis, length)
    with replacing(figure) as new:
        canvas.savefig(new, dpi=150)


def _moments(axes: Axes, tied: Tied) -> None:
    """E[h^2] over time, tied and untied."""
    steps = np.arange(1, tied.steps + 1)
    for label, line, colour in (("tied", tied.second_moment, "#0072b2"), ("untied", tied.untied, "#d55e00")):
        value = np.where(line.defined.numpy() & (line.value.numpy() > 0), line.value.numpy(), np.nan)
        error = 2 * np.where(np.isnan(value), 0.0, line.stderr.numpy())
        axes.plot(steps, value, color=colour, label=label)
        axes.fill_between(steps, np.maximum(value - error, LOWEST), value + error, color=colour, alpha=0.3, lw=0)
    axes.set(title="weights drawn once, and redrawn each step", xlabel="steps t", ylabel="second moment $E[h_t^2]$")
    if bool((tied.second_moment.defined & (tied.second_moment.value > 0)).any()):
        axes.set_yscale("log")
    axes.legend(frameon=False)


def _relative(analysis: Analysis) -> np.ndarray | None:
    """``P_t / P_1`` for t = 1, 2, ...; ``None`` where there is no response."""
    profile = analysis.profile.numpy()
    if profile.ndim != 1 or len(profile) < 2 or not np.isfinite(profile[1]) or profile[1] <= 0:
        return None
    return np.asarray(profile[1:] / profile[1])


def _curve(axes: Axes, curve: np.ndarray) -> None:
    drawn = np.where(np.isfinite(curve) & (curve >= LOWEST), curve, np.nan)
    axes.plot(np.arange(1, len(curve) + 1), drawn, color="#0072b2", marker="." if len(curve) <= 30 else None)
    axes.set_yscale("log")
    last = int(np.flatnonzero(np.isfinite(drawn))[-1]) + 1
    axes.set_xlim(0, max(1.05 * last, 3))
    axes.axhline(1 / math.e, color="black", lw=0.8, ls=":")
    axes.annotate(
        "1/e", (1, 1 / math.e), xycoords=("axes fraction", "data"), xytext=(3, -3), textcoords="offset points"
    )


def _marks(axes: Axes, analysis: Analysis, length: int | None) -> None:
    reach = analysis.reach.number()
    _, end = axes.get_xlim()
    if reach is None:
        axes.text(0.5, 0.04, _why(analysis), ha="center", transform=axes.transAxes, fontsize=8, wrap=True)
    else:
        label = f"reach {reach:.4g} steps" + ("" if 1 + reach <= end else ", beyond what is drawn")
        axes.plot([1 + reach], [1 / math.e], "o", color="#d55e00", label=label)
    if length is not None:
        axes.axvline(length, color="black", lw=0.8, ls="--", label=f"T = {length}")
    axes.set_xlim(0, end)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)


def _why(analysis: Analysis) -> str:
    return analysis.reach.reason() or "nothing is left of a change after one step"


def _title(analysis: Analysis) -> str:
    return f"{analysis.spec.cell.name}: how a change of the state fades"
