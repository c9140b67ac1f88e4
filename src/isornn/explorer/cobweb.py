"""The correlation map as a cobweb: whether the states of two sequences converge or diverge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from isornn.cells import Spec
from isornn.figures import Curve, Panel
from isornn.formatting import rounded, with_error_of
from isornn.theory import TheoryMissing, correlation_map, moment_dynamics

POINTS, STEPS, SEED = 81, 40, 0
_BLUE, _ORANGE, _GREEN, _GREY = 0, 1, 2, 7  # colours of curves
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


def cobweb_panel(found: Cobweb) -> Panel:
    """C' against C with the diagonal, the map, the path from C = 0, and the stable correlation."""
    low = min([0.0, *found.c, *(found.orbit - found.stderr)])
    c, error = found.stable
    span = (low - 0.04 * (1 - low), 1 + 0.04 * (1 - low))
    return Panel(
        "correlation map",
        "correlation C now",
        "one step later",
        [
            Curve([low, 1], [low, 1], colour=_GREY, style="dotted"),
            *_map(found),
            *_path(found),
            Curve(
                [c], [c], "", "points", x_error=[2 * error], colour=_GREEN, hover=f"stable: C* = {rounded(c, error)}"
            ),
        ],
        x_range=span,
        y_range=span,
        caption=cobweb_caption(found),
    )


def _map(found: Cobweb) -> list[Curve]:
    hover = "C = %{x:.3f}: %{y:.3f}"
    return [Curve(found.c.tolist(), found.image.tolist(), colour=_BLUE, hover=hover)] if len(found.c) else []


def _path(found: Cobweb) -> list[Curve]:
    """Up to the next value, across to the diagonal, and on; sampled values with two standard errors."""
    orbit = found.orbit
    if len(orbit) < 2:
        return []
    x, y = np.repeat(orbit, 2)[:-1], np.concatenate([orbit[:1], np.repeat(orbit[1:], 2)])
    path = Curve(x.tolist(), y.tolist(), colour=_ORANGE)
    if len(found.c):
        return [path]
    two, now, later = (2 * found.stderr).tolist(), orbit[:-1].tolist(), orbit[1:].tolist()
    return [path, Curve(now, later, "", "points", error=two[1:], x_error=two[:-1], colour=_BLUE)]


def cobweb_caption(found: Cobweb) -> str:
    """What is drawn, with its uncertainty."""
    c, error = found.stable
    stable = f"C* = {with_error_of(c, error)}"
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
