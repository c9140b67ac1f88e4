"""The figure of a Jacobian's spectrum."""

from __future__ import annotations

from pathlib import Path

import torch

from isornn.figures import Curve, Mark, Panel
from isornn.formatting import rounded, share, with_error_of
from isornn.present.matplotlib import Drawing, draw_panels
from isornn.theory.spectra import SpectralDensity

_SHOWN = 0.9995  # share of the singular values that the axis takes in
_NEAR = 0.03  # of the axis: a peak within so much of 0 may leave the frame


def draw_spectrum(found: SpectralDensity, figure: str | Path | None = None) -> Drawing:
    """`spectrum_panel` as a figure.

    Args:
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> from isornn.theory import spectrum
    >>> found = spectrum(Spec(Vanilla("identity"), {"h": Gate(0.5, 1.0, ensemble="orthogonal")}))
    >>> len(draw_spectrum(found).axes)
    1
    """
    return draw_panels("", [spectrum_panel(found)], figure)


def spectrum_panel(found: SpectralDensity) -> Panel:
    """The density of the singular values s, ``2 s rho(s^2)``, finite where that of s^2 is not; atoms as stems."""
    curves, end, top = [], 1.1 * max([found.mean**0.5, *(atom.place**0.5 for atom in found.atoms)]), 1.0
    if len(found.x):
        end = max(end, 1.05 * found.quantile(_SHOWN) ** 0.5)
        s = found.x.sqrt()
        density = 2 * s * found.density
        framed = density[(s >= _NEAR * end) & (s <= end)]
        top = float(framed.max()) if len(framed) else float(density.max())
        inside = s <= end
        hover = "s = %{x:.3g}: %{y:.3g}"
        curves.append(Curve(s[inside].tolist(), density[inside].tolist(), filled=True, colour=0, hover=hover))
    for atom in found.atoms:
        label = f"{rounded(100 * atom.mass)} % at {rounded(atom.place**0.5)}"
        curves.append(Curve([atom.place**0.5] * 2, [0.0, top], label, colour=1, hover=label))
    end = max(end, 1.1)
    over = "state-to-state" if found.steps == 1 else f"{found.steps}-step"
    return Panel(
        f"{found.spec.cell.name}: singular values of the {over} Jacobian",
        "singular value s",
        "density",
        curves,
        marks=[Mark("x", 1.0), Mark("x", found.mean**0.5, f"root mean square {found.mean**0.5:.3g}", "dashed")],
        x_range=(-0.02 * end, end),
        y_range=(0.0, 1.12 * top),
        caption=_caption(found),
    )


def _caption(found: SpectralDensity) -> str:
    """Mean and variance of the squares with their errors, and how many are next to 0."""
    mean = with_error_of(found.mean, found.stderr.get("mean", 0.0))
    variance = with_error_of(found.variance, found.stderr.get("variance", 0.0))
    small = float(found.distribution(torch.tensor([1e-4], dtype=torch.float64)))
    return (
        f"m₁ = {mean}, m₂ - m₁² = {variance} (residual of the density {found.residual:.0e}). "
        f"{share(small)} of the singular values are below 0.01. Isometry: all at 1."
    )
