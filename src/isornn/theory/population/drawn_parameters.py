"""Cells whose units start with different parameters: each parameter's variate as a bias that is drawn once per unit."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from isornn.cells import Cell, Gate, ParameterLaw, Reads, Spec, Values, spread_parameters
from isornn.theory.reasons import REDRAWN_BESIDE_SPREAD, TheoryMissing

_VARIATE = "variate_of_"


def with_drawn_parameters(spec: Spec) -> Spec:
    """The same networks with each variate of the cell's `ParameterLaw` as a bias ~ N(0, 1), drawn once per unit.

    Exact: a unit's parameters are a function of its variates, and fixed biases are what the engines draw once.

    Raises:
        TheoryMissing: biases that are redrawn at every step beside parameters that are not.

    >>> from isornn.cells.ind_rnn import IndRNN
    >>> with_drawn_parameters(Spec(IndRNN(), {"z": Gate(input_var=1.0)})).gates["variate_of_w"].bias_var
    1.0
    """
    laws = spread_parameters(spec.cell)
    if not laws:
        return spec
    if spec.biases == "redrawn" and any(has_spread_bias(gate) for gate in spec.gates.values()):
        raise TheoryMissing(REDRAWN_BESIDE_SPREAD)
    variates = {_VARIATE + law.variate: Gate(bias_var=1.0) for law in laws.values()}
    return replace(spec, cell=_with_variates(spec.cell), gates={**variates, **spec.gates}, biases="fixed")


def has_spread_bias(gate: Gate) -> bool:
    """Whether units start with different biases of the gate."""
    return gate.bias_law is not None or bool((torch.as_tensor(gate.bias_var) > 0).any())


@functools.cache
def _with_variates(cell: Cell) -> Cell:
    """``cell`` with a gate for each variate, from which it computes the parameters."""
    laws = spread_parameters(cell)
    constant = {name: start for name, start in cell.parameters.items() if name not in laws}
    # before the cell's own: a gated read may use the parameters
    opened = {_VARIATE + law.variate: Reads(state=False, input=False) for law in laws.values()} | dict(cell.gates)

    def own(u: Values) -> Values:
        computed = {name: _parameter(law, getattr(u, _VARIATE + law.variate)) for name, law in laws.items()}
        return Values(**vars(u), **computed)

    class WithVariates(Cell):
        name = cell.name
        states = cell.states
        gates: ClassVar[Mapping[str, Reads]] = opened
        parameters = constant
        input_enters_pointwise = cell.input_enters_pointwise
        pointwise = cell.pointwise

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return cell.read(gate, s, own(u))

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return cell.update(s, own(u), x)

        def output(self, s: Values, u: Values) -> Any:
            return cell.output(s, own(u))

    return WithVariates()


def _parameter(law: ParameterLaw, normal: Any) -> Any:
    return law.quantile(torch.special.ndtr(normal).clamp(1e-300, 1 - 2.0**-53))
