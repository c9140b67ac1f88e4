"""One step of a cell at finite width: the matrix products that its pre-activations need, then its update."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from isornn.cells import Cell, Values

_NONE: Mapping[str, Tensor] = {}


def step(
    cell: Cell,
    states: Values,
    drive: Mapping[str, Tensor],
    multiply: Callable[[str, Tensor], Tensor],
    x: Tensor | None = None,
    parameters: Mapping[str, Tensor] = _NONE,
) -> tuple[Values, Values]:
    """``u_k = drive_k + W_k read_k(s, u)`` for each gate in order, then the cell's pointwise update.

    Args:
        cell: the cell.
        states: its states by name, each (..., N).
        drive: by gate, what the step adds to the recurrent product: input part and bias, (..., N).
        multiply: ``multiply(gate, r)`` is ``W_gate r``, (..., N); called for gates that read a state.
        x: the input, where it enters pointwise, (..., N).
        parameters: the cell's own trained numbers by name, each (N,), where ``cell.parameters`` names any.

    Returns:
        The new states and this step's pre-activations, by name; the parameters are among the latter.

    >>> import torch
    >>> from isornn.cells import Vanilla
    >>> new, u = step(Vanilla(), Values(h=torch.ones(3)), {"h": torch.zeros(3)}, lambda gate, r: 0.5 * r)
    >>> u.h
    tensor([0.5000, 0.5000, 0.5000])
    """
    u = pre_activations(cell, states, drive, multiply, parameters)
    return Values(**cell.update(states, u, x)), u


def pre_activations(
    cell: Cell,
    states: Values,
    drive: Mapping[str, Tensor],
    multiply: Callable[[str, Tensor], Tensor],
    parameters: Mapping[str, Tensor] = _NONE,
) -> Values:
    """Those of `step` alone, by name, with the parameters among them."""
    u = Values(**parameters)
    for gate, reads in cell.gates.items():
        value = drive[gate]
        if reads.state:
            value = value + multiply(gate, cell.read(gate, states, u))
        setattr(u, gate, value)
    return u
