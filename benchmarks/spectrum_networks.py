"""Squared singular values of the Jacobians of untied networks at their fixed point: all of them, or the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from numpy import ndarray
from scipy.sparse.linalg import LinearOperator, svds
from torch import Tensor

from isornn import Spec
from isornn.cells import Values, initial_parameters
from isornn.nn import draws
from isornn.nn.random_network import RandomNetwork, State
from isornn.nn.step import step

WARMUP = 40
WARMUP_BY_LAW = 100
LARGEST = 12  # values of a network above which its share of the highest 0.1 % of N = 2000 hardly ever lies
TOLERANCE = 1e-3  # of Lanczos' residuals; the values' errors are of its square


def is_diagonal(spec: Spec) -> bool:
    return not any(float(gate.weight_var) > 0 for gate in spec.gates.values()) and len(spec.cell.states) == 1


def network_values(spec: Spec, width: int, steps: int, seed: int) -> Tensor:
    """Squared singular values (M N,) of J_t ... J_1 of one untied network at its fixed point, rising."""
    generator = torch.Generator().manual_seed(seed)
    network, before = RandomNetwork.drawn(spec, width, width, generator), _input(spec, width, generator)
    states: State = tuple(torch.zeros(width, dtype=torch.float64) for _ in spec.cell.states)
    size = width * len(states)
    diagonal = is_diagonal(spec)
    product = torch.ones(size, 1, dtype=torch.float64) if diagonal else torch.eye(size, dtype=torch.float64)
    warmup = 1 if diagonal else WARMUP  # their gates do not read the state
    for t in range(warmup + steps):
        x = _input(spec, width, generator)
        advance = network.advance(x, before)
        if t >= warmup:
            product = _pushed(advance, states, product)
        states, before, network = advance(*states), x, network.redrawn(generator)
    values = product[:, 0].abs() if diagonal else torch.linalg.svdvals(product)
    return values.square().sort()[0]


def largest_values(spec: Spec, width: int, steps: int, seed: int) -> Tensor:
    """The `LARGEST` of the squared singular values (`LARGEST`,), rising, some forty times as fast.

    Matrices are redrawn at every step, so that given states and inputs their products are Gaussian, independent over
    units and gates, of variance weight_var |r|^2 / N. On the way to the fixed point these are drawn in place of the
    matrices, and those with inputs always: the same law at any width. The last steps have recurrent matrices.
    Gaussian ensembles.
    """
    generator = torch.Generator().manual_seed(seed)
    states: State = tuple(torch.zeros(width, dtype=torch.float64) for _ in spec.cell.states)
    before = _input(spec, width, generator)
    forwards, backwards = [], []
    for t in range(WARMUP_BY_LAW + steps):
        x = _input(spec, width, generator)
        drive = _drive(spec, x, before, generator)
        if t < WARMUP_BY_LAW:
            after = _advanced(spec, drive, x, partial(_by_law, spec, generator), *states)
        else:
            advance = partial(_advanced, spec, drive, x, _by_matrices(spec, width, generator))
            after, pull = torch.func.vjp(advance, *states)
            _, push = torch.func.vjp(lambda *parts, pull=pull: pull(parts), *states)  # of a linear map: its transpose
            forwards, backwards = [*forwards, push], [pull, *backwards]
        states, before = after, x
    size = width * len(states)

    def through(moves: list[Callable[[State], State]], vector: ndarray) -> Tensor:
        parts = torch.from_numpy(vector).reshape(-1).split(width)
        for move in moves:
            parts = move(parts)
        return torch.cat(parts)

    product = LinearOperator((size, size), partial(through, forwards), partial(through, backwards), dtype="float64")
    values = svds(product, LARGEST, tol=TOLERANCE, return_singular_vectors=False, random_state=seed)
    return torch.from_numpy(values.copy()).square().sort()[0]


def _input(spec: Spec, width: int, generator: torch.Generator) -> Tensor:
    return math.sqrt(float(spec.input.variance)) * torch.randn(width, dtype=torch.float64, generator=generator)


def _product(variance: float | Tensor, r: Tensor, generator: torch.Generator) -> Tensor:
    """What a fresh matrix times r would be."""
    return (float(variance) * r.square().mean()).sqrt() * torch.randn(len(r), dtype=r.dtype, generator=generator)


def _drive(spec: Spec, x: Tensor, before: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    biases = draws.biases((len(x),), spec.gates, generator)
    return {
        name: biases[name]
        + _product(gate.input_var, x, generator)
        + _product(gate.previous_input_var, before, generator)
        for name, gate in spec.gates.items()
    }


def _by_law(spec: Spec, generator: torch.Generator, name: str, r: Tensor) -> Tensor:
    return _product(spec.gates[name].weight_var, r, generator)


def _by_matrices(spec: Spec, width: int, generator: torch.Generator) -> Callable[[str, Tensor], Tensor]:
    """Products with matrices drawn once, in float32: the values' errors are of 1e-6."""
    scales = {name: math.sqrt(float(gate.weight_var) / width) for name, gate in spec.gates.items() if gate.weight_var}
    matrices = {name: scale * torch.randn(width, width, generator=generator) for name, scale in scales.items()}

    def multiply(name: str, r: Tensor) -> Tensor:
        return (matrices[name] @ r.float()).double() if name in matrices else torch.zeros_like(r)

    return multiply


def _advanced(
    spec: Spec, drive: dict[str, Tensor], x: Tensor, multiply: Callable[[str, Tensor], Tensor], *states: Tensor
) -> State:
    cell = spec.cell
    named = Values(**dict(zip(cell.states, states, strict=True)))
    new, _ = step(cell, named, drive, multiply, x if cell.input_enters_pointwise else None, initial_parameters(cell))
    return tuple(getattr(new, name) for name in cell.states)


def _pushed(advance: Callable[..., State], states: State, columns: Tensor) -> Tensor:
    """The step's Jacobian times a matrix (M N, k)."""

    def push(column: Tensor) -> Tensor:
        _, moved = torch.func.jvp(advance, states, column.split(len(states[0])))
        return torch.cat(moved)

    return torch.vmap(push, in_dims=1, out_dims=1)(columns)
