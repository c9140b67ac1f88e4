"""The derivative of a layer's steps along a replay: tangents carried forward in time, gradients carried back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from isornn.capture.calls import States
from isornn.cells import Values
from isornn.cells.trace import INPUT, Leaf
from isornn.diagnosis.replay import Replay
from isornn.nn.layer_step import LayerStep

# A state and a pre-activation may have one name.
Diagonals = Mapping[Leaf, tuple[Tensor, ...]]

_INPUT = Leaf("input", INPUT)


@dataclass(frozen=True)
class Linearised:
    """Some steps of a cell that acts on each unit by itself: matrices and diagonals.

    What the cell does to one unit is differentiated for all steps together, so that a step is one product with the
    recurrent matrix and some with diagonals, either way in time.

    Args:
        step: the layer's.
        states: by new state, and by what the derivative is with respect to, a (B, 1, N) for every step.
        reads: the same by gate, for what its matrix reads where that is gated.
        ends: the states after each step and its pre-activations, (steps, B, .) each: what its output is made of.
    """

    step: LayerStep
    states: Mapping[str, Diagonals]
    reads: Mapping[str, Diagonals]
    ends: Mapping[Leaf, Tensor]

    @staticmethod
    @torch.no_grad()
    def of(replay: Replay, start: int, stop: int) -> Linearised:
        """The steps ``start`` to ``stop`` of a replay."""
        step = replay.step
        cell, layout = step.cell, step.layout
        x = replay.inputs[start:stop].double()
        before, after = (tuple(v[start + by : stop + by] for v in replay.states) for by in (0, 1))
        fed, found = step.pointwise(x), step.pre_activations(x, before)
        with torch.enable_grad():
            s = {name: value.detach().requires_grad_(True) for name, value in zip(cell.states, before, strict=True)}
            u = {gate: getattr(found, gate).detach().requires_grad_(True) for gate in cell.gates}
            leaves = {Leaf("state", name): value for name, value in s.items()}
            leaves |= {Leaf("gate", name): value for name, value in u.items()}
            if fed is not None:
                fed = leaves[_INPUT] = fed.detach().requires_grad_(True)
            held, values = Values(**s), Values(**u, **step.weights.units)
            new = cell.update(held, values, fed)
            gated = [gate for gate, reads in cell.gates.items() if reads.state and gate not in layout.plain]
            read = {gate: cell.read(gate, held, values) for gate in gated}
            return Linearised(
                step,
                {name: _derivatives(new[name], leaves) for name in cell.states},
                {gate: _derivatives(value, leaves) for gate, value in read.items()},
                {Leaf("state", name): value for name, value in zip(cell.states, after, strict=True)}
                | {Leaf("gate", name): value.detach() for name, value in u.items()},
            )

    def pushed(self, place: int, tangents: States) -> States:
        """``ds_(t+1) = J_t ds_t`` of tangents (B, k, .) by state."""
        step = self.step
        known = {Leaf("state", name): value for name, value in zip(step.cell.states, tangents, strict=True)}
        known |= {Leaf("gate", name): value for name, value in step.shared_products(tangents[0]).items()}
        for gate, diagonals in self.reads.items():
            known[Leaf("gate", gate)] = nn.functional.linear(_applied(diagonals, place, known), step.matrices[gate])
        blank = torch.zeros_like(tangents[-1])
        return step.projected([_applied(diagonals, place, known, blank) for diagonals in self.states.values()])

    def pulled(
        self, place: int, gradients: States, at_gates: Mapping[Leaf, Tensor]
    ) -> tuple[States, dict[Leaf, Tensor]]:
        """Gradients of the states before a step, from those of the states after it and some of pre-activations.

        Args:
            place: which of the steps.
            gradients: by state after it, (B, 1, .) each.
            at_gates: by gate, what reaches its pre-activation by other ways than the states, (B, 1, N).

        Returns:
            The gradients by state; and those of pre-activations, and of the input where it enters pointwise.
        """
        step, first = self.step, Leaf("state", self.step.cell.states[0])
        projection = step.weights.projection
        total: defaultdict[Leaf, Tensor | float] = defaultdict(float, at_gates)
        whole = gradients if projection is None else (gradients[0] @ projection, *gradients[1:])
        for diagonals, value in zip(self.states.values(), whole, strict=True):
            _collect(diagonals, place, value, total)
        for gate, diagonals in reversed(list(self.reads.items())):  # only later gates read one
            _collect(diagonals, place, _filled(total[Leaf("gate", gate)], whole[-1]) @ step.matrices[gate], total)
        if step.shared is not None:
            plain = [_filled(total[Leaf("gate", gate)], whole[-1]) for gate in step.layout.plain]
            total[first] = total[first] + torch.cat(plain, -1) @ step.shared
        states = zip(step.cell.states, gradients, strict=True)
        at_states = tuple(_filled(total.pop(Leaf("state", name), 0.0), like) for name, like in states)
        return at_states, {leaf: _filled(value, whole[-1]) for leaf, value in total.items()}

    def of_outputs(self, cotangents: Tensor) -> dict[Leaf, Tensor]:
        """By state after a step and by gate: gradients of outputs times ``cotangents`` (steps, B, .), one way each."""
        if self.step.gives_state:
            return {Leaf("state", self.step.cell.states[0]): cotangents}
        with torch.enable_grad():
            given = {leaf: value.detach().requires_grad_(True) for leaf, value in self.ends.items()}
            states = tuple(value for leaf, value in given.items() if leaf.kind == "state")
            gates = {leaf.name: value for leaf, value in given.items() if leaf.kind == "gate"}
            shown = self.step.output(states, Values(**gates, **self.step.weights.units))
            found = torch.autograd.grad(shown, list(given.values()), cotangents, allow_unused=True)
        return {leaf: gradient for leaf, gradient in zip(given, found, strict=True) if gradient is not None}

    def of_inputs(self, gradients: Sequence[Mapping[Leaf, Tensor]]) -> Tensor:
        """(steps, B, D), from what `pulled` gave at every step of pre-activations and inputs."""
        like = next(iter(gradients[0].values()))

        def whole(leaf: Leaf) -> Tensor:
            return torch.cat([_filled(found.get(leaf, 0.0), like) for found in gradients], 1).transpose(0, 1)

        driven = torch.cat([whole(Leaf("gate", gate)) for gate in self.step.layout.driven], -1)
        found = driven @ self.step.weights.matrix
        return found if self.step.pointwise(found) is None else found + whole(_INPUT)


@dataclass(frozen=True)
class MixedSteps:
    """Some steps of a cell that mixes units, by forward derivatives of the whole step: some five times slower."""

    step: LayerStep
    states: States
    drive: Mapping[str, Tensor]
    x: Tensor | None

    @staticmethod
    @torch.no_grad()
    def of(replay: Replay, start: int, stop: int) -> MixedSteps:
        """The steps ``start`` to ``stop`` of a replay."""
        step, x = replay.step, replay.inputs[start:stop].double().unsqueeze(2)
        return MixedSteps(step, tuple(values[start:stop] for values in replay.states), step.drive(x), step.pointwise(x))

    def pushed(self, place: int, tangents: States) -> States:
        """As `Linearised.pushed`."""
        with forward_ad.dual_level():
            duals = tuple(
                forward_ad.make_dual(value[place].unsqueeze(1).repeat(1, part.shape[1], 1), part.contiguous())
                for value, part in zip(self.states, tangents, strict=True)
            )
            drive = {gate: value[place] for gate, value in self.drive.items()}
            new, _ = self.step(drive, duals, None if self.x is None else self.x[place])
            return tuple(forward_ad.unpack_dual(value).tangent for value in new)


def linearised(replay: Replay, start: int, stop: int) -> Linearised | MixedSteps:
    """The steps ``start`` to ``stop`` of a replay, as the cell allows."""
    kind = Linearised if replay.step.cell.pointwise else MixedSteps
    return kind.of(replay, start, stop)


def _derivatives(value: Tensor, leaves: Mapping[Leaf, Tensor]) -> Diagonals:
    """Of a pointwise value with respect to the leaves that it depends on, elementwise."""
    if not value.requires_grad:
        return {}
    # Each element depends on its own unit's values alone, so the gradient of the sum is the elementwise derivative.
    found = torch.autograd.grad(value.sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
    pairs = zip(leaves, found, strict=True)
    return {name: grad.unsqueeze(2).unbind(0) for name, grad in pairs if grad is not None}


def _applied(diagonals: Diagonals, place: int, known: Mapping[Leaf, Tensor], blank: Tensor | None = None) -> Tensor:
    """``sum_k D_k d_k`` over what changes; a gate that reads no state does not."""
    total: Tensor | None = None
    for name, diagonal in diagonals.items():
        if name in known:
            own = diagonal[place]
            total = own * known[name] if total is None else torch.addcmul(total, own, known[name])
    found = blank if total is None else total
    assert found is not None
    return found


def _collect(diagonals: Diagonals, place: int, gradient: Tensor, total: dict[Leaf, Tensor | float]) -> None:
    """Add ``D_k g`` to what has reached each k."""
    for name, diagonal in diagonals.items():
        before = total[name]
        own = diagonal[place]
        total[name] = torch.addcmul(before, own, gradient) if isinstance(before, Tensor) else own * gradient


def _filled(value: Tensor | float, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.zeros_like(like)
