"""Gradients of a scalar with respect to a layer's outputs and states: exact, by its own steps, without underflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import add

import torch
from torch import Tensor

from isornn.capture.calls import States
from isornn.capture.modules import RecurrentModule
from isornn.capture.sequences import CapturedSequence
from isornn.diagnosis.cotangents import Cotangent, LossCotangent, Scaled
from isornn.diagnosis.facts import Amplification, Profile
from isornn.diagnosis.json_record import single
from isornn.diagnosis.linearised import Linearised, linearised
from isornn.diagnosis.profiles import profile_of
from isornn.diagnosis.replay import CHUNK, LayerReplay, Replay, spans
from isornn.nn.layout import Layout
from isornn.nn.upwards import gate_inputs, own_time


@dataclass(frozen=True)
class Carried:
    """Gradients with respect to the states at one time, times ``exp(-scale)``, so that they do not underflow.

    Args:
        parts: (B, .) by state.
        scale: (B,).
    """

    parts: States
    scale: Tensor


def gradient_norms(
    replay: Replay, cotangent: Cotangent, of_inputs: Callable[[Scaled], None] | None = None
) -> dict[str, Tensor]:
    """ln of the norm over units of d scalar / d s_t for t = 0 .. T: (T + 1, B) by state, and of all together.

    The states at one time are independent coordinates, as in the state-to-state Jacobian: for an LSTM, the gradient
    with respect to c_t is that through c to the next step, without that through o_t tanh(c_t) at step t.

    Args:
        replay: the layer's sequences.
        cotangent: the scalar.
        of_inputs: called with d scalar / d inputs of every chunk of steps, from the last.
    """
    names = (*replay.step.cell.states, "all")
    logs = {name: replay.states[0].new_empty(replay.steps + 1, replay.batch) for name in names}
    carried = Carried(tuple(torch.zeros_like(v) for v in replay.at(0)), torch.zeros_like(logs["all"][0]))
    for start, stop in _backwards(replay.steps, cotangent.ends):
        if stop in cotangent.ends:
            carried = _replaced(carried, *cotangent.ends[stop])
        carried, outputs = _on_one_scale(carried, cotangent.of_output(start, stop))
        at_inputs, found = _through(replay, start, stop, carried.parts, outputs, of_inputs is not None)
        first = 0 if start == 0 else 1
        norms = [torch.stack(part[first:]).norm(dim=-1) for part in zip(*found, strict=True)]
        for name, sizes in zip(names, [*norms, torch.stack(norms).norm(dim=0)], strict=True):
            logs[name][start + first : stop + 1] = sizes.log() + carried.scale
        if of_inputs is not None and at_inputs is not None:
            of_inputs(Scaled.of(at_inputs, carried.scale.unsqueeze(-1)))
        carried = Carried(found[0], carried.scale)
    return logs


def by_lag(replay: Replay, logs: dict[str, Tensor]) -> Profile:
    """Norms (T + 1, B) by time, as a profile over lags: lag l is the state l steps before the sequence's end."""
    lags = torch.arange(replay.steps + 1, device=replay.lengths.device).unsqueeze(1)
    times = replay.lengths - lags
    found = {
        name: torch.where(times >= 0, values.gather(0, times.clamp(min=0)), torch.nan) for name, values in logs.items()
    }
    return profile_of({name: values.cpu() for name, values in found.items()})


def _backwards(steps: int, cuts: Iterable[int]) -> list[tuple[int, int]]:
    """Chunks of steps from the last to the first, none of which goes across a cut."""
    edges = sorted({0, steps, *cuts})
    return [(a + i, a + j) for a, b in reversed(list(pairwise(edges))) for i, j in reversed(list(spans(b - a, CHUNK)))]


def _replaced(carried: Carried, states: States, which: Tensor) -> Carried:
    pairs = zip(states, carried.parts, strict=True)
    parts = tuple(torch.where(which.unsqueeze(-1), given.double(), part) for given, part in pairs)
    return Carried(parts, torch.where(which, 0.0, carried.scale))


def _on_one_scale(carried: Carried, added: Scaled) -> tuple[Carried, Tensor]:
    """The accumulated gradient (B, .) and the addend (c, B, .), both rescaled to the larger scale."""
    size = torch.cat(carried.parts, -1).norm(dim=-1)
    scales = torch.maximum(size.log() + carried.scale, added.scale.amax(0).squeeze(-1))
    scales = torch.where(scales.isfinite(), scales, 0.0)
    factor = torch.where(size > 0, (carried.scale - scales).exp(), 0.0).unsqueeze(-1)
    parts = tuple(part * factor for part in carried.parts)
    return Carried(parts, scales), added.at(scales.unsqueeze(-1))


