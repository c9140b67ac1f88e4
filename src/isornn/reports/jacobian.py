"""The Jacobian that carries a change of the state from one step to the next."""

from __future__ import annotations

import math

import numpy as np

from isornn.diagnosis import LayerDiagnosis
from isornn.formatting import rounded, value_of, with_error
from isornn.present.plotly import BLUE, GREEN, GREY, figure
from isornn.reports.panel import LEGEND, ReportPanel, log_axis

_TIMES = ("#9db9e8", "#6f9be3", "#3f83e0", "#2f6bc4")  # from early to late
_SMALLEST = 1e-12  # of the largest singular value: rounding


def jacobian_panel(layer: LayerDiagnosis) -> ReportPanel:
    """Singular values of one step, from the largest, at several times."""
    title = "Singular values of one step"
    if not layer.jacobians:
        return ReportPanel(title, None, "Not measured: the states are wider than 4096.")
    largest = max(float(found.singular_values[0]) for found in layer.jacobians)
    if largest == 0:
        return ReportPanel(title, None, "All are exactly 0: no state depends on the one before.")
    drawn = figure("share of directions, from the largest", "singular value", showlegend=True, legend=LEGEND)
    shown = [0.0]
    for found, colour in zip(layer.jacobians, _TIMES[-len(layer.jacobians) :], strict=True):
        values = found.singular_values.numpy()
        above = values > _SMALLEST * largest
        logs = np.log10(values[above])
        shown += [float(logs[0]), float(logs[-1])]
        drawn.add_scatter(
            x=(np.arange(len(logs)) + 0.5) / len(values),
            y=logs,
            mode="lines",
            line={"color": colour, "width": 2},
            name=f"step {found.time}",
            customdata=values[above],
            hovertemplate="number %{pointNumber} from the largest: %{customdata:.4g}<extra></extra>",
        )
    drawn.update_yaxes(**log_axis(max(min(shown), math.log10(largest) - 6), max(shown)))
    drawn.update_xaxes(range=[0, 1], tickformat=".0%")
    drawn.add_hline(y=0, line={"color": GREY, "dash": "dot", "width": 1})
    last = layer.jacobians[-1]
    untied = layer.predicted.untied
    theory = "" if untied is None else f" Theory: m₁ = {with_error(untied.jacobian.mean)}."
    return ReportPanel(
        title,
        drawn,
        f"d state / d state before, along one sequence. At step {last.time}: largest "
        f"{float(last.singular_values[0]):.4g}, median {float(last.singular_values.median()):.3g}, mean square m₁ = "
        f"{last.mean_square:.4g}.{theory} "
        "Isometry: all at 1.",
        ("step", "largest", "median", "smallest", "mean square m₁"),
        tuple(
            (
                str(found.time),
                f"{float(found.singular_values[0]):.4g}",
                f"{float(found.singular_values.median()):.4g}",
                f"{float(found.singular_values[-1]):.2g}",
                f"{found.mean_square:.4g}",
            )
            for found in layer.jacobians
        ),
    )


def lyapunov_panel(layer: LayerDiagnosis) -> ReportPanel:
    """The leading exponents with two standard errors, and what the theory expects of the first."""
    found, title = layer.lyapunov, "Lyapunov exponents"
    known = [(place, one) for place, one in enumerate(found.exponents, 1) if one.number() is not None]
    columns = ("number", "exponent, 1/steps", "why not")
    rows = tuple(
        (str(place), value_of(one) if one.number() is None else with_error(one), one.reason() or "")
        for place, one in enumerate(found.exponents, 1)
    )
    if not known:
        return ReportPanel(title, None, f"None: {found.exponents[0].reason()}.", columns, rows)
    drawn = figure("exponent, from the leading one", "ln growth per step")
    drawn.add_scatter(
        x=[place for place, _ in known],
        y=[one.number() for _, one in known],
        error_y={"array": [2 * (one.error() or 0.0) for _, one in known], "color": BLUE},
        mode="markers",
        marker={"color": BLUE, "size": 9},
        customdata=[with_error(one) for _, one in known],
        hovertemplate="number %{x}: %{customdata}<extra></extra>",
    )
    drawn.update_xaxes(dtick=1, range=[0.5, len(found.exponents) + 0.5])
    drawn.add_hline(y=0, line={"color": GREY, "dash": "dot", "width": 1})
    first = known[0][1]
    start, end = found.window
    growth = f"The leading one is {with_error(first)} per step, over steps {start} to {end}"
    value, error = first.number() or 0.0, first.error() or 0.0
    if abs(value) <= 2 * error:
        growth += ": not distinguishable from 0, differences keep their size."
    elif value > 0:
        growth += f": differences grow, e-fold every {rounded(1 / value)} steps: chaos."
    else:
        growth += f": differences fade, to 1/e every {rounded(-1 / value)} steps."
    tied = layer.predicted.tied
    if tied is not None and (expected := tied.lyapunov.number()) is not None:
        drawn.add_hline(y=expected, line={"color": GREEN, "dash": "dot", "width": 1.6})
        label = {"text": "theory, tied", "showarrow": False, "xanchor": "right", "yshift": 9}
        drawn.add_annotation(x=1, xref="paper", y=expected, **label)
        growth += f" Theory, one draw of weights: {with_error(tied.lyapunov)}."
    return ReportPanel(title, drawn, f"{growth} Bars: two standard errors.", columns, rows)
