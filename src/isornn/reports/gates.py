"""Gate statistics and time constants of a layer."""

from __future__ import annotations

import math

import numpy as np

from isornn.diagnosis import LayerDiagnosis, Memory
from isornn.diagnosis.states import EDGE
from isornn.formatting import rounded, share, steps
from isornn.present.plotly import BLUE, GREEN, GREY, ORANGE, figure
from isornn.reports.panel import LEGEND, Panel

_NEVER = 1e12  # steps: a unit that keeps all but one part in so many is drawn as one that never forgets


def gates_panel(layer: LayerDiagnosis) -> Panel:
    """Shares of closed and open gates, and their means."""
    title = "Gates"
    if not layer.gates:
        mixed = "One function of several pre-activations makes the cell's gates, so none has a value of its own."
        return Panel(title, None, "The cell has no gates." if layer.memory.gate is None else mixed)
    names = list(layer.gates)
    gates = [layer.gates[name] for name in names]
    drawn = figure("share of values", "gate", barmode="stack", showlegend=True, legend={**LEGEND, "entrywidth": 110})
    parts = {
        f"closed, below {EDGE}": (ORANGE, [gate.closed for gate in gates]),
        "between": ("rgba(138, 145, 156, 0.35)", [1 - gate.saturated for gate in gates]),
        f"open, above {1 - EDGE}": (GREEN, [gate.open for gate in gates]),
    }
    for name, (colour, values) in parts.items():
        drawn.add_bar(
            y=names,
            x=values,
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
    told = "; ".join(
        f"{name}: mean {gate.mean:.3g}, {share(gate.closed)} closed, {share(gate.open)} open"
        for name, gate in layer.gates.items()
    )
    return Panel(
        title,
        drawn,
        f"{told}. Exact over all units, steps and sequences of this batch.",
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


def time_scales_panel(memory: Memory) -> Panel:
    """The share of units whose remember gate alone keeps them for at least t steps, beside T."""
    title = "Time constants of units"
    if memory.time_constants is None:
        return Panel(title, None, f"None: {memory.under.reason()}.")
    found = np.minimum(np.sort(memory.time_constants.numpy()), _NEVER)
    low, high = min(0.8 * float(found[0]), 1.0), max(1.5 * float(found[-1]), 2.5 * memory.length)
    left = 1 - np.arange(len(found) + 1) / len(found)
    drawn = figure("time constant t, steps", "share of units with at least t")
    drawn.add_scatter(
        x=np.concatenate([[low], found, [high]]),
        y=np.concatenate([[1.0], left]),
        mode="lines",
        line={"color": BLUE, "width": 2.5, "shape": "vh"},
        fill="tozeroy",
        fillcolor="rgba(63, 131, 224, 0.15)",
        hovertemplate="%{y:.1%} of units keep at least %{x:.3g} steps<extra></extra>",
    )
    drawn.update_xaxes(type="log", range=[math.log10(low), math.log10(high)], dtick=1)
    drawn.update_yaxes(range=[0, 1.08], tickformat=".0%")
    drawn.add_vrect(x0=memory.length / 2, x1=2 * memory.length, fillcolor=GREY, opacity=0.15, line_width=0)
    drawn.add_vline(x=memory.length, line={"color": GREY, "dash": "dash", "width": 1})
    drawn.add_annotation(
        x=math.log10(memory.length), y=1.06, text=f"T = {memory.length}", showarrow=False, xanchor="right", xshift=-4
    )
    shares = {name: share(getattr(memory, name).number()) for name in ("under", "near", "beyond")}
    slowest = "for ever" if found[-1] >= _NEVER else steps(float(found[-1]))
    return Panel(
        title,
        drawn,
        f"-1 / ln of what gate {memory.gate} lets each unit's {memory.state} keep of itself in a step, without what "
        f"weights pass on: {shares['under']} of the {len(found)} units under T / 2 = {rounded(memory.length / 2)} "
        f"steps, {shares['near']} near T, {shares['beyond']} beyond 2 T. Median {steps(float(np.median(found)))}, "
        f"longest {slowest}.",
        ("share of units", "time constant of at least"),
        tuple(
            (f"{part:.0%}", "for ever" if (scale := float(np.quantile(found, 1 - part))) >= _NEVER else steps(scale))
            for part in (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.01)
        ),
    )
