"""Infinite width: how far signals and gradients survive in random recurrent networks.

`analyze` answers for a spec or a batch of specs, tied networks included, `analyze_stack` for layers; `critical` gives
the start for a length, `isometric` the one whose steps keep the norm of gradients, `pareto_front` (experimental) the
costs of specs with that reach, `phase_diagram` maps.
`moment_dynamics` and `correlation_map` give the maps behind the answers, `spectrum` the Jacobian's whole spectrum,
`kernel` the covariance of outputs on given sequences. `simulate` of `isornn.simulation` is their check.
"""

from isornn.cells.structure import NotPolynomial
from isornn.theory.analysis import analyze, stationary_samples
from isornn.theory.compared_starts import ComparedStart, ComparedStarts, compare
from isornn.theory.critical_points.choice import chosen, subspace
from isornn.theory.critical_points.costs import COSTS, costs
from isornn.theory.critical_points.front import Objective, ParetoFront, Range, pareto_front
from isornn.theory.critical_points.point import Condition, Critical, critical, isometric
from isornn.theory.depth.analysis import analyze_stack
from isornn.theory.depth.stack import Bidirectional, ImpulseResponse, StackAnalysis, TiedLayer
from isornn.theory.dynamics import Trajectory, correlation_map, moment_dynamics
from isornn.theory.gaussian_process import KernelEstimate, kernel, kernel_estimate
from isornn.theory.gilboa import ApproximateLSTM, lstm_approximation
from isornn.theory.phase import Axis, PhaseDiagram, phase_diagram
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import TheoryMissing
from isornn.theory.records import Analysis, FixedPoint, JacobianMoments
from isornn.theory.spectra import SpectralDensity, spectrum

__all__ = [
    "COSTS",
    "Analysis",
    "ApproximateLSTM",
    "Axis",
    "Bidirectional",
    "ComparedStart",
    "ComparedStarts",
    "Condition",
    "Critical",
    "FixedPoint",
    "ImpulseResponse",
    "JacobianMoments",
    "KernelEstimate",
    "NotPolynomial",
    "Objective",
    "ParetoFront",
    "PhaseDiagram",
    "Quantity",
    "Range",
    "SpectralDensity",
    "StackAnalysis",
    "TheoryMissing",
    "TiedLayer",
    "Trajectory",
    "analyze",
    "analyze_stack",
    "chosen",
    "compare",
    "correlation_map",
    "costs",
    "critical",
    "isometric",
    "kernel",
    "kernel_estimate",
    "lstm_approximation",
    "moment_dynamics",
    "pareto_front",
    "phase_diagram",
    "spectrum",
    "stationary_samples",
    "subspace",
]
