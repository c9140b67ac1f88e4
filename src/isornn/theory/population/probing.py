"""What the engine needs to know of a cell's update, found by evaluating and differentiating it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import Cell, Values, initial_parameters

Derivatives = dict[tuple[str, str], Tensor]
_POINTS = 64


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
class Probe:
    """Structure of an update, found on drawn values.

    Args:
        live: states that the update carries over pointwise (d new / d state is not zero).
        carrying: live states that carry themselves (d s_j' / d s_j is not zero).
        slow: live states with ``s' = A s + B``, A and B free of every state: their stationary moments are closed.
        feeding: by slow state, the gates that its update depends on.
        steering: gates that what a carrying state keeps of itself depends on.
    """

    live: tuple[str, ...]
    carrying: tuple[str, ...]
    slow: tuple[str, ...]
    feeding: Mapping[str, tuple[str, ...]]
    steering: tuple[str, ...]

    @staticmethod
    def of(cell: Cell) -> Probe:
        """Probe ``cell`` on fixed draws of its own: the result depends on nothing else."""
        generator = torch.Generator().manual_seed(0)

        def normal(scale: float) -> Tensor:
            return scale * torch.randn(1, _POINTS, dtype=torch.float64, generator=generator)

        u, x = Values(**{gate: normal(2.0) for gate in cell.gates}, **initial_parameters(cell)), normal(1.0)
        states = {name: normal(1.0) for name in cell.states}
        _, carry, push = linearise(cell, states, u, x, cell.gates)
        live = [name for name in cell.states if any(s == name and bool((g != 0).any()) for (_, s), g in carry.items())]
        carrying = [name for name in live if (name, name) in carry and bool((carry[name, name] != 0).any())]
        others = {name: normal(1.0) for name in cell.states}
        slow = [name for name in live if _is_affine(cell, name, (states, others), u, x)]
        feeding = {name: tuple(gate for gate in cell.gates if (name, gate) in push) for name in slow}
        steering = []
        for gate in cell.gates:
            _, moved, _ = linearise(cell, states, Values(**{**vars(u), gate: normal(2.0)}), x)
            if any(not torch.equal(moved[s, s], carry[s, s]) for s in carrying):
                steering.append(gate)
        return Probe(tuple(live), tuple(carrying), tuple(slow), feeding, tuple(steering))


def _is_affine(cell: Cell, name: str, others: Iterable[Mapping[str, Tensor]], u: Values, x: Tensor) -> bool:
    values = []
    for states in others:
        lines = [
            cell.update(Values(**{**states, name: torch.full_like(states[name], level)}), u, x)[name]
            for level in (0.0, 1.0, 2.0)
        ]
        if not torch.allclose(lines[2] - lines[1], lines[1] - lines[0], rtol=1e-9, atol=1e-12):
            return False
        values.append(torch.stack(lines))
    return all(torch.allclose(value, values[0], rtol=1e-9, atol=1e-12) for value in values)
