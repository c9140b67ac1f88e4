"""The derivative of a layer's steps along a replay: tangents carried forward in time, gradients carried back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from isornn.capture.calls import States
from isornn.cells import Values
from isornn.cells.graph import INPUT, Leaf
from isornn.diagnosis.replay import Replay
from isornn.nn.layer_step import LayerStep

# What is kept of a replay's linearised steps, in bytes: enough for 32 sequences of 800 steps of an LSTM of 128 units.
_KEPT = 2**29

# By place among `Linearised.leaves`: of every step, a derivative (B, 1, N).
Diagonals = tuple[tuple[int, tuple[Tensor, ...]], ...]


@dataclass(frozen=True)
class Linearised:
    """Some steps of a cell that acts on each unit by itself: matrices and diagonals.

    What the cell does to one unit is differentiated for all steps together, so that a step is one product with the
    recurrent matrix and some with diagonals, either way in time.

    Args:
        step: the layer's.
        leaves: what derivatives are with respect to: the states before a step, its pre-activations, and the input where
            it enters pointwise. A state and a pre-activation may have one name.
        states: by new state, its diagonals.
        reads: the same by gate, for what its matrix reads where that is gated.
        ends: the states after each step and its pre-activations, (steps, B, .) each: what its output is made of.
    """

    step: LayerStep
    leaves: tuple[Leaf, ...]
    states: tuple[Diagonals, ...]
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
        fed, found = step.pointwise(x), replay.pre_activations(start, stop)
        with torch.enable_grad():
            s = {name: value.detach().requires_grad_(True) for name, value in zip(cell.states, before, strict=True)}
            u = {gate: getattr(found, gate).detach().requires_grad_(True) for gate in cell.gates}
            leaves = {Leaf("state", name): value for name, value in s.items()}
            leaves |= {Leaf("gate", name): value for name, value in u.items()}
            if fed is not None:
                fed = leaves[Leaf("input", INPUT)] = fed.detach().requires_grad_(True)
            held, values = Values(**s), Values(**u, **step.weights.units)
            new = cell.update(held, values, fed)
            gated = [gate for gate, reads in cell.gates.items() if reads.state and gate not in layout.plain]
            read = {gate: cell.read(gate, held, values) for gate in gated}
            wanted = list(leaves.values())
            return Linearised(
                step,
                tuple(leaves),
                tuple(_derivatives(new[name], wanted) for name in cell.states),
                {gate: _derivatives(value, wanted) for gate, value in read.items()},
                {Leaf("state", name): value for name, value in zip(cell.states, after, strict=True)}
                | {Leaf("gate", name): value.detach() for name, value in u.items()},
            )

    @cached_property
    def _places(self) -> dict[str, int]:
        """Of pre-activations among the leaves."""
        return {leaf.name: place for place, leaf in enumerate(self.leaves) if leaf.kind == "gate"}

    @cached_property
    def _plain(self) -> list[int]:
        return [self._places[gate] for gate in self.step.layout.plain]

    @property
    def numbers(self) -> int:
        """How many it holds."""
        by_step = [own for diagonals in (*self.states, *self.reads.values()) for _, own in diagonals]
        return sum(own[0].numel() * len(own) for own in by_step) + sum(value.numel() for value in self.ends.values())

    def pushed(self, place: int, tangents: States) -> States:
        """``ds_(t+1) = J_t ds_t`` of tangents (B, k, .) by state."""
        step = self.step
        known: list[Tensor | None] = [*tangents, *[None] * (len(self.leaves) - len(tangents))]
        if step.shared is not None:
            products = nn.functional.linear(tangents[0], step.shared).chunk(len(self._plain), -1)
            for at, product in zip(self._plain, products, strict=True):
                known[at] = product
        for gate, diagonals in self.reads.items():
            read = _filled(_applied(diagonals, place, known), tangents[-1])
            known[self._places[gate]] = nn.functional.linear(read, step.matrices[gate])
        return step.projected([_filled(_applied(own, place, known), tangents[-1]) for own in self.states])

    def pulled(
        self, place: int, gradients: States, at_gates: Sequence[Tensor | None]
    ) -> tuple[States, list[Tensor | None]]:
        """Gradients of the states before a step, from those of the states after it and some of pre-activations.

        Args:
            place: which of the steps.
            gradients: by state after it, (B, 1, .) each.
            at_gates: by leaf, what reaches a pre-activation by other ways than the states, (B, 1, N).

        Returns:
            The gradients by state; and those of all leaves, ``None`` where nothing arrives.
        """
        step, projection = self.step, self.step.weights.projection
        total = list(at_gates)
        whole = gradients if projection is None else (gradients[0] @ projection, *gradients[1:])
        for diagonals, value in zip(self.states, whole, strict=True):
            _collect(diagonals, place, value, total)
        for gate, diagonals in reversed(list(self.reads.items())):  # only later gates read one
            _collect(diagonals, place, _filled(total[self._places[gate]], whole[-1]) @ step.matrices[gate], total)
        if step.shared is not None:
            product = torch.cat([_filled(total[at], whole[-1]) for at in self._plain], -1) @ step.shared
            total[0] = product if total[0] is None else total[0] + product
        return tuple(_filled(value, like) for value, like in zip(total, gradients, strict=False)), total

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

    def of_inputs(self, gradients: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """(steps, B, D), from what `pulled` gave at every step of all leaves."""
        like = next(iter(self.ends.values()))[0].unsqueeze(1)
        like = like.new_zeros(*like.shape[:-1], self.step.hidden)

        def whole(place: int) -> Tensor:
            return torch.cat([_filled(found[place], like) for found in gradients], 1).transpose(0, 1)

        driven = torch.cat([whole(self._places[gate]) for gate in self.step.layout.driven], -1)
        found = driven @ self.step.weights.matrix
        return found if self.step.pointwise(found) is None else found + whole(len(self.leaves) - 1)


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
    """The steps ``start`` to ``stop`` of a replay, as the cell allows; kept where all of its steps together are few."""
    if not replay.step.cell.pointwise:
        return MixedSteps.of(replay, start, stop)
    found: Linearised | None = replay.kept.get((start, stop))
    if found is None:
        found = Linearised.of(replay, start, stop)
        if found.numbers * 8 * replay.steps <= _KEPT * (stop - start):
            replay.kept[start, stop] = found
    return found


def _derivatives(value: Tensor, leaves: Sequence[Tensor]) -> Diagonals:
    """Of a pointwise value with respect to the leaves that it depends on, elementwise."""
    if not value.requires_grad:
        return ()
    # Each element depends on its own unit's values alone, so the gradient of the sum is the elementwise derivative.
    found = torch.autograd.grad(value.sum(), leaves, retain_graph=True, allow_unused=True)
    return tuple((at, grad.unsqueeze(2).unbind(0)) for at, grad in enumerate(found) if grad is not None)


def _applied(diagonals: Diagonals, place: int, known: Sequence[Tensor | None]) -> Tensor | None:
    """``sum_k D_k d_k`` over what changes; a gate that reads no state does not."""
    total: Tensor | None = None
    for at, diagonal in diagonals:
        value = known[at]
        if value is not None:
            total = diagonal[place] * value if total is None else torch.addcmul(total, diagonal[place], value)
    return total


def _collect(diagonals: Diagonals, place: int, gradient: Tensor, total: list[Tensor | None]) -> None:
    """Add ``D_k g`` to what has reached each k."""
    for at, diagonal in diagonals:
        before = total[at]
        total[at] = diagonal[place] * gradient if before is None else torch.addcmul(before, diagonal[place], gradient)


def _filled(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value
