"""The figure of the units' time constants: which share of them retains for at least t steps."""

from __future__ import annotations

import numpy as np

from isornn.figures import Curve, Mark, Panel, Style

TITLE, X, Y = "Time constants of units", "time constant t, steps", "share of units with at least t"
_DRAWN_AS_STEPS = 20  # time constants, up to which the curve has its steps


def time_constants_panel(constants: np.ndarray, share: np.ndarray, length: int, caption: str) -> Panel:
    """The share of units whose time constant is at least t, against t on a log scale.

    Args:
        constants: rising, in steps, finite.
        share: of all units that each represents; sums to 1.
        length: T, marked.
    """
    low, high = min(float(constants[0]), 1.0) / 1.5, max(1.5 * float(constants[-1]), 2.5 * length)
    # Just up to each constant the share still counts the units that have it, which "steps" draws.
    x = np.concatenate([[low], constants, [high]])
    at_least = np.concatenate([[1.0], np.clip(1 - np.cumsum(share) + share, 0.0, 1.0), [0.0]])
    style: Style = "steps" if len(constants) <= _DRAWN_AS_STEPS else "line"
    hover = "%{y:.1%} of units have at least %{x:.3g} steps"
    return Panel(
        TITLE,
        X,
        Y,
        [Curve(x.tolist(), at_least.tolist(), style=style, filled=True, hover=hover)],
        marks=[Mark("x", length, f"T = {length}", "dashed")],
        log=["x"],
        x_range=(low, high),
        y_range=(0.0, 1.05),
        percent=["y"],
        caption=caption,
    )
