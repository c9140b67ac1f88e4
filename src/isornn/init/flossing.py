"""Gradient flossing, for comparison: gradient steps that push Lyapunov exponents to 0 before training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from isornn.cells import SpecError
from isornn.cells.arguments import check_function, check_generator, whole_number
from isornn.init.received import Received, in_forward_order, inputs_of, received_by
from isornn.init.writing import Module, all_or_nothing
from isornn.modes import unhindered, usual_modes
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer
from isornn.nn.layer_step import LayerStep, weights_of
from isornn.nn.layout import GateTensors
from isornn.nn.ownership import check_alone

# The author's example: 55 steps of one sequence, of which the first 16 do not count, and 75 exponents of 80 units.
STEPS, SETTLING, SHARE, UPDATES, RATE = 55, 16, 15 / 16, 500, 1e-3


@dataclass(frozen=True)
class Flossed:
    """What gradient flossing did to a layer.

    Args:
        where: the layer.
        before, after: the k leading exponents per step, (k,) each, over the sequence of the first and of the last
            update, the latter with the weights that the layer was given. They are those of at most 39 steps, and so
            approximate.

    >>> print(Flossed("GRU l0", torch.tensor([-0.3, -0.5]), torch.tensor([0.0, -0.01])))
    GRU l0: 2 leading exponents from -0.300 to -0.500 before, 0.000 to -0.010 after
    """

    where: str
    before: Tensor
    after: Tensor

    def __str__(self) -> str:
        """One line."""
        before, after = (f"{float(one.max()):.3f} to {float(one.min()):.3f}" for one in (self.before, self.after))
        return f"{self.where}: {len(self.after)} leading exponents from {before} before, {after} after"


def gradient_flossing_(
    module: Module,
    *,
    batch: Any,
    updates: int = UPDATES,
    exponents: int | None = None,
    generator: torch.Generator | None = None,
    report: Callable[[Flossed], object] | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> Module:
    """Change every recurrent layer, as it is, until its leading Lyapunov exponents are near 0.

    ``lambda_i = mean_t ln |R_ii(t)|``, with ``Q R = J_t Q`` step by step from a random orthonormal frame of k columns;
    Adam with rate .001 minimises ``mean_i lambda_i^2`` over the recurrent and input weights and the biases. Each update
    is over one sequence of the batch, the first 55 steps from states that are 0, without the first 16. Layers are
    changed in the order in which the model calls them, each for what those below then give it.

    An update takes some .2 s for an LSTM of 64 units on a CPU, and a frame of k columns and T steps ``O(N k^2 T)``:
    some 100 s in all.

    Args:
        module: as `apply_`; its weights are the start, for instance torch's own.
        batch: as `critical_`.
        updates: of each layer, at least 1.
        exponents: k, from 1 to the number of all states' units; 15/16 of N by default.
        generator: source of the frame, one for each layer.
        report: called with a `Flossed` for every layer.
        progress: called with the share that is done.

    Raises:
        SpecError: updates or exponents.
        ModuleError: no recurrent layer, a parametrised one; sequences below 18 steps; an exponent that is minus
            infinity, as where a state keeps nothing. All layers are then as they were.
        ValueError: a batch that is empty or does not reach every recurrent layer.

    Source: Engelken 2023, Gradient Flossing (arXiv 2312.17306); numbers as in the author's example code.

    >>> from torch import nn
    >>> batch = torch.rand(20, 4, 1, generator=torch.Generator().manual_seed(0))
    >>> lines = []
    >>> gru = gradient_flossing_(nn.GRU(1, 4), batch=batch, updates=2, report=lines.append)
    >>> len(lines[0].after)
    4
    """
    check_generator(generator)
    check_function("report", report)
    for name, value in (("updates", updates), ("exponents", exponents)):
        if value is not None:
            whole_number(name, value)
    found: list[Flossed] = []
    with unhindered(), torch.no_grad():
        modules = in_forward_order(module, batch)
        check_alone(module)
        layers = [layer for one in modules for layer in one.layers]
        with all_or_nothing(layers, generator):
            for one in modules:
                for received in received_by(one, inputs_of(module, one, batch)):
                    share = partial(_share, progress, len(found), len(layers))
                    found.append(_floss(received, updates, exponents, generator, share))
            if report is not None:
                for one_layer in found:
                    report(one_layer)
    return module


def _share(progress: Callable[[float], object], done: int, layers: int, of_this: float) -> None:
    progress((done + of_this) / layers)


@usual_modes()
@torch.no_grad()
def _floss(
    received: Received,
    updates: int,
    exponents: int | None,
    generator: torch.Generator | None,
    progress: Callable[[float], object],
) -> Flossed:
    layer = received.layer
    sequences = _sequences(received)
    copy = _copy(layer)
    leaves = list(_tensors(copy))
    frame = _frame(copy, exponents, generator).to(leaves[0].device)
    optimiser = torch.optim.Adam(leaves, RATE)

    def measured(update: int) -> Tensor:
        step = LayerStep(copy.cell, weights_of(copy))
        return _checked(layer, lyapunov_exponents(step, sequences[update % len(sequences)], frame))

    before = measured(0)
    for update in range(updates):
        optimiser.zero_grad()
        with torch.enable_grad():
            measured(update).square().mean().backward()
        optimiser.step()
        progress((update + 1) / updates)
    after = measured(updates - 1)
    for tensor, trained in zip(_tensors(layer), leaves, strict=True):
        tensor.copy_(trained)
    return Flossed(layer.where, before, after)


def _checked(layer: RecurrentLayer, exponents: Tensor) -> Tensor:
    if bool(exponents.isnan().any()):
        raise ModuleError(f"{layer.where}: its exponents are NaN; its weights or inputs are too large, or not finite")
    if not bool(exponents.isfinite().all()):
        first = int((~exponents.isfinite()).nonzero()[0]) + 1
        fewer = f"; ask for at most {first - 1}" if first > 1 else ", and it is the first of them"
        raise ModuleError(
            f"{layer.where}: its exponent {first} is minus infinity, so no gradient step can push it to 0{fewer}"
        )
    return exponents


def _sequences(received: Received) -> list[Tensor]:
    """Of those that are long enough, the first steps of what the input matrices multiply, (T, D)."""
    inputs = received.gate_inputs().double()
    if not bool(inputs.isfinite().all()):
        raise ValueError(f"batch: {received.layer.where} receives NaN or infinity from it")
    lengths = [int(length) for length in received.lengths]
    long = [inputs[: min(length, STEPS), number] for number, length in enumerate(lengths) if length > SETTLING + 1]
    if not long:
        raise ModuleError(
            f"{received.layer.where}: its longest sequence has {max(lengths)} steps; exponents need {SETTLING + 2}"
        )
    return long


def _frame(layer: RecurrentLayer, exponents: int | None, generator: torch.Generator | None) -> Tensor:
    """Orthonormal columns (S, k) for all states together."""
    width = sum(LayerStep(layer.cell, weights_of(layer)).sizes)
    count = max(1, round(SHARE * layer.hidden)) if exponents is None else exponents
    if count > width:
        raise SpecError("exponents", exponents, f"{layer.where} has states of {width} units together")
    device = None if generator is None else generator.device
    drawn = torch.randn(width, count, generator=generator, dtype=torch.float64, device=device)
    return torch.linalg.qr(drawn).Q


def lyapunov_exponents(step: LayerStep, inputs: Tensor, frame: Tensor) -> Tensor:
    """(k,) of one sequence (T, D) from states that are 0, by a frame (S, k): differentiable."""
    states = tuple(inputs.new_zeros(1, size) for size in step.sizes)
    drive, pointwise = step.drive(inputs), step.pointwise(inputs)
    growth = []
    for time in range(len(inputs)):
        with forward_ad.dual_level():
            parts = zip(states, frame.split(step.sizes), strict=True)
            duals = tuple(
                forward_ad.make_dual(state.repeat(part.shape[1], 1), part.mT.clone()) for state, part in parts
            )
            fed = None if pointwise is None else pointwise[time]
            new, _ = step({gate: value[time] for gate, value in drive.items()}, duals, fed)
            unpacked = [forward_ad.unpack_dual(value) for value in new]
        states = tuple(one.primal[:1] for one in unpacked)
        # A state that reads none of the states has no tangent.
        tangents = [torch.zeros_like(one.primal) if one.tangent is None else one.tangent for one in unpacked]
        pushed = torch.cat([one.expand(frame.shape[1], -1) for one in tangents], -1).mT
        frame, r = torch.linalg.qr(pushed)
        sizes = r.diagonal().abs()
        # What rounding leaves of a direction that the Jacobian maps to 0 is not a size.
        rounding = torch.finfo(sizes.dtype).eps * max(pushed.shape) * pushed.detach().norm()
        growth.append(torch.where(sizes <= rounding, -torch.inf, sizes.log()))
    found = torch.stack(growth)
    return torch.where(found.detach().isneginf().any(0), -torch.inf, found[SETTLING:].mean(0))


def _copy(layer: RecurrentLayer) -> RecurrentLayer:
    """The layer with tensors of its own in float64, which gradients reach."""

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().double().clone().requires_grad_()

    def own(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else leaf(tensor)

    return replace(
        layer,
        gates={
            name: GateTensors(
                own(gate.recurrent), own(gate.input), own(gate.previous_input), tuple(map(leaf, gate.biases))
            )
            for name, gate in layer.gates.items()
        },
        projection=own(layer.projection),
        parameters={name: leaf(value) for name, value in layer.parameters.items()},
    )


def _tensors(layer: RecurrentLayer) -> Iterator[Tensor]:
    for gate in layer.gates.values():
        yield from (tensor for tensor in (gate.recurrent, gate.input, gate.previous_input) if tensor is not None)
        yield from gate.biases
    if layer.projection is not None:
        yield layer.projection
    yield from layer.parameters.values()
