"""The demo's figure: loss by update, and accuracy against the predicted reach of each start."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from isornn.experiments.demo_record import DemoResult, DemoRun
from isornn.present.matplotlib import Drawing, save

_CHANCE = 0.1
_COLOURS = ("#777777", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")  # apart for colour-blind eyes too
_NAMES = {"torch": "torch's default", "standard": "standard", "chrono": "chrono", "critical": "critical"}


def draw_demo(record: Path, figure: str | Path | None = None) -> Drawing:
    """Left the loss of each start against updates; right the accuracy against the reach predicted before training.

    Where the record lacks the reach of a start, the right half shows bars instead.

    Args:
        record: the file that `isornn.experiments.demo.run_demo` wrote; it holds at least one run.
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.

    Returns:
        The figure, which a notebook shows.

    Raises:
        RecordError: not such a record, or one without runs.
        OSError: the figure cannot be written there.

    >>> import tempfile
    >>> from isornn.experiments.demo import RECORD, run_demo
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = run_demo(length=5, updates=1, out=Path(folder))
    ...     len(draw_demo(Path(folder) / RECORD).axes)
    2
    """
    result = DemoResult.load(record)
    # A figure of its own, without pyplot: nothing global, and no display needed.
    canvas = Drawing(figsize=(10, 4), layout="constrained")
    losses, accuracies = canvas.subplots(1, 2, width_ratios=(3, 2))
    _losses(losses, result)
    if all(_reach(result, run) for run in result.runs):
        _against_reach(accuracies, result)
    else:
        _bars(accuracies, result)
    settings = result.settings
    canvas.suptitle(
        f"nn.LSTM of {settings.hidden} units, {settings.data} at t = 1, noise up to T = {settings.length}", fontsize=11
    )
    return save(canvas, figure)


def _losses(axes: Axes, result: DemoResult) -> None:
    window = max(1, result.settings.updates // 40)
    for run, colour in zip(result.runs, _colours(result), strict=True):
        axes.plot(*_smoothed(run, window), color=colour, label=_label(run))
    axes.axhline(math.log(1 / _CHANCE), color="black", lw=0.8, ls=":", label="chance")
    axes.set(xlabel="update", ylabel=f"cross entropy, mean of {window} updates", ylim=(0, None))
    axes.set_xlim(0, result.settings.updates)
    axes.legend(frameon=False)


def _against_reach(axes: Axes, result: DemoResult) -> None:
    reaches = [_reach(result, run) for run in result.runs]
    for run, reach, colour in zip(result.runs, reaches, _colours(result), strict=True):
        axes.errorbar(reach, run.accuracy, yerr=_spread(run), fmt="o", ms=8, color=colour)
    needed = result.settings.length - 1
    axes.axvline(needed, color="black", lw=0.8, ls="--")
    axes.text(needed, 0.5, " the digit's distance ", rotation=90, va="center", ha="right", fontsize=8)
    axes.set(xscale="log", xlabel="predicted reach before training (steps)")
    axes.set_xlim(min(*reaches, 1.0) / 2, max(*reaches, needed) * 3)
    _accuracy_axis(axes)


def _bars(axes: Axes, result: DemoResult) -> None:
    spread = np.hstack([_spread(run) for run in result.runs])
    places = range(len(result.runs))
    axes.bar(places, [run.accuracy for run in result.runs], yerr=spread, color=_colours(result), width=0.6)
    for place, run in zip(places, result.runs, strict=True):
        axes.text(place, run.accuracy + 0.03, f"{run.accuracy:.2f}", ha="center")
    axes.set_xticks(places, [_label(run).replace(" ", "\n") for run in result.runs])
    _accuracy_axis(axes)


def _accuracy_axis(axes: Axes) -> None:
    axes.axhline(_CHANCE, color="black", lw=0.8, ls=":")
    axes.set(ylabel="accuracy on held-out digits", ylim=(0, 1.05))


def _smoothed(run: DemoRun, window: int) -> tuple[np.ndarray, np.ndarray]:
    mean = np.convolve(run.losses, np.full(window, 1 / window), mode="valid")
    return np.arange(len(mean)) + (window + 1) / 2, mean


def _spread(run: DemoRun) -> np.ndarray:
    """Down to the worst and up to the best draw of noise, (2, 1)."""
    # Rounding may put the mean of equal numbers a bit outside them.
    ends = [run.accuracy - min(run.accuracies), max(run.accuracies) - run.accuracy]
    return np.maximum(ends, 0.0)[:, None]


def _reach(result: DemoResult, run: DemoRun) -> float:
    """0 where there is none."""
    return result.predicted.get(run.start) or 0.0


def _colours(result: DemoResult) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(len(result.runs))]


def _label(run: DemoRun) -> str:
    return _NAMES.get(run.start, run.start)