def _through(
    replay: Replay, start: int, stop: int, last: States, outputs: Tensor, with_inputs: bool
) -> tuple[Tensor | None, list[States]]:
    """Gradients of the chunk's inputs (c, B, D), where wanted, and of the states at times start .. stop."""
    way = _through_linearised if replay.step.cell.pointwise else _through_steps
    return way(replay, start, stop, last, outputs, with_inputs)


@torch.no_grad()
def _through_linearised(
    replay: Replay, start: int, stop: int, last: States, outputs: Tensor, with_inputs: bool
) -> tuple[Tensor | None, list[States]]:
    """By matrices and diagonals, all of which are known before the first step back."""
    chunk, count = linearised(replay, start, stop), len(last)
    assert isinstance(chunk, Linearised)
    found = chunk.of_outputs(outputs)
    direct = [found[leaf].unsqueeze(2).unbind(0) if leaf in found else None for leaf in chunk.leaves]
    carried = tuple(part.unsqueeze(1) for part in last)
    states, passed = list[States](), list[list[Tensor | None]]()
    for place in reversed(range(stop - start)):
        now = [None if values is None else values[place] for values in direct]
        carried = tuple(part if more is None else part + more for part, more in zip(carried, now, strict=False))
        states.append(carried)
        carried, of_step = chunk.pulled(place, carried, [*[None] * count, *now[count:]])
        if with_inputs:
            passed.append(of_step)
    times = [tuple(part.squeeze(1) for part in parts) for parts in (*states, carried)]
    return chunk.of_inputs(passed[::-1]) if with_inputs else None, times[::-1]


def _through_steps(
    replay: Replay, start: int, stop: int, last: States, outputs: Tensor, with_inputs: bool
) -> tuple[Tensor | None, list[States]]:
    """By autograd through every step, of a cell that mixes units."""
    step = replay.step
    with torch.enable_grad():
        x = replay.inputs[start:stop].double().requires_grad_(True)
        drive = {gate: value.unbind(0) for gate, value in step.drive(x).items()}
        fed = step.pointwise(x)
        coordinates = [tuple(value.clone().requires_grad_(True) for value in replay.at(start))]
        outs = []
        for t in range(stop - start):
            now = {gate: value[t] for gate, value in drive.items()}
            new, u = step(now, coordinates[-1], None if fed is None else fed[t])
            # Views: coordinates of their own, through which alone the later steps see the states.
            coordinates.append(tuple(value.view_as(value) for value in new))
            outs.append(step.output(coordinates[-1], u))
        flat = [value for states in coordinates for value in states]
        found = torch.autograd.grad(
            [*outs, *coordinates[-1]], [x, *flat], [*outputs.unbind(0), *last], allow_unused=True
        )
    at_inputs, *at_states = (
        torch.zeros_like(value) if grad is None else grad for value, grad in zip([x, *flat], found, strict=True)
    )
    count = len(step.sizes)
    return at_inputs if with_inputs else None, [
        tuple(at_states[place : place + count]) for place in range(0, len(at_states), count)
    ]


@dataclass(frozen=True)
class LossGradient:
    """The gradient of a loss with respect to a layer's states.

    Args:
        log_norm: as `gradient_norms` gives it.
        at_end: the same of what enters at each sequence's last step alone; ``None`` if not asked for.
        amplification: relative to what enters; ``None`` where nothing does, and where a sequence was made by several
            calls: there what enters a call's last states has the later calls' amplification in it.
        share_of_steps: those at which a gradient enters; ``None`` where a sequence was made by several calls.
    """

    log_norm: dict[str, Tensor]
    at_end: dict[str, Tensor] | None
    amplification: Amplification | None
    share_of_steps: float | None


def amplification(
    lengths: Tensor, log_norm: Tensor, entering: Tensor, *, of_loss: bool, steps: int | None = None
) -> Amplification | None:
    """From ln norms (T + 1, B) of the gradient by time, and norms of what enters; ``None`` where nothing does.

    Args:
        lengths: (B,), of the sequences.
        log_norm: as `gradient_norms` gives it, of all states.
        entering: (T + 1, B), norms of what enters the states at each time.
        of_loss: whether the gradient is that of a loss, not one of many that could have been drawn.
        steps: how many before the sequences' ends to look at; all by default.

    >>> entering = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    >>> log_norm = torch.tensor([[6.0], [1.0], [3.0]], dtype=torch.float64).log()
    >>> found = amplification(torch.tensor([2]), log_norm, entering, of_loss=True)
    >>> round(found.log.number(), 3), found.lag
    (0.405, 2)
    """
    lags = torch.arange(len(log_norm) if steps is None else min(steps + 1, len(log_norm)), device=lengths.device)
    times = lengths - lags.unsqueeze(1)
    at = times.clamp(min=0)
    logs = torch.where(times >= 0, log_norm.gather(0, at), -torch.inf)
    sums = entering.flip(0).cumsum(0).flip(0)
    given = torch.where(times >= 0, sums.gather(0, at), 0.0)
    total = given.norm(dim=1).log()
    ratios = torch.where(total.isfinite(), (2 * logs).logsumexp(1) / 2 - total, -torch.inf)
    lag = int(ratios.argmax())
    if not ratios[lag].isfinite():
        return None
    # How much more each sequence contributes to the gradient than to what enters: by this the logarithm varies.
    apart = (2 * logs[lag]).softmax(0) - (given[lag] / given[lag].norm()).square()
    count = len(lengths)
    error = 0.0 if of_loss or count < 2 else float(apart.norm()) / 2 * math.sqrt(count / (count - 1))
    return Amplification(single(float(ratios[lag]), error), lag, of_loss)


