"""Untied layers one after the other, from the bottom: a layer needs only two numbers of the one below.

With fresh matrices at every step, ``u_k = U_k o + ...`` is Gaussian and independent over time whatever the process o
below is. So of o only ``R = E[o^2]`` and ``Sigma_z = E[o_a o_b] / E[o^2]`` at one step matter, o's mean included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Gate, ParameterLaw, Reads, Spec, Values
from isornn.cells.spec import LARGEST
from isornn.cells.trace import graph_of
from isornn.theory.analysis import analyze
from isornn.theory.depth.stack import NO_INPUT_LAW, UNSURE
from isornn.theory.population.engine import Effort, Population, population_analysis
from isornn.theory.population.settling import Moments
from isornn.theory.records import NO_SPREAD, NOT_CONVERGED, Analysis, FixedPoint, JacobianMoments, Quantity

# Far enough for differences to stand out of the noise of a sampled population, near enough for a derivative.
_SHIFT = 0.04
Numbers = Mapping[str, Quantity]


@dataclass(frozen=True)
class InputLaw:
    """``E[x^2] = R`` and ``E[x_a x_b] = R Sigma_z`` of a layer's input, batch-shaped, with their standard errors.

    ``known`` is False where the layer below has no stationary output; numbers there are placeholders.
    """

    variance: Tensor
    correlation: Tensor
    variance_error: Tensor
    correlation_error: Tensor
    known: Tensor

    def applied_to(self, spec: Spec) -> Spec:
        """``spec`` with this input."""
        return replace(spec, input=replace(spec.input, variance=self.variance, correlation=self.correlation))

    def shifts(self) -> list[Shift]:
        """The shifted inputs that show how much the errors matter; none where there are no errors."""
        found = []
        if bool((self.variance_error > 0).any()):
            size = torch.maximum(_SHIFT * self.variance, 3 * self.variance_error).minimum(self.variance / 2)
            low, high = ((value, self.correlation) for value in (self.variance - size, self.variance + size))
            found.append(Shift(low, high, size, size, self.variance_error))
        if bool((self.correlation_error > 0).any()):
            size = torch.maximum(torch.full_like(self.correlation, _SHIFT), 3 * self.correlation_error)
            low_c, high_c = (self.correlation - size).clamp(min=-1.0), (self.correlation + size).clamp(max=1.0)
            down, up = self.correlation - low_c, high_c - self.correlation
            found.append(Shift((self.variance, low_c), (self.variance, high_c), down, up, self.correlation_error))
        return found


@dataclass(frozen=True)
class Shift:
    """Inputs (variance, correlation) on both sides of the one that is meant, ``down`` and ``up`` from it.

    ``error`` is the standard error in that direction.
    """

    low: tuple[Tensor, Tensor]
    high: tuple[Tensor, Tensor]
    down: Tensor
    up: Tensor
    error: Tensor

    def applied_to(self, spec: Spec) -> Spec:
        """``spec`` at both, on a leading axis of 2."""
        variance, correlation = (torch.stack(pair) for pair in zip(self.low, self.high, strict=True))
        return replace(spec, input=replace(spec.input, variance=variance, correlation=correlation))

    def induced(self, center: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """``|dX/dp| se`` from X at the three; values that do not exist are NaN. NaN where no two exist.

        X may have further axes behind those of the batch.
        """
        below, above = low.isfinite(), high.isfinite()
        behind = (...,) + (None,) * (low.dim() - self.error.dim())
        rise = torch.where(above, high, center) - torch.where(below, low, center)
        run = torch.where(above, self.up[behind], 0.0) + torch.where(below, self.down[behind], 0.0)
        known = (below | above) & (run > 0)
        error = (rise / torch.where(known, run, 1.0)).abs() * self.error[behind]
        return torch.where(self.error[behind] > 0, torch.where(known, error, torch.nan), 0.0)


def widened(center: Numbers, shifts: Sequence[tuple[Shift, Numbers]]) -> dict[str, Quantity]:
    """The numbers ``center`` with their combined standard errors.

    Args:
        shifts: each with the same numbers at both its inputs, on a leading axis.
    """
    return {name: _widened(q, [(shift, values[name]) for shift, values in shifts]) for name, q in center.items()}


def _widened(quantity: Quantity, shifts: Sequence[tuple[Shift, Quantity]]) -> Quantity:
    if not shifts:
        return quantity
    parts = [shift.induced(quantity.value, *torch.where(q.defined, q.value, torch.nan).unbind()) for shift, q in shifts]
    induced = torch.stack(parts).sum(0)
    unsure = quantity.defined & induced.isnan()
    error = (quantity.stderr.square() + induced.square()).sqrt()
    return Quantity.of(quantity.value, error, dict(quantity.reasons) | {UNSURE: unsure})


def mapped(analysis: Analysis, change: Callable[[str, Quantity], Quantity]) -> Analysis:
    """``analysis`` with every quantity changed, given its dotted name."""
    new = {name: change(name, quantity) for name, quantity in analysis.quantities()}

    def part(record: Analysis | FixedPoint | JacobianMoments, prefix: str) -> dict[str, Any]:
        names = (field.name for field in fields(record))
        return {name: new[prefix + name] for name in names if prefix + name in new}

    point = replace(analysis.fixed_point, **part(analysis.fixed_point, "fixed_point."))
    jacobian = replace(analysis.jacobian, **part(analysis.jacobian, "jacobian."))
    return replace(analysis, fixed_point=point, jacobian=jacobian, **part(analysis, ""))


PULSE, OUTPUT = "_pulse", "_output"


_NOW, _BEFORE = "_now_", "_before_"


_POINTWISE = _NOW + "x itself"


UNITS, REPLICATES, COHORTS = 256, 16, 16


def gives_state(cell: Cell) -> bool:
    """Whether the cell's output is the state that its matrices read."""
    return graph_of(cell).output_is_first_state


