"""A figure of a report, with what it says in words and in numbers, for those who do not see it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": {"size": 11}, "entrywidth": 78}

LOG10 = "log10"
"""`meta` of a curve that is drawn by its decimal logarithm: the page's script writes its values as labels."""


@dataclass(frozen=True)
class ReportPanel:
    """One figure.

    Args:
        title: what is measured.
        figure: ``None`` where there is nothing to draw; the caption then says why.
        caption: what is shown, with its numbers, for readers who do not see the figure.
        columns, rows: the numbers of the figure as a table.
    """

    title: str
    figure: go.Figure | None
    caption: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Ticks of an axis that shows log10 of something on a linear scale, so that 1e-1000 has a place on it too.

    >>> log_axis(-200, 0)["ticktext"]
    ['1e-200', '1e-150', '1e-100', '1e-50', '1']
    >>> log_axis(-0.5, 0)["ticktext"]
    ['0.5', '1']
    """
    span = high - low
    room = {"range": [low - 0.05 * span - 0.02, high + 0.05 * span + 0.02]}
    if span < 2:
        values = [m * 10.0**k for k in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)]
        inside = [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]
        return {**room, "tickvals": [math.log10(v) for v in inside], "ticktext": [f"{v:g}" for v in inside]}
    between = next(step for k in range(9) for m in (1, 2, 5) if span / (step := m * 10**k) <= 6)
    powers = range(math.ceil(low / between) * between, math.floor(high) + 1, between)
    return {**room, "tickvals": list(powers), "ticktext": ["1" if power == 0 else f"1e{power}" for power in powers]}
