"""The figure of a subspace of hyper-parameters: the costs of its points, the Pareto front, and the chosen point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from isornn.present.matplotlib import Drawing, save
from isornn.theory.critical_points.front import Objective, ParetoFront

SCORE = "score"
LABELS = {
    SCORE: "weighted sum of the costs",
    "sight": r"sight: $\ln(T/\mathrm{reach})$ or $\ln(T/\xi)$, at least 0",
    "isometry": r"isometry: $T\,|m_1 - 1|$",
    "variance": r"variance: $T\,(m_2 - m_1^2)$",
    "time_scales": r"time scales: distance of $\ln\tau$ from $\ln U(1, T)$",
    "saturation": "saturation: ln of largest over rms slope of the gates",
}
_GREY = "#aaaaaa"
_WIDE = 30.0  # ratio of largest to smallest cost from which colours are logarithmic
_DECADES = 1e-3  # of the largest cost: smaller costs have one colour


def draw_front(
    front: ParetoFront,
    x: str,
    y: str,
    figure: str | Path | None = None,
    *,
    show: str = SCORE,
    objective: Objective | None = None,
    taken: int | None = None,
) -> Drawing:
    """The points of a front's subspace over two of its fields, coloured by cost.

    Points whose reach is at least T, beyond its error, are coloured (or, without any such point, all that have
    values); the others are grey. The front is ringed; a star marks the point ``taken``.

    Args:
        x, y: paths of two of the front's ranges; points differ in the other fields too.
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.
        show: ``"score"`` or a name of `isornn.theory.COSTS` that the cell has.
        objective: whose score; with equal weights where none is given.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> from isornn.cells import Gate, Peephole, Spec
    >>> from isornn.theory import Range, pareto_front
    >>> base = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
    >>> ranges = [Range("f.bias_mean", 2.0, 7.0), Range("f.weight_var", 1e-3, 1.0, log=True)]
    >>> drawing = draw_front(pareto_front(base, 50, ranges, specs=16), "f.bias_mean", "f.weight_var")
    >>> drawing.axes[0].get_xlabel()
    'f.bias_mean'
    """
    ranges = {r.path: (r, column.numpy()) for r, column in zip(front.ranges, front.points.T, strict=True)}
    (across, xs), (upward, ys) = ranges[x], ranges[y]
    cost = (objective or Objective()).score(front.costs) if show == SCORE else front.costs[show]
    known = (front.compared & cost.defined).numpy()
    value, sight = cost.value.numpy(), front.costs["sight"]
    sees = known & (sight.value + sight.stderr == 0).numpy()
    coloured = sees if sees.any() else known
    canvas = Drawing(figsize=(7, 5), layout="constrained")
    axes = canvas.subplots()
    short = known & ~coloured
    axes.scatter(xs[~known], ys[~known], s=14, c=_GREY, marker="x", lw=0.8, label="no fixed point, or no such number")
    axes.scatter(xs[short], ys[short], s=9, c=_GREY, label="reach below T")
    if coloured.any():
        scale, lowest = _scale(value[coloured])
        shown = np.maximum(value[coloured], lowest)
        label = "reach at least T" if sees.any() else "reach below T in all"
        drawn = axes.scatter(xs[coloured], ys[coloured], s=34, c=shown, norm=scale, cmap="viridis_r", label=label)
        canvas.colorbar(drawn, ax=axes, label=LABELS[show])
    on = front.front.numpy()
    axes.scatter(xs[on], ys[on], s=70, facecolors="none", edgecolors="black", lw=0.9, label="Pareto front")
    if taken is not None:
        axes.scatter(xs[taken], ys[taken], s=260, marker="*", c="#d55e00", edgecolors="white", lw=0.8, label="taken")
    axes.set(xlabel=x, ylabel=y, title=f"{front.spec.cell.name}: specs that should see {front.length:g} steps")
    axes.set_xscale("log" if across.log else "linear")
    axes.set_yscale("log" if upward.log else "linear")
    canvas.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return save(canvas, figure)


def _scale(value: np.ndarray) -> tuple[Normalize, float]:
    """Colours for costs, which are at least 0, and the smallest that has one of its own."""
    low, high = float(value.min()), float(value.max())
    if high <= _WIDE * low or high == 0:
        return Normalize(low, high), low
    low = max(low, _DECADES * high)
    return LogNorm(low, high), low
