"""What the engine needs to know of a cell's update: its pointwise derivatives, and how it depends on the states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Cell, Values, initial_parameters
from isornn.cells.polynomial import NotPolynomial, Polynomial, structure_of

Derivatives = dict[tuple[str, str], Tensor]


def linearise(
    cell: Cell, states: Mapping[str, Tensor], u: Values, x: Tensor | None, gates: Iterable[str] = ()
) -> tuple[dict[str, Tensor], Derivatives, Derivatives]:
    """The update and its pointwise derivatives.

    Returns:
        New states by name; ``d new_i / d s_j`` by ``(i, j)``; ``d new_i / d u_k`` by ``(i, k)`` for the gates asked
        for. A pair that is absent is zero by structure.
    """
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in states.items()}
        inputs = {**vars(u), **{gate: getattr(u, gate).detach().requires_grad_() for gate in gates}}
        new = cell.update(Values(**leaves), Values(**inputs), x)
    shape = next(iter(states.values())).shape
    asked = {gate: inputs[gate] for gate in gates}
    carry: Derivatives = {}
    push: Derivatives = {}
    for name in cell.states:
        by_state, by_gate = _gradients(new[name], leaves, asked)
        carry |= {(name, source): value for source, value in by_state.items()}
        push |= {(name, source): value for source, value in by_gate.items()}
    return {name: new[name].detach().expand(shape) for name in cell.states}, carry, push


def linearise_read(
    cell: Cell, gate: str, states: Mapping[str, Tensor], u: Values
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Derivatives of what ``gate`` reads, by state and by pre-activation; absent ones are zero by structure."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in states.items()}
        inputs = {name: getattr(u, name).detach().requires_grad_() for name in cell.gates if hasattr(u, name)}
        value = cell.read(gate, Values(**leaves), Values(**{**vars(u), **inputs}))
    return _gradients(value, leaves, inputs)


def _gradients(
    value: Tensor, states: Mapping[str, Tensor], gates: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if not value.requires_grad:
        return {}, {}
    # Pointwise: the gradient of the sum is each unit's own derivative. A gate may be named like a state.
    leaves = [*states.values(), *gates.values()]
    found = torch.autograd.grad(value, leaves, torch.ones_like(value), retain_graph=True, allow_unused=True)
    by_state = {name: g for name, g in zip(states, found, strict=False) if g is not None}
    by_gate = {name: g for name, g in zip(gates, found[len(states) :], strict=True) if g is not None}
    return by_state, by_gate


@dataclass(frozen=True)
class StateStructure:
    """How an update depends on the old states.

    Args:
        persistent: states that enter the update pointwise: their old value matters beyond the gates.
        self_coupled: persistent states that enter their own update.
        slow: persistent states with ``s' = A s + B``, A and B free of every state: their stationary moments are closed.
        feeding: by slow state, the gates that its update depends on.
        retention_gates: gates that d s'/d s of a self-coupled state depends on.
    """

    persistent: tuple[str, ...]
    self_coupled: tuple[str, ...]
    slow: tuple[str, ...]
    feeding: Mapping[str, tuple[str, ...]]
    retention_gates: tuple[str, ...]

    @staticmethod
    def of(cell: Cell) -> StateStructure:
        """Read off the cell's polynomial form.

        A cell that could not be traced can still be differentiated. That shows which states matter, though neither
        that one is slow nor what its retention depends on: none and all gates are assumed.

        >>> from isornn.cells import LSTM
        >>> found = StateStructure.of(LSTM())
        >>> found.persistent, found.slow, found.feeding, found.retention_gates
        (('c',), ('c',), {'c': ('i', 'f', 'g')}, ('f',))
        """
        try:
            update = structure_of(cell).update
        except NotPolynomial:
            return _differentiated(cell)
        persistent = tuple(name for name in cell.states if any(name in new.variables for new in update.values()))
        coupled = tuple(name for name in persistent if name in update[name].variables)
        slow = tuple(name for name in persistent if _is_affine(cell, name, update[name]))
        retaining = {gate for s in coupled for term in update[s].terms if s in term.variables for gate in term.gates}
        return StateStructure(
            persistent,
            coupled,
            slow,
            {name: tuple(gate for gate in cell.gates if gate in update[name].gates) for name in slow},
            tuple(gate for gate in cell.gates if gate in retaining),
        )


def _differentiated(cell: Cell) -> StateStructure:
    one = torch.ones(1, dtype=torch.float64)
    u = Values(**dict.fromkeys(cell.gates, one), **initial_parameters(cell))
    _, carry, _ = linearise(cell, dict.fromkeys(cell.states, one), u, one)
    persistent = tuple(name for name in cell.states if any(source == name for _, source in carry))
    coupled = tuple(name for name in persistent if (name, name) in carry)
    return StateStructure(persistent, coupled, (), {}, tuple(cell.gates))


def _is_affine(cell: Cell, name: str, new: Polynomial) -> bool:
    others = set(cell.states) - {name}
    return new.degree(name) <= 1 and new.obstacle(name) is None and not others & new.variables
