"""Inputs that are not centred, as what the engines integrate: features' means become constants of the units."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from isornn.cells import Cell, Gate, Input, ParameterLaw, Reads, Spec, Values

AUTOCORRELATED = (
    "inputs of different steps are correlated, so a unit's pre-activations depend on its state's past; "
    "the population engine follows both"
)
_MEAN = "mean_of_x"


def centred(spec: Spec) -> Spec:
    """The same networks with inputs of mean 0.

    Input matrices that are drawn once turn the features' means m into a constant of each unit and gate, the same in
    both sequences: ``U m ~ N(0, input_var mean^2)`` and ``V m ~ N(0, previous_input_var mean^2)``, variance added to
    that of the gate's bias. So does an input that is read pointwise, in a gate of its own. Where biases, and with them
    the input matrices, are redrawn at every step, ``U x`` is white and has the second moments of x:
    ``E[x^2] = variance + mean^2``, ``E[x_a x_b] = variance correlation + mean^2``.

    >>> from isornn.cells import Vanilla
    >>> spec = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.5)}, Input(1.0, 0.0, mean=2.0))
    >>> centred(spec).input
    Input(variance=5.0, correlation=0.8)
    >>> kept = centred(spec.replace("biases", "fixed"))
    >>> kept.input.variance, kept.gates["h"].bias_var
    (1.0, 2.0)
    """
    given = spec.input
    if given.is_centred:
        return spec
    square = given.mean**2
    if spec.biases == "redrawn":
        share = constant_share(spec).reshape(spec.batch_shape)
        correlation = share + (1 - share) * given.correlation
        # a number to show, where it is one that nobody differentiates by
        whole = correlation if spec.batch_shape or correlation.requires_grad else float(correlation)
        return replace(spec, input=Input(given.second_moment, whole))
    gates = {
        name: replace(gate, bias_var=gate.bias_var + (gate.input_var + gate.previous_input_var) * square)
        for name, gate in spec.gates.items()
    }
    input = replace(given, mean=0.0)
    if not spec.cell.input_enters_pointwise:
        return replace(spec, gates=gates, input=input)
    return Spec(_with_mean(spec.cell), {**gates, _MEAN: Gate(bias_var=square)}, input, spec.biases)


def constant_share(spec: Spec) -> Tensor:
    """``mean^2 / E[x^2]`` of each spec ``(G,)`` where everything is redrawn; 0 where the mean is a part of the biases.

    Fluctuations of the correlation c make inputs of the correlation ``share + (1 - share) c``.
    """
    input = spec.input if spec.biases == "redrawn" else Input()
    square, second = (torch.as_tensor(x, dtype=torch.float64) for x in (input.mean**2, input.second_moment))
    share = torch.where(second > 0, square / torch.where(second > 0, second, 1.0), 0.0)
    return share.expand(spec.batch_shape).reshape(-1)


@functools.cache
def _with_mean(cell: Cell) -> Cell:
    """``cell`` with a gate that is added to the input that it reads pointwise."""

    class WithMean(Cell):
        name = cell.name
        states = cell.states
        gates: ClassVar[Mapping[str, Reads]] = {**cell.gates, _MEAN: Reads(state=False, input=False)}
        input_enters_pointwise = True
        pointwise = cell.pointwise

        @property
        def parameters(self) -> Mapping[str, float | ParameterLaw]:
            return cell.parameters

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return cell.read(gate, s, u)

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return cell.update(s, u, x + getattr(u, _MEAN))

        def output(self, s: Values, u: Values) -> Any:
            return cell.output(s, u)

    return WithMean()


def memory_limits(spec: Spec) -> tuple[Spec, ...]:
    """Specs with inputs independent over time between which what units keep lies, if their gates are monotonic.

    Inputs that are correlated over time lie between those that are drawn afresh at each step and those that never
    change, which act as a mean does. ``E[A_1^2 ... A_t^2]`` of what is kept in each step rises with every correlation
    (Slepian 1962, of products of functions that all rise or all fall).
    """
    if not spec.input.remembers:
        return (spec,)
    fresh = replace(spec.input, autocorrelation=0.0)
    still = replace(fresh, variance=0.0, mean=fresh.second_moment**0.5)
    return replace(spec, input=fresh), replace(spec, input=still)


def reads_memory(spec: Spec, gates: Iterable[str]) -> bool:
    """Whether one of the gates reads an input that is correlated over time."""
    laws = [spec.gates[gate] for gate in gates] if spec.input.remembers else []
    return any(bool((torch.as_tensor(law.input_var + law.previous_input_var) > 0).any()) for law in laws)
