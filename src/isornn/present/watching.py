"""Figures of a `Monitor`'s record: gradients by lag, and singular values, over training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes

from isornn.diagnosis import LayerRecord, TrainingRecord
from isornn.present.matplotlib import COLOURS, NOTHING, Drawing, edges, grid, save, say

_HEIGHT = 256  # rows of a heat map
_ACROSS = 3  # the most panels in a row
_LINE = 60  # characters of a summary above one panel
_LEAST, _MOST = 1e-3, 8.0  # decades that colours span: rounding is no pattern, and what is gone has one colour

Array = np.ndarray
_Titled = tuple[str, Callable[[Axes], None]]  # of a panel: its title, and what draws it


def draw_watch(record: TrainingRecord, file: str | Path | None = None) -> Drawing:
    """The record's summary, then for every layer and direction its gradients (`draw_gradients`) and singular values.

    Args:
        file: also written there, atomically; the ending (.png, .pdf, .svg) says the format.

    Returns:
        The figure, which a notebook shows.

    Raises:
        ValueError: the record has no layer.
        OSError: the figure cannot be written there.

    >>> import torch
    >>> from isornn.diagnosis import Monitor
    >>> rnn = torch.nn.GRU(3, 8)
    >>> with Monitor(rnn, every=1) as monitor:
    ...     for _ in range(2):
    ...         rnn(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> [axes.get_xlabel() for axes in draw_watch(monitor.record).axes[:2]]
    ['iteration', 'iteration']
    """
    panels = [panel for layer in record.layers for panel in (_gradients(record, layer), _spectra(record, layer))]
    return _draw(panels, 2, file, record.summary)


def draw_gradients(records: Mapping[str, TrainingRecord], file: str | Path | None = None) -> Drawing:
    """||dL_T/ds_t|| over iterations (across) and t (upward), in decades below its largest value at that iteration.

    s are all states of the layer together, as for xi: an LSTM's gradient comes back through c, not through h.

    Args:
        records: by title, a panel for each of their layers; those of one figure share no scale.
        file: as in `draw_watch`.

    Returns:
        As `draw_watch`.

    Raises:
        ValueError: there is no layer.
        OSError: the figure cannot be written there.

    Source: Vorontsov et al. 2017, figure 2.

    >>> import torch
    >>> from isornn.diagnosis import Monitor
    >>> rnn = torch.nn.GRU(3, 8)
    >>> with Monitor(rnn, every=1) as monitor:
    ...     for _ in range(2):
    ...         rnn(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> [axes.get_title() for axes in draw_gradients({"gru": monitor.record}).axes]  # and its scale
    ['gru', '']
    """
    return _draw([_gradients(record, layer, title) for title, record, layer in _each(records)], _ACROSS, file)


def draw_singular_values(records: Mapping[str, TrainingRecord], file: str | Path | None = None) -> Drawing:
    """Mean, standard deviation about it, smallest and largest singular value over iterations, and a margin's bounds.

    Args:
        records, file: as in `draw_gradients`.

    Returns:
        As `draw_watch`.

    Raises:
        ValueError: there is no layer.
        OSError: the figure cannot be written there.

    Source: Vorontsov et al. 2017, figure 3.

    >>> import torch
    >>> from isornn.diagnosis import Monitor
    >>> rnn = torch.nn.GRU(3, 8)
    >>> with Monitor(rnn, every=1) as monitor:
    ...     for _ in range(2):
    ...         rnn(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> [axes.get_title() for axes in draw_singular_values({"gru": monitor.record}).axes]
    ['gru']
    """
    return _draw([_spectra(record, layer, title) for title, record, layer in _each(records)], _ACROSS, file)


def normalised(layer: LayerRecord) -> tuple[Array, Array]:
    """t (H,), at most 256 of 0 .. T, and log10 ||dL_T/ds_t|| at every iteration less its largest value, (H, I).

    Between the recorded steps it is interpolated; NaN where it is exactly 0, was not measured, or t is beyond the
    iteration's sequences.
    """
    values = layer.last.get("all", np.zeros((len(layer.lags), 0))) / math.log(10)
    longest = int(layer.lags.max(initial=0))
    times = np.linspace(0, longest, min(longest + 1, _HEIGHT))
    rows = np.full((len(values), len(times)), np.nan)
    for row, lags, found in zip(rows, layer.lags, values, strict=True):
        here = (lags >= 0) & np.isfinite(found)
        if here.any():
            steps = lags.max()
            inside = times <= steps
            own = steps - lags[here][::-1]
            known = np.interp(times[inside], own, found[here][::-1], left=np.nan, right=np.nan)
            row[inside] = known - found[here].max()
    return times, rows.T


def _each(records: Mapping[str, TrainingRecord]) -> Sequence[tuple[str, TrainingRecord, LayerRecord]]:
    return [
        (title if len(record.layers) == 1 else f"{title}, {layer.name}", record, layer)
        for title, record in records.items()
        for layer in record.layers
    ]


def _gradients(record: TrainingRecord, layer: LayerRecord, title: str | None = None) -> _Titled:
    def draw(axes: Axes) -> None:
        times, values = normalised(layer)
        axes.set(xlabel="iteration", ylabel="t")
        if not np.isfinite(values).any():
            return say(axes, next((reason for reason in layer.reasons if reason), "nothing was watched"))
        axes.set_facecolor(NOTHING)
        lowest = float(np.clip(np.nanmin(values), -_MOST, -_LEAST))
        borders = edges(record.iterations), edges(times)
        mesh = axes.pcolormesh(*borders, values, cmap="viridis", vmin=lowest, vmax=0, rasterized=True)
        states = [state for state in layer.last if state != "all"]
        state = states[0] if len(states) == 1 else "(" + ", ".join(states) + ")"
        beyond = "min" if np.nanmin(values) < lowest else "neither"
        axes.figure.colorbar(
            mesh, ax=axes, extend=beyond, label=rf"$\log_{{10}}$ of $\|dL_T/d{state}_t\|$ over its largest"
        )

    return title or f"{layer.name}: gradients", draw


def _spectra(record: TrainingRecord, layer: LayerRecord, title: str | None = None) -> _Titled:
    def draw(axes: Axes) -> None:
        axes.set(xlabel="iteration", ylabel="singular values")
        if not layer.singular_values:
            return say(axes, next((reason for reason in layer.reasons if reason), "nothing was watched"))
        for place, (gate, values) in enumerate(layer.singular_values.items()):
            colour = COLOURS[place % len(COLOURS)]
            mean, std, smallest, largest = values.T
            axes.plot(record.iterations, mean, color=colour, label=f"{gate}: mean")
            low, high = np.maximum(mean - std, smallest), np.minimum(mean + std, largest)
            axes.fill_between(record.iterations, low, high, color=colour, alpha=0.25, lw=0)
            for extreme in (smallest, largest):
                axes.plot(record.iterations, extreme, color=colour, lw=0.8, ls="--")
        margins = next(iter(layer.margins.values()))
        bounded = np.where(np.isfinite(margins), margins, np.nan)
        if np.isfinite(bounded).any():
            axes.plot(record.iterations, 1 + bounded, color="black", lw=0.8, ls=":", label="margin")
            axes.plot(record.iterations, np.maximum(1 - bounded, 0), color="black", lw=0.8, ls=":")
        # Not closer than rounding: of an orthogonal matrix all are 1.
        low, high = axes.get_ylim()
        centre = (low + high) / 2
        axes.set_ylim(min(low, centre - _LEAST), max(high, centre + _LEAST))
        axes.ticklabel_format(useOffset=False)
        axes.legend(framealpha=0.9, edgecolor="none", fontsize="small")

    return title or f"{layer.name}: singular values", draw


def _draw(panels: Sequence[_Titled], across: int, file: str | Path | None, summary: str | None = None) -> Drawing:
    if not panels:
        raise ValueError("record: it has no layer to draw")
    canvas, axes = grid(len(panels), min(len(panels), across), (4.4, 3.2))
    for one, (title, draw) in zip(axes, panels, strict=True):
        one.set_title(title)
        draw(one)
    if summary is not None:
        canvas.suptitle(fill(summary, _LINE * across), x=0.01, ha="left", fontsize="medium")
    return save(canvas, file)
