"""The spectrum of the state-to-state Jacobian."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from isornn.plots.interactive import BLUE, GREY, ORANGE, figure
from isornn.theory import SpectralDensity
from isornn.words import rounded

_SHOWN = 0.9995  # share of the singular values that the axis takes in
_NEAR = 0.03  # of the axis: a peak within so much of 0 may leave the frame


def spectrum_figure(found: SpectralDensity) -> go.Figure:
    """The density of the singular values s, ``2 s rho(s^2)``; places with mass of their own as stems, labelled."""
    drawn = figure("singular value s", "density")
    end, top = 1.1 * max([found.mean**0.5, *(atom.place**0.5 for atom in found.atoms)]), 1.0
    if len(found.x):
        end = max(end, 1.05 * found.quantile(_SHOWN) ** 0.5)
        s = found.x.sqrt()
        density = 2 * s * found.density
        framed = density[(s >= _NEAR * end) & (s <= end)]
        top = float(framed.max()) if len(framed) else float(density.max())
        drawn.add_scatter(
            x=s[s <= end].tolist(),
            y=density[s <= end].tolist(),
            mode="lines",
            line={"color": BLUE, "width": 2.5},
            fill="tozeroy",
            fillcolor="rgba(63, 131, 224, 0.15)",
            hovertemplate="s = %{x:.3g}: %{y:.3g}<extra></extra>",
        )
    for atom in found.atoms:
        label = f"{rounded(100 * atom.mass)} % at {rounded(atom.place**0.5)}"
        drawn.add_scatter(
            x=[atom.place**0.5] * 2, y=[0, top], mode="lines", line={"color": ORANGE, "width": 3}, hovertemplate=label
        )
        drawn.add_annotation(x=atom.place**0.5, y=top, text=label, showarrow=False, xanchor="left", xshift=6)
    drawn.add_vline(x=1, line={"color": GREY, "dash": "dot", "width": 1})
    drawn.update_xaxes(range=[-0.02 * max(end, 1.1), max(end, 1.1)])
    drawn.update_yaxes(range=[0, 1.12 * top])
    return drawn


def spectrum_caption(found: SpectralDensity) -> str:
    """Mean and variance of the squares with their errors, and how many are next to 0."""
    error, spread = found.stderr.get("mean"), found.stderr.get("variance")
    small = float(found.distribution(torch.tensor([1e-4], dtype=torch.float64)))
    return (
        f"m₁ = {_with_error(found.mean, error)}, m₂ - m₁² = {_with_error(found.variance, spread)} "
        f"(the density's residual {found.residual:.0e}). {100 * small:.2g} % lie below s = 0.01. "
        "Isometry: all at s = 1."
    )


def _with_error(value: float, error: float | None) -> str:
    return f"{rounded(value, error)} ± {error:.2g}" if error else rounded(value)
