"""A stationary untied layer whose output, and whose answer to its input, can be measured."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Gate, ParameterLaw, Reads, Spec, Values
from isornn.cells.trace import graph_of
from isornn.theory.population.engine import Population
from isornn.theory.population.settling import Moments
from isornn.theory.reasons import NOT_CONVERGED, PAIR_TOO_SOON

PULSE, OUTPUT = "_pulse", "_output"
_NOW, _BEFORE = "_now_", "_before_"
_POINTWISE = _NOW + "x_itself"
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
        self._stationary, self._met = self._population.settle_together(together)

    @property
    def missing(self) -> dict[str, Tensor | bool]:
        """Why nothing is known of its two copies, where that is so."""
        return {NOT_CONVERGED: ~self._stationary.converged, PAIR_TOO_SOON: ~self._met}

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