class DrivenLayer:
    """The stationary layer that ``spec`` describes, untied: the moments of its output, and how it answers its input.

    Args:
        together: where the stable correlation is 1, batch-shaped.
        generator: source of randomness.
        units: of each replicate, a power of two.
    """

    def __init__(self, spec: Spec, together: Tensor, *, generator: torch.Generator, units: int = UNITS) -> None:
        cell = _laid_open(spec.cell)
        self._output = spec.cell.states[0] if gives_state(spec.cell) else OUTPUT
        self._source_gates = tuple([name for name in cell.gates if name.startswith(start)] for start in (_NOW, _BEFORE))
        law = Spec(cell, _gates(spec), spec.input, spec.biases)
        self._population = Population(law, generator=generator, units=units, replicates=REPLICATES)
        self._stationary = self._population.settle_together(together)

    @property
    def converged(self) -> Tensor:
        """Where the population came to rest."""
        return self._stationary.converged

    def response(self, length: int) -> Tensor:
        """d E[o_a o_b] at step t by d E[x_a x_b] at step 0, t = 0 .. length, ``(R + 1, *batch, length + 1)``.

        First over all replicates, then without each. The matrices on the previous input answer one step later.
        """
        found = self._population.respond(
            self._stationary, length=length + 1, max_cohorts=COHORTS, source_gates=self._source_gates
        )
        now, before = (source_terms[self._output] for source_terms in found.source_terms)
        return now[..., 1:] + before[..., :-1]

    def output(self) -> Moments:
        """Moments of the output."""
        return self._population.moments_of(self._stationary, self._output)


def _gates(spec: Spec) -> dict[str, Gate]:
    gates: dict[str, Gate] = dict(spec.gates)
    for name, gate in spec.gates.items():
        reads = spec.cell.gates[name]
        if reads.input:
            gates[_NOW + name] = Gate(weight_var=gate.input_var)
        if reads.previous_input:
            gates[_BEFORE + name] = Gate(weight_var=gate.previous_input_var)
    if spec.cell.input_enters_pointwise:
        gates[_POINTWISE] = Gate(weight_var=1.0)
    return gates


