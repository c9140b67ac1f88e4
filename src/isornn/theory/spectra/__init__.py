"""The whole spectrum of the untied state-to-state Jacobian, not only its first two moments."""

from isornn.theory.spectra.density import spectrum
from isornn.theory.spectra.dyson import NotSolved
from isornn.theory.spectra.laws import Atom, SpectralDensity

__all__ = ["Atom", "NotSolved", "SpectralDensity", "spectrum"]
