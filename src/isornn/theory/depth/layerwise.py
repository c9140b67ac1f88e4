"""Untied layers one after the other, from the bottom: a layer needs only two numbers of the one below.

With fresh matrices at every step, ``u_k = U_k o + ...`` is Gaussian and independent over time whatever the process o
below is. So of o only ``R = E[o^2]`` and ``Sigma_z = E[o_a o_b] / E[o^2]`` at one step matter, o's mean included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.cells.spec import LARGEST
from isornn.theory.analysis import analyze
from isornn.theory.depth.driven_layer import DrivenLayer, gives_state
from isornn.theory.depth.input_law import InputLaw, Numbers, Shift, mapped, widened, with_curves
from isornn.theory.depth.stack import NO_INPUT_LAW
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.population.settling import Moments
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import NO_SPREAD, NOT_CONVERGED, PAIR_TOO_SOON
from isornn.theory.records import Analysis

# At shifted inputs: finite differences need less of a population than the numbers themselves.
_FEW_UNITS, _LITTLE = 64, Effort(cohorts=16)
_POINT = ("mean", "second_moment", "correlation")


@dataclass(frozen=True)
class Solved:
    """One direction of a layer.

    Args:
        analysis: with all uncertainty.
        output: its output's mean, second moment and correlation.
        driven: the layer whose response to its input can be measured, and the same at shifted inputs.
    """

    analysis: Analysis
    output: Numbers
    driven: DrivenLayer
    nearby: tuple[tuple[Shift, DrivenLayer], ...]


def solved(spec: Spec, law: InputLaw, length: int, generator: torch.Generator) -> Solved:
    """The layer ``spec`` over an input of the law ``law``."""
    at = law.applied_to(spec)
    analysis = analyze(at, length=length, generator=generator)
    driven = DrivenLayer(at, _together(analysis), generator=generator)
    numbers = _numbers(analysis, driven)
    nearby = []
    shifted: list[tuple[Shift, Numbers]] = []
    analyses: list[tuple[Shift, Analysis]] = []
    for shift in law.shifts():
        near = _near(shift.applied_to(spec), analysis.engine, length, generator)
        opened = DrivenLayer(near.spec, _together(near), generator=generator, units=_FEW_UNITS)
        nearby.append((shift, opened))
        shifted.append((shift, _numbers(near, opened)))
        analyses.append((shift, near))
    sure = widened(numbers, shifted)
    known = {name: _without(quantity, ~law.known) for name, quantity in sure.items()}
    point = "fixed_point." if gives_state(spec.cell) else "output."
    return Solved(
        analysis=with_curves(mapped(analysis, lambda name, _: known[name]), analyses, law.known),
        output={name: known[point + name] for name in _POINT},
        driven=driven,
        nearby=tuple(nearby),
    )


def external_input(spec: Spec) -> InputLaw:
    """The input that the spec itself names, known exactly."""
    variance, correlation = (
        torch.as_tensor(value, dtype=torch.float64).expand(spec.batch_shape)
        for value in (spec.input.variance, spec.input.correlation)
    )
    zero = torch.zeros_like(variance)
    return InputLaw(variance, correlation, zero, zero, torch.ones_like(variance, dtype=torch.bool))


def output_law(directions: Sequence[Solved]) -> InputLaw:
    """The law of these outputs, concatenated: the input of the layer above.

    ``u = U o`` with D = 2N has the variance ``input_var (E[o_f^2] + E[o_b^2]) / 2``; the two directions have matrices
    of their own, and outputs of different units do not meet.
    """
    outputs = [_Output.of(layer.output) for layer in directions]
    known = torch.stack(torch.broadcast_tensors(*(output.known for output in outputs))).all(0)
    second = torch.stack(torch.broadcast_tensors(*(output.second for output in outputs)))
    cosine = torch.stack(torch.broadcast_tensors(*(output.cosine for output in outputs)))
    total = second.sum(0)
    share = torch.where(total > 0, second / torch.where(total > 0, total, 1.0), 1 / len(outputs))
    error = sum(output.second_error for output in outputs) / len(outputs)
    apart = cosine.amax(0) - cosine.amin(0)
    uneven = apart * error * len(outputs) / torch.where(total > 0, total, 1.0)
    cosine_error = sum(w * output.cosine_error for w, output in zip(share, outputs, strict=True)) + uneven
    # a cosine; beyond 1 by rounding only
    together = (share * cosine).sum(0).clamp(-1.0, 1.0)
    variance = total / len(outputs)
    known = known & (variance <= LARGEST)
    return InputLaw(
        variance=torch.where(known, variance, 1.0),
        correlation=torch.where(known, together, 1.0),
        variance_error=torch.where(known, error, 0.0),
        correlation_error=torch.where(known, cosine_error, 0.0),
        known=known,
    )


@dataclass(frozen=True)
class _Output:
    """``E[o^2]`` and ``E[o_a o_b] / E[o^2]``, placeholders where they are not known, and bounds of their errors."""

    second: Tensor
    cosine: Tensor
    second_error: Tensor
    cosine_error: Tensor
    known: Tensor

    @staticmethod
    def of(output: Numbers) -> _Output:
        mean, second, correlation = (output[name] for name in _POINT)
        known = second.defined & mean.defined
        q, mu = torch.where(known, second.value, 1.0), torch.where(known, mean.value, 0.0)
        e_q, e_mu = torch.where(known, second.stderr, 0.0), torch.where(known, mean.stderr, 0.0)
        varied = known & correlation.defined
        c, e_c = torch.where(varied, correlation.value, 1.0), torch.where(varied, correlation.stderr, 0.0)
        alike = [where for reason, where in correlation.reasons if reason == NO_SPREAD]
        known = known & (correlation.defined | (torch.stack(alike).any(0) if alike else torch.zeros_like(known)))
        size = torch.where(q > 0, q, 1.0)
        r = mu.square() / size
        e_r = 2 * mu.abs() * e_mu / size + r * e_q / size
        return _Output(q, r + c * (1 - r), e_q, (1 - r) * e_c + (1 - c) * e_r, known)


def _numbers(analysis: Analysis, driven: DrivenLayer) -> dict[str, Quantity]:
    numbers = dict(analysis.quantities())
    if gives_state(analysis.spec.cell):
        return numbers
    moments: Moments = driven.output()
    of_one: dict[str, Tensor | bool] = {NOT_CONVERGED: ~(analysis.fixed_point.converged & driven.converged)}
    of_pair = of_one | {NO_SPREAD: ~moments.correlation_defined} | driven.missing
    for name in _POINT:
        reasons = of_pair if name == "correlation" else of_one
        numbers["output." + name] = Quantity.of(getattr(moments, name), moments.stderr[name], reasons)
    return numbers


def _near(spec: Spec, engine: str, length: int, generator: torch.Generator) -> Analysis:
    """The analysis at shifted inputs, with what suffices there."""
    if engine == "quadrature":
        return analyze(spec, length=length, generator=generator)
    return population_analysis(spec, length, generator=generator, units=_FEW_UNITS, effort=_LITTLE)


def _together(analysis: Analysis) -> Tensor:
    """Where two copies end together, or where nothing is known of them."""
    correlation = analysis.fixed_point.correlation
    too_slow = dict(correlation.reasons).get(PAIR_TOO_SOON, torch.zeros_like(correlation.defined))
    return ~too_slow & ~(correlation.defined & (correlation.value < 1))


def _without(quantity: Quantity, where: Tensor) -> Quantity:
    """``quantity``, missing for want of an input law at the specs ``where``."""
    reasons: dict[str, Tensor | bool] = {NO_INPUT_LAW: where}
    return (
        Quantity.of(quantity.value, quantity.stderr, reasons | dict(quantity.reasons))
        if bool(where.any())
        else quantity
    )