def loss_gradients(
    module: RecurrentModule, captured: CapturedSequence, replays: Sequence[LayerReplay], *, at_end: bool = False
) -> list[LossGradient] | None:
    """d loss / d s_t for every layer of a module; ``None`` without a loss.

    Args:
        at_end: also of what enters each layer at its own last step alone.
    """
    if captured.of_output is None or captured.of_ends is None:
        return None
    gradients: dict[int, LossGradient] = {}
    of_outputs = Scaled.of(captured.of_output)
    for depth in range(max(one.layer.layer for one in replays), -1, -1):
        of_inputs: list[Scaled] = []
        for number, one in enumerate(replays):
            if one.layer.layer != depth:
                continue
            in_own_time = partial(own_time, captured.sequences, direction=one.layer.direction)
            part = of_outputs.values.chunk(module.directions, -1)[one.layer.direction]
            own = Scaled.of(part, of_outputs.scale).mapped(in_own_time)
            cotangent = LossCotangent(own, _ends(captured, number, one))
            chunks: list[Scaled] = []
            norms = gradient_norms(replace(one.replay), cotangent, chunks.append if depth else None)
            gradients[number] = _loss_gradient(one.replay, cotangent, norms, len(captured.of_ends) == 1, at_end)
            if depth:
                passed = _through_gate_inputs(captured, one, Scaled.joined(reversed(chunks)))
                of_inputs.append(passed.mapped(in_own_time))
        if of_inputs:
            of_outputs = reduce(add, of_inputs)
    return [gradients[number] for number in range(len(replays))]


def _loss_gradient(
    replay: Replay, cotangent: LossCotangent, norms: dict[str, Tensor], one_call: bool, at_end: bool
) -> LossGradient:
    last, known, share = None, None, None
    if at_end:
        alone = cotangent.last_alone(replay.lengths)
        last = norms if alone.enters_where(cotangent) else gradient_norms(replace(replay), alone)
    if one_call:
        known = amplification(replay.lengths, norms["all"], cotangent.entering(), of_loss=True)
        share = cotangent.share_of_steps(replay.lengths)
    return LossGradient(norms, last, known, share)


def _through_gate_inputs(captured: CapturedSequence, one: LayerReplay, gradient: Scaled) -> Scaled:
    """The gradient with respect to a layer's input, from that with respect to what its matrices multiply."""
    with torch.enable_grad():
        x = one.inputs.detach().requires_grad_(True)
        ready = gate_inputs(one.layer, x, captured.previous)
        if ready is x:
            return gradient
        # x_t is read at step t and, where the layer reads the previous input too, in the second half at step t + 1.
        scale, current = gradient.scale, ready.shape[-1]
        if Layout.of(one.layer.cell).stacks["weight_ph"]:
            scale, current = torch.maximum(scale, torch.cat([scale[1:], scale[-1:]])), current // 2
        before = torch.cat([scale[:1], scale[:-1]])
        whole = torch.cat([gradient.at(scale)[..., :current], gradient.at(before)[..., current:]], -1)
        return Scaled.of(torch.autograd.grad(ready, x, whole.to(ready.dtype))[0], scale)


def _ends(captured: CapturedSequence, number: int, one: LayerReplay) -> dict[int, tuple[States, Tensor]]:
    """A call's end is the end of each of its sequences: with lengths, that is a time of each sequence's own."""
    assert captured.of_ends is not None
    if captured.of_rows is not None:
        return {time: (states[number], captured.of_rows[time]) for time, states in captured.of_ends.items()}
    lengths, ends = one.replay.lengths, {}
    for time, states in captured.of_ends.items():
        last = lengths.clamp(max=time)
        for own in last.unique().tolist():
            ends[own] = (states[number], last == own)
    return ends
