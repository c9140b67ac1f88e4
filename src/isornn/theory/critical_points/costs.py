"""What a start costs at a length: how far it is from each thing that is wanted of it, all in e-folds over T steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.polynomial import NotPolynomial
from isornn.cells.roles import roles_of
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.critical_points.gate_statistics import GateStatistics
from isornn.theory.critical_points.slow_map import slow_map_moments
from isornn.theory.population.engine import Effort, Population, population_analysis
from isornn.theory.records import NOT_CONVERGED, NOT_EXPONENTIAL, UNENDING, Quantity, time_scale

COSTS: Mapping[str, str] = {
    "sight": "ln(T / reach) where the reach is below T, else 0 (xi instead where biases are redrawn)",
    "isometry": "T |m1 - 1|",
    "variance": "T (m2 - m1^2)",
    "time_scales": "mean |ln| by which units' time scales are off U(1, T)",
    "saturation": "ln of the gates' largest slope over their rms slope",
}
"""The costs by name, and what each is."""

# Exploring takes many specs, so each gets few units; what is chosen is asked again with the engine's full effort.
_ROUGH = Effort(settle_steps=300, settle_tolerance=0.1, response_steps=256, response_tolerance=0.05, cohorts=2)
_UNITS, _REPLICATES = 256, 8


@usual_modes()
def costs(spec: Spec, length: float, *, generator: torch.Generator, careful: bool = False) -> dict[str, Quantity]:
    """The `COSTS` of a spec, or a batch of specs, at ``length`` steps.

    All are 0 at best and count in one unit, e-folds over T steps:

    - ``sight``: ``max(0, ln(T / reach))``; xi in place of the reach where biases are redrawn.
    - ``isometry``: ``T |m1 - 1|``. Over T steps the mean squared length of a gradient changes by a factor m1^T, about
      e to this power.
    - ``variance``: ``T (m2 - m1^2)``. Relative variances of the squared singular values of free factors add, so this
      is that of the Jacobian over T steps as long as m1 is about 1 and directions mix.
    - ``time_scales``: a unit's time scale is tau = -1/ln E[A | its bias], A = ds'/ds of the slow state. The cost is the
      Wasserstein distance of ln tau over units from ln U(1, T), the law that Tallec & Ollivier 2018 derive for events
      that may lie at any lag up to T: the mean number of e-folds by which a unit's time scale would have to change.
      In logarithms because time scales are compared by ratios; Wasserstein's because it exists for units that are all
      alike and tells how far they are off, where a Kolmogorov or Kullback-Leibler distance only says that they differ.
    - ``saturation``: ``-(1/2) ln(E sigma'^2 / max sigma'^2)``, averaged over the gates: by how many e-folds the rms
      gradient of the gates' own weights is below what it could be. A remember gate with time scale r costs ln(r / 4).

    For cells of several states m1 and m2 are those of the slow state's map (`slow_map_moments`), for the others those
    of the state-to-state Jacobian.

    Args:
        spec: conventions as in `Gate`.
        length: T.
        generator: randomness of the population engine.
        careful: ask sampled cells with the engine's full effort.

    Returns:
        by name, each of the batch's shape, with standard errors (0 by quadrature) and reasons where there is none.

    >>> from isornn.cells import Gate, Peephole
    >>> alike = Spec(Peephole(), {"f": Gate(bias_mean=4.6), "i": Gate(bias_mean=-4.6), "g": Gate(input_var=1.0)})
    >>> found = costs(alike, 50, generator=torch.Generator().manual_seed(0))
    >>> {name: round(cost.number(), 2) for name, cost in found.items()}
    {'sight': 0.0, 'isometry': 0.99, 'variance': 0.0, 'time_scales': 1.61, 'saturation': 2.16}
    """
    measured = _measured(spec, generator, careful)
    statistics = GateStatistics.of(spec, length)
    return {
        "sight": _shortfall(measured.sight, length),
        "isometry": _times(length, measured.mean, 1.0),
        "variance": _times(length, measured.variance, 0.0),
        "time_scales": statistics.time_scales(measured.second_moment),
        "saturation": statistics.saturation(measured.second_moment),
    }


def sight_name(spec: Spec) -> str:
    """What says how far the spec sees."""
    return "reach" if spec.biases == "fixed" else "xi"


# -- what the engines say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Measured:
    """Sight, moments of squared singular values that tell of isometry, and the second moment of what is read."""

    sight: Quantity
    mean: Quantity
    variance: Quantity
    second_moment: Quantity


def _measured(spec: Spec, generator: torch.Generator, careful: bool) -> _Measured:
    try:
        found = analyze(spec, length=1, engine="quadrature")
    except NotPolynomial:
        retained = roles_of(spec.cell).retained
        if len(spec.cell.states) > 1 and retained:
            return _by_slow_state(spec, retained[0].state, generator, careful)
        sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
        effort = None if careful else _ROUGH
        found = population_analysis(spec, 1, generator=generator, effort=effort, **sizes)
    sight = found.reach if spec.biases == "fixed" else found.xi
    return _Measured(sight, found.jacobian.mean, found.jacobian.variance, found.fixed_point.second_moment)


def _by_slow_state(spec: Spec, state: str, generator: torch.Generator, careful: bool) -> _Measured:
    """The same for a cell of several states, whose Jacobian from all states to all cannot be isometric."""
    sizes = {} if careful else {"units": _UNITS, "replicates": _REPLICATES}
    population = Population(spec, generator=generator, **sizes)
    stable = population.stable(1, Effort() if careful else _ROUGH)
    response, moments = stable.response, stable.stationary.moments
    unsettled = {NOT_CONVERGED: ~(stable.stationary.converged & stable.identical.converged)}

    def quantity(value: Tensor, stderr: Tensor, reasons: dict[str, Tensor | bool] | None = None) -> Quantity:
        return Quantity.of(value, stderr, {**unsettled, **(reasons or {})})

    if spec.biases == "fixed":
        sight = quantity(response.reach, response.stderr["reach"], {UNENDING: torch.isinf(response.reach)})
    else:
        sight = time_scale(quantity(response.chi, response.stderr["chi"], {NOT_EXPONENTIAL: ~response.exponential}))
    mean, variance = slow_map_moments(population, stable.stationary, state, generator)
    return _Measured(
        sight=sight,
        mean=quantity(mean.value, mean.stderr),
        variance=quantity(variance.value, variance.stderr),
        second_moment=quantity(moments.second_moment, moments.stderr["second_moment"]),
    )


def _shortfall(sight: Quantity, length: float) -> Quantity:
    """``max(0, ln(T / sight))``; its error is 0 only where the sight is T or more for sure."""
    endless = dict(sight.reasons).get(UNENDING, torch.zeros_like(sight.defined))
    reasons = {reason: where for reason, where in sight.reasons if reason != UNENDING}
    value = torch.where(endless, torch.inf, sight.value)
    error = torch.where(endless, 0.0, sight.stderr / value)
    missing = math.log(length) - value.clamp(min=1e-300).log()
    return Quantity.of(missing.clamp(min=0.0), torch.where(missing > -2 * error, error, 0.0), reasons)


def _times(length: float, moment: Quantity, ideal: float) -> Quantity:
    return Quantity.of(length * (moment.value - ideal).abs(), length * moment.stderr, dict(moment.reasons))
