"""The correlation map as a cobweb: how two sequences' states come together or part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import torch

from isornn.cells import Spec
from isornn.plots.interactive import BLUE, GREEN, GREY, ORANGE, figure
from isornn.theory import TheoryMissing, correlation_map, moment_dynamics
from isornn.words import rounded

POINTS, STEPS, SEED = 81, 40, 0
_FAINT = 1e-3  # of C: steps smaller than this are not drawn


@dataclass(frozen=True)
class Cobweb:
    """The map ``C -> C'`` at the fixed point's moments, and correlations step by step.

    Args:
        c, image: points of the map, empty where the next correlation is not a function of C alone; ``why`` says so.
        orbit, stderr: C_0, C_1, ... of two copies whose states are independent at first, and standard errors.
        stable: C* and its standard error.
    """

    c: np.ndarray
    image: np.ndarray
    why: str
    orbit: np.ndarray
    stderr: np.ndarray
    stable: tuple[float, float]


def cobweb_of(spec: Spec, second_moment: float, stable: tuple[float, float]) -> Cobweb:
    """The map where there is one, else the correlation followed step by step, which needs no map.

    Args:
        second_moment: Q at the fixed point; the copies start with states of this variance.
        stable: C* and its standard error.
    """
    low = -1.0 if min(float(spec.input.correlation), stable[0]) < -1e-3 else 0.0
    c = torch.linspace(low, 1, POINTS, dtype=torch.float64)
    try:
        image = correlation_map(spec, c).numpy()
    except TheoryMissing as reason:
        generator = torch.Generator().manual_seed(SEED)
        path = moment_dynamics(spec, STEPS, initial_variance=second_moment, generator=generator)
        known = int(path.correlation_defined.cumprod(-1).sum())
        orbit, error = path.correlation[:known].numpy(), path.stderr["correlation"][:known].numpy()
        return Cobweb(np.zeros(0), np.zeros(0), str(reason), orbit, error, stable)
    orbit = _iterated(c.numpy(), image, 0.0)
    return Cobweb(c.numpy(), image, "", orbit, np.zeros_like(orbit), stable)


def cobweb_figure(found: Cobweb) -> go.Figure:
    """C' against C with the diagonal, the map, the path from C = 0, and the stable correlation."""
    drawn = figure("correlation C now", "one step later")
    low = min([0.0, *found.c, *(found.orbit - found.stderr)])
    drawn.add_scatter(x=[low, 1], y=[low, 1], mode="lines", line={"color": GREY, "width": 1}, hoverinfo="skip")
    if len(found.c):
        drawn.add_scatter(
            x=found.c,
            y=found.image,
            mode="lines",
            line={"color": BLUE, "width": 2.5},
            hovertemplate="C = %{x:.3f}: %{y:.3f}<extra></extra>",
        )
    _path(drawn, found)
    c, error = found.stable
    drawn.add_scatter(
        x=[c],
        y=[c],
        mode="markers",
        marker={"color": GREEN, "size": 11},
        error_x={"array": [2 * error], "color": GREEN},
        hovertemplate=f"stable: C* = {rounded(c, error)}<extra></extra>",
    )
    room = 0.04 * (1 - low)
    drawn.update_xaxes(range=[low - room, 1 + room], constrain="domain")
    drawn.update_yaxes(range=[low - room, 1 + room], scaleanchor="x", constrain="domain")
    return drawn


def _path(drawn: go.Figure, found: Cobweb) -> None:
    """Up to the next value, across to the diagonal, and on; sampled values with two standard errors."""
    orbit = found.orbit
    if len(orbit) < 2:
        return
    x, y = np.repeat(orbit, 2)[:-1], np.concatenate([orbit[:1], np.repeat(orbit[1:], 2)])
    drawn.add_scatter(x=x, y=y, mode="lines", line={"color": ORANGE, "width": 1.2}, hoverinfo="skip")
    if not len(found.c):
        drawn.add_scatter(
            x=orbit[:-1],
            y=orbit[1:],
            mode="markers",
            marker={"color": BLUE, "size": 6},
            error_x={"array": 2 * found.stderr[:-1], "color": BLUE, "thickness": 1, "width": 2},
            error_y={"array": 2 * found.stderr[1:], "color": BLUE, "thickness": 1, "width": 2},
            hovertemplate="C = %{x:.3f}: %{y:.3f}<extra></extra>",
        )


def cobweb_caption(found: Cobweb) -> str:
    """What is drawn, and how sure it is."""
    c, error = found.stable
    stable = f"C* = {rounded(c, error)}" + (f" ± {error:.2g}" if error else "")
    if len(found.c):
        return f"Two states independent at first, step by step, along the map (exact). Stable: {stable}."
    sampled = "; bars are two standard errors" if found.stderr.any() else ""
    return (
        f"Two states independent at first, followed for {len(found.orbit) - 1} steps{sampled}. Stable: {stable}. "
        f"No curve: {found.why}."
    )


def _iterated(c: np.ndarray, image: np.ndarray, start: float) -> np.ndarray:
    """The path from ``start`` along the map, read between its points; as far as steps can be seen."""
    path = [start]
    while len(path) <= STEPS:
        path.append(float(np.interp(path[-1], c, image)))
        if abs(path[-1] - path[-2]) < _FAINT:
            break
    return np.array(path)