@functools.cache
def _laid_open(cell: Cell) -> Cell:
    """``cell`` with further gates that read a state that is 0, and its output among its states."""
    sources = Reads(state=True, input=False)
    opened: dict[str, Reads] = {}
    # a gate's own come before it: a gated read may depend on them
    for name, reads in cell.gates.items():
        opened |= {_NOW + name: sources} if reads.input else {}
        opened |= {_BEFORE + name: sources} if reads.previous_input else {}
        opened[name] = reads
    if cell.input_enters_pointwise:
        opened[_POINTWISE] = sources
    shown = () if gives_state(cell) else (OUTPUT,)

    class LaidOpen(Cell):
        name = cell.name
        states = (*cell.states, PULSE, *shown)
        gates = opened
        input_enters_pointwise = cell.input_enters_pointwise

        @property
        def parameters(self) -> Mapping[str, float | ParameterLaw]:
            return cell.parameters

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return cell.read(gate, s, _summed(cell, u)) if gate in cell.gates else getattr(s, PULSE)

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            own = _summed(cell, u)
            new = cell.update(s, own, x + getattr(u, _POINTWISE) if cell.input_enters_pointwise else x)
            seen = {name: cell.output(Values(**new), own) for name in shown}
            return {**new, PULSE: torch.zeros_like(getattr(s, PULSE)), **seen}

    return LaidOpen()


def _summed(cell: Cell, u: Values) -> Values:
    """The cell's own pre-activations, as far as they are known yet."""
    values = {name: getattr(u, name) for name in (*cell.gates, *cell.parameters) if hasattr(u, name)}
    for name in cell.gates:
        for start in (_NOW, _BEFORE):
            if name in values and hasattr(u, start + name):
                values[name] = values[name] + getattr(u, start + name)
    return Values(**values)


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
    for shift in law.shifts():
        near = _near(shift.applied_to(spec), analysis.engine, generator)
        opened = DrivenLayer(near.spec, _together(near), generator=generator, units=_FEW_UNITS)
        nearby.append((shift, opened))
        shifted.append((shift, _numbers(near, opened)))
    sure = widened(numbers, shifted)
    known = {name: _without(quantity, ~law.known) for name, quantity in sure.items()}
    point = "fixed_point." if gives_state(spec.cell) else "output."
    return Solved(
        analysis=mapped(analysis, lambda name, _: known[name]),
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
    missing: dict[str, Tensor | bool] = {NOT_CONVERGED: ~(analysis.fixed_point.converged & driven.converged)}
    for name in _POINT:
        reasons = missing | ({NO_SPREAD: ~moments.correlation_defined} if name == "correlation" else {})
        numbers["output." + name] = Quantity.of(getattr(moments, name), moments.stderr[name], reasons)
    return numbers


def _near(spec: Spec, engine: str, generator: torch.Generator) -> Analysis:
    """The analysis at shifted inputs, with what suffices there."""
    if engine == "quadrature":
        return analyze(spec, length=1, generator=generator)
    return population_analysis(spec, 1, generator=generator, units=_FEW_UNITS, effort=_LITTLE)


def _together(analysis: Analysis) -> Tensor:
    correlation = analysis.fixed_point.correlation
    return ~(correlation.defined & (correlation.value < 1))


def _without(quantity: Quantity, where: Tensor) -> Quantity:
    """``quantity``, missing for want of an input law at the specs ``where``."""
    reasons: dict[str, Tensor | bool] = {NO_INPUT_LAW: where}
    return (
        Quantity.of(quantity.value, quantity.stderr, reasons | dict(quantity.reasons))
        if bool(where.any())
        else quantity
    )
