"""What all figures on pages share. Text and grid take their colours from the page's style sheet, dark or light."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go

BLUE, ORANGE, GREEN, GREY = "#3f83e0", "#d9691a", "#1f9a73", "#8a919c"  # read on white and on black


def figure(x: str, y: str, **layout: Any) -> go.Figure:
    """An empty figure with named axes."""
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    drawn = go.Figure()
    drawn.update_layout(
        template=None,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
        xaxis={**axis, "title": {"text": x, "standoff": 8}},
        yaxis={**axis, "title": {"text": y, "standoff": 8}},
        showlegend=False,
        hovermode="closest",
        uirevision="kept",
    )
    drawn.update_layout(**layout)
    return drawn


def blank() -> go.Figure:
    """Nothing to see: what would be drawn does not exist, or is not known yet."""
    return figure("", "", xaxis={"visible": False}, yaxis={"visible": False})


def as_json(drawn: go.Figure) -> dict[str, Any]:
    """The figure as plain numbers, which travel between processes and to the page."""
    return json.loads(drawn.to_json())
