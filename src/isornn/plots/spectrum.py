"""The picture of a Jacobian's spectrum."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from isornn.files import replacing
from isornn.theory.spectra import SpectralDensity

_SHOWN = 0.9995  # share of the singular values that the axis takes in


def draw_spectrum(found: SpectralDensity, figure: Path) -> None:
    """The density of the singular values s, ``2 s rho(s^2)``, which is finite where that of s^2 is not; atoms as stems.

    Args:
        figure: where to; the ending (.png, .pdf, .svg) says the format. Written atomically.

    Raises:
        OSError: the figure cannot be written there.
    """
    # A figure of its own, without pyplot: nothing global, and no display needed.
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    over = "state-to-state" if found.steps == 1 else f"{found.steps}-step"
    axes.set(
        title=f"{found.spec.cell.name}: singular values of the {over} Jacobian",
        xlabel="singular value s",
        ylabel="density",
    )
    if len(found.x):
        s = found.x.sqrt()
        axes.plot(s, 2 * s * found.density, color="#0072b2")
        axes.fill_between(s, 2 * s * found.density, color="#0072b2", alpha=0.15, lw=0)
        axes.set_xlim(0, 1.05 * found.quantile(_SHOWN) ** 0.5)
    for atom in found.atoms:
        place = atom.place**0.5
        axes.axvline(place, color="#d55e00", label=f"{100 * atom.mass:.3g} % at {place:.3g}")
    axes.axvline(found.mean**0.5, color="black", lw=0.8, ls="--", label=f"root mean square {found.mean**0.5:.3g}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    with replacing(figure) as new:
        canvas.savefig(new, dpi=150)
