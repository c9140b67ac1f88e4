"""Gate statistics and time constants of a layer."""

from __future__ import annotations

import numpy as np

from isornn.diagnosis import LayerDiagnosis, Memory
from isornn.diagnosis.states import EDGE
from isornn.formatting import or_why, rounded, share, steps
from isornn.present.plotly import BLUE, GREEN, GREY, ORANGE, figure, figure_of
from isornn.present.time_constants import TITLE, time_constants_panel
from isornn.reports.panel import LEGEND, ReportPanel

_NEVER = 1e12  # steps: time constants above this are drawn there


def gates_panel(layer: LayerDiagnosis) -> ReportPanel:
    """Shares of closed and open gates, and their means."""
    title = "Gates"
    if not layer.gates:
        mixed = "One function of several pre-activations makes the cell's gates, so none has a value of its own."
        return ReportPanel(title, None, "The cell has no gates." if layer.memory.gate is None else mixed)
    names = list(layer.gates)
    gates = [layer.gates[name] for name in names]
    drawn = figure("share of values", "gate", barmode="stack", showlegend=True, legend={**LEGEND, "entrywidth": 110})
    parts = {
        f"closed, below {EDGE}": (ORANGE, [gate.closed for gate in gates]),
        "between": ("rgba(138, 145, 156, 0.35)", [1 - gate.saturated for gate in gates]),
        f"open, above {1 - EDGE}": (GREEN, [gate.open for gate in gates]),
    }
    for name, (colour, shares) in parts.items():
        drawn.add_bar(
            y=names,
            x=shares,
            orientation="h",
            name=name,
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.2%} " + name + "<extra></extra>",
        )
    drawn.add_scatter(
        y=names,
        x=[gate.mean for gate in gates],
        mode="markers",
        marker={"color": BLUE, "size": 11, "symbol": "diamond"},
        name="mean value",
        hovertemplate="%{y}: mean %{x:.3f}<extra></extra>",
    )
    drawn.update_xaxes(range=[0, 1], tickformat=".0%")
    drawn.update_yaxes(autorange="reversed", type="category", ticksuffix=" ")
    values = "; ".join(
        f"{name}: mean {gate.mean:.3g}, {share(gate.closed)} closed, {share(gate.open)} open"
        for name, gate in layer.gates.items()
    )
    return ReportPanel(
        title,
        drawn,
        f"{values}. Exact over all units, steps and sequences of this batch.",
        ("gate", "mean", f"closed (< {EDGE})", f"open (> {1 - EDGE})", "mean of u", "sd of u"),
        tuple(
            (
                name,
                f"{gate.mean:.4g}",
                share(gate.closed),
                share(gate.open),
                f"{gate.pre_activation_mean:.3g}",
                f"{gate.pre_activation_std:.3g}",
            )
            for name, gate in layer.gates.items()
        ),
    )


def time_scales_panel(memory: Memory) -> ReportPanel:
    """The share of units whose retention gate alone gives them a time constant of at least t steps."""
    if memory.time_constants is None:
        return ReportPanel(TITLE, None, f"None: {memory.under.reason()}.")
    found = np.minimum(np.sort(memory.time_constants.numpy()), _NEVER)
    drawn = figure_of(time_constants_panel(found, np.full(len(found), 1 / len(found)), memory.length, ""))
    drawn.add_vrect(x0=memory.length / 2, x1=2 * memory.length, fillcolor=GREY, opacity=0.15, line_width=0)
    shares = {name: share(getattr(memory, name).number()) for name in ("under", "near", "beyond")}
    kept = memory.through_gates
    alone = "" if kept is None else f" By gates alone e^({or_why(kept)}) of a gradient would be left after T steps."
    slowest = "for ever" if found[-1] >= _NEVER else steps(float(found[-1]))
    return ReportPanel(
        TITLE,
        drawn,
        f"-1 / ln of the factor by which gate {memory.gate} multiplies each unit's {memory.state} in a step, recurrent "
        f"weights not counted: {shares['under']} of the {len(found)} units under T / 2 = {rounded(memory.length / 2)} "
        f"steps, {shares['near']} near T, {shares['beyond']} beyond 2 T. Median {steps(float(np.median(found)))}, "
        f"longest {slowest}.{alone}",
        ("share of units", "time constant of at least"),
        tuple(
            (f"{part:.0%}", "for ever" if (scale := float(np.quantile(found, 1 - part))) >= _NEVER else steps(scale))
            for part in (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.01)
        ),
    )
