"""Gradients of a scalar with respect to a layer's outputs and states: exact, by its own steps, without underflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from isornn.capture.calls import RecurrentModule, States
from isornn.capture.sequences import CapturedSequence
from isornn.diagnosis.linearised import Linearised, linearised
from isornn.diagnosis.records import Amplification, Profile, single, thinned
from isornn.diagnosis.replay import CHUNK, LayerReplay, Replay, spans
from isornn.nn.layer_step import gate_inputs, own_time
from isornn.nn.layout import Layout
from isornn.theory import Quantity
from isornn.theory.records import time_scale

Target = Callable[[Any], Tensor] | Tensor

# A change that is smaller than this part of another is lost in float32's rounding.
RESOLUTION = 1e-7
_FEWEST = 2
TOO_SHORT = "the sequences are too short: a rate needs at least 3 steps"
NOTHING_ARRIVES = "exactly 0: nothing arrives from the step before"


@dataclass(frozen=True)
class Scaled:
    """``values * exp(scale)``, which may be beyond what a float64 holds.

    Args:
        values: (T, B, .), the largest of each step and sequence of size 1, or all of them 0.
        scale: (T, B, 1); -inf where values are 0.
    """

    values: Tensor
    scale: Tensor

    @staticmethod
    def of(values: Tensor, scale: Tensor | float = 0.0) -> Scaled:
        """``values * exp(scale)``, scale (B, 1) or (T, B, 1)."""
        size = values.double().abs().amax(-1, keepdim=True)
        return Scaled(values.double() / torch.where(size > 0, size, 1.0), size.log() + scale)

    def at(self, scale: Tensor) -> Tensor:
        """The values times ``exp(self.scale - scale)``, scale (B, 1) or (T, B, 1)."""
        return torch.where(self.values == 0, 0.0, self.values * (self.scale - scale).exp())

    def __add__(self, other: Scaled) -> Scaled:
        larger = torch.maximum(self.scale, other.scale)
        return Scaled.of(self.at(larger) + other.at(larger), larger)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Scaled:
        """Both parts by a function that moves steps or sequences, or takes some."""
        return Scaled(function(self.values), function(self.scale))


class Cotangent(Protocol):
    """Gradients of a scalar with respect to a layer's outputs, and to its states at some times."""

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        """By time, gradients with respect to the states then, (B, .) each, and for which sequences, (B,).

        They are total: the contribution of later steps is included.
        """
        ...

    def of_output(self, start: int, stop: int) -> Scaled:
        """(stop - start, B, .): with respect to the outputs of these steps, all other outputs held."""
        ...


@dataclass(frozen=True)
class LastOutput:
    """A Gaussian vector times each sequence's last output: ``v . o_L``, ``v_i ~ N(0, 1)``, one v for each sequence.

    Args:
        vectors: (B, .).
        lengths: (B,).
    """

    vectors: Tensor
    lengths: Tensor

    @staticmethod
    def drawn(replay: Replay, generator: torch.Generator) -> LastOutput:
        """Drawn on the generator's device, so that equal seeds give equal profiles on all."""
        shape = (replay.batch, replay.output.shape[-1])
        vectors = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
        return LastOutput(vectors.to(replay.output.device), replay.lengths)

    def of_output(self, start: int, stop: int) -> Scaled:
        steps = torch.arange(start, stop, device=self.lengths.device).unsqueeze(1)
        return Scaled.of(torch.where((steps == self.lengths - 1).unsqueeze(-1), self.vectors, 0.0))

    @property
    def ends(self) -> Mapping[int, tuple[States, Tensor]]:
        return {}

    def entering(self, steps: int) -> Tensor:
        """(T + 1, B): its norm at each sequence's end, else 0."""
        blank = self.vectors.new_zeros(steps + 1, len(self.lengths))
        return blank.scatter(0, self.lengths.unsqueeze(0), self.vectors.norm(dim=-1).unsqueeze(0))


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
class LossCotangent:
    """A loss's gradients with respect to a layer's outputs (T, B, .), and to its states at the ends of its calls."""

    outputs: Scaled
    ends: Mapping[int, tuple[States, Tensor]]

    def of_output(self, start: int, stop: int) -> Scaled:
        return self.outputs.mapped(lambda values: values[start:stop])

    def last_alone(self, lengths: Tensor) -> LossCotangent:
        """The same without what enters before each sequence's last step.

        What enters at the end of an earlier call has what comes from later ones in it, unless it is 0, where autograd
        was cut.
        """
        steps = torch.arange(len(self.outputs.values), device=lengths.device).unsqueeze(1)
        is_last = (steps == lengths - 1).unsqueeze(-1)
        values = torch.where(is_last, self.outputs.values, 0.0)
        scale = torch.where(is_last, self.outputs.scale, -torch.inf)
        ends = {}
        for time, (states, which) in self.ends.items():
            cut = not any(bool(state[which].any()) for state in states)
            which = which if cut else which & (lengths == time)
            if bool(which.any()):
                ends[time] = states, which
        return LossCotangent(Scaled(values, scale), ends)

    def enters_where(self, other: LossCotangent) -> bool:
        """Whether both enter at the same steps."""
        if self.ends.keys() != other.ends.keys() or not torch.equal(self.outputs.scale, other.outputs.scale):
            return False
        return all(torch.equal(which, other.ends[time][1]) for time, (_, which) in self.ends.items())

    def share_of_steps(self, lengths: Tensor) -> float:
        """Of all steps, those at which a gradient enters the outputs or the last states."""
        entered = self.outputs.scale.squeeze(-1) > -torch.inf
        for time, (states, which) in self.ends.items():
            given = torch.stack([(state != 0).any(-1) for state in states]).any(0) & which
            if time > 0:
                entered[time - 1] |= given
        inside = torch.arange(len(entered), device=lengths.device).unsqueeze(1) < lengths
        return float((entered & inside).sum()) / int(lengths.sum())

    def entering(self) -> Tensor:
        """(T + 1, B): norms of what enters the states at time t, by the output of the step before or as last states."""
        norms = self.outputs.at(torch.zeros_like(self.outputs.scale)).norm(dim=-1)
        found = torch.cat([norms.new_zeros(1, norms.shape[1]), norms])
        for time, (states, which) in self.ends.items():
            found[time] += torch.where(which, torch.cat(states, -1).double().norm(dim=-1), 0.0)
        return found


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
    of_outputs, sequences = Scaled.of(captured.of_output), captured.sequences
    for depth in range(max(one.layer.layer for one in replays), -1, -1):
        of_below = None
        for number, one in enumerate(replays):
            direction = one.layer.direction
            if one.layer.layer != depth:
                continue
            in_own_time = partial(own_time, sequences, direction=direction)
            part = of_outputs.values.chunk(module.directions, -1)[direction]
            own = Scaled.of(part, of_outputs.scale).mapped(in_own_time)
            cotangent = LossCotangent(own, _ends(captured, number, one))
            chunks: list[Scaled] = []
            norms = gradient_norms(replace(one.replay), cotangent, chunks.append if depth else None)
            last, known, share = None, None, None
            if at_end:
                alone = cotangent.last_alone(one.replay.lengths)
                last = norms if alone.enters_where(cotangent) else gradient_norms(replace(one.replay), alone)
            if len(captured.of_ends) == 1:
                known = amplification(one.replay.lengths, norms["all"], cotangent.entering(), of_loss=True)
                share = cotangent.share_of_steps(one.replay.lengths)
            gradients[number] = LossGradient(norms, last, known, share)
            if depth:
                of_inputs = Scaled(*(torch.cat(parts[::-1]) for parts in zip(*map(_parts, chunks), strict=True)))
                passed = _through_gate_inputs(captured, one, of_inputs).mapped(in_own_time)
                of_below = passed if of_below is None else of_below + passed
        of_outputs = of_outputs if of_below is None else of_below
    return [gradients[number] for number in range(len(replays))]


def _parts(scaled: Scaled) -> tuple[Tensor, Tensor]:
    return scaled.values, scaled.scale


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
    lengths, ends = one.replay.lengths, {}
    for time, states in captured.of_ends.items():
        last = lengths.clamp(max=time)
        for own in last.unique().tolist():
            ends[own] = (states[number], last == own)
    return ends


def loss_of(target: Target) -> Callable[[Any], Tensor]:
    """A function from the model's output to one number.

    A callable is that function. Integer labels are compared by cross entropy, their shape that of the output without
    its last axis, the classes (or without its second, as torch has them); floating point values by mean squared error,
    their shape the output's. The output is the first tensor of what the model gives; of a mapping, its ``logits`` or
    its only tensor.

    Raises:
        ValueError: a target that is neither, or not finite; shapes that do not fit, when the function is called.

    >>> loss_of(torch.ones(2))(torch.zeros(2))
    tensor(1.)
    >>> round(float(loss_of(torch.tensor([0, 1]))(torch.zeros(2, 4))), 4)
    1.3863
    """
    if not isinstance(target, Tensor):
        if not callable(target):
            raise ValueError(
                f"target: {type(target).__name__} is not allowed; it is a tensor or a function of the output"
            )
        return target
    broken = int((~target.isfinite()).sum())
    if broken:
        raise ValueError(
            f"target: {broken:,} of its {target.numel():,} numbers are NaN or infinite; allowed are finite ones, or a "
            f"function of the output that leaves out what is missing"
        )

    def loss(output: Any) -> Tensor:
        values = _first_tensor(output)
        if target.is_floating_point():
            if values.shape != target.shape:
                raise ValueError(_misfit(target, values, "the output's"))
            return functional.mse_loss(values, target)
        if values.shape[:-1] == target.shape:
            return functional.cross_entropy(values.reshape(-1, values.shape[-1]), target.reshape(-1).long())
        if values.dim() > 2 and (values.shape[0], *values.shape[2:]) == tuple(target.shape):
            return functional.cross_entropy(values, target.long())
        raise ValueError(_misfit(target, values, "the output's without its axis of classes"))

    return loss


def _first_tensor(output: Any) -> Tensor:
    while isinstance(output, (tuple, list, Mapping)) and len(output) > 0:
        output = _entry(output) if isinstance(output, Mapping) else output[0]
    if not isinstance(output, Tensor):
        raise ValueError(
            f"target: the model gives {type(output).__name__}, so labels or values do not fit; give a function of it"
        )
    return output


def _entry(output: Mapping[Any, Any]) -> Any:
    tensors = [value for value in output.values() if isinstance(value, Tensor)]
    if "logits" not in output and len(tensors) != 1:
        names = ", ".join(map(str, output))
        raise ValueError(f"target: the model gives a mapping of {names}, and not logits; give a function of it")
    return output["logits"] if "logits" in output else tensors[0]


def _misfit(target: Tensor, values: Tensor, allowed: str) -> str:
    return (
        f"target: shape {tuple(target.shape)} does not fit the output's, {tuple(values.shape)}; it is {allowed}, or "
        f"give a function of the output"
    )


def profile_of(logs: Mapping[str, Tensor]) -> Profile:
    """From ln norms (lags, B) by state and of ``"all"``, NaN where a sequence has no such lag.

    >>> decay = -0.5 * torch.arange(20.0, dtype=torch.float64)
    >>> found = profile_of({"all": torch.stack([decay, decay + 1], 1)})
    >>> round(found.xi.number(), 6), round(found.reach.number(), 6), found.window
    (1.0, 1.0, (1, 19))
    """
    mean = {name: _root_mean_square(values) for name, values in logs.items()}
    lags = thinned(len(mean["all"]))
    window = _window(mean["all"])
    rate, misfit = _fitted(logs["all"], window)
    chi = Quantity.of((2 * rate.value).exp(), 2 * (2 * rate.value).exp() * rate.stderr, dict(rate.reasons))
    return Profile(
        lags=lags,
        log_norm={name: values[lags] for name, values in mean.items()},
        spread=_spread(logs["all"])[lags],
        rate=rate,
        xi=time_scale(chi),
        window=window,
        misfit=misfit,
        reach=_reach(mean["all"]),
    )


def _root_mean_square(logs: Tensor) -> Tensor:
    """(lags,) of (lags, B): ``ln(mean exp(2 ln n)) / 2`` over the sequences that have the lag."""
    known = ~logs.isnan()
    filled = torch.where(known, 2 * logs, -torch.inf)
    return (filled.logsumexp(1) - known.sum(1).double().log()) / 2


def _spread(logs: Tensor) -> Tensor:
    known = ~logs.isnan() & ~logs.isinf()
    count = known.sum(1)
    filled = torch.where(known, logs, 0.0)
    mean = filled.sum(1) / count.clamp(min=1)
    square = torch.where(known, (logs - mean.unsqueeze(1)).square(), 0.0).sum(1) / (count - 1).clamp(min=1)
    return torch.where(count > 1, square.sqrt(), torch.nan)


def _window(mean: Tensor) -> tuple[int, int] | None:
    """From lag 1 to the lag at which float32 no longer resolves the value relative to lag 1; at least two steps."""
    if len(mean) <= 1 + _FEWEST or mean[1 + _FEWEST].isinf():
        return None
    seen = mean[1:] - mean[1] >= math.log(RESOLUTION)
    gone = (~seen).nonzero()
    last = len(mean) - 1 if len(gone) == 0 else int(gone[0])
    return 1, max(last, 1 + _FEWEST)


def _fitted(logs: Tensor, window: tuple[int, int] | None) -> tuple[Quantity, float | None]:
    if window is None:
        arrives = len(logs) <= 1 + _FEWEST
        return single(math.nan, 0.0, {TOO_SHORT if arrives else NOTHING_ARRIVES: True}), None
    first, last = window
    inner = logs[first : last + 1]
    # Sequences that end within the window, or from which nothing arrives, have no slope over it.
    whole = inner[:, inner.isfinite().all(0)]
    if whole.shape[1] == 0:
        return single(math.nan, 0.0, {TOO_SHORT: True}), None
    steps = torch.arange(len(whole), dtype=torch.float64) - (len(whole) - 1) / 2
    centred = whole - whole.mean(0)
    slopes = (steps.unsqueeze(1) * centred).sum(0) / steps.square().sum()
    misfit = float((centred - steps.unsqueeze(1) * slopes).square().mean().sqrt())
    error = _error(slopes) if len(slopes) > 1 else _error(_block_slopes(whole[:, 0]))
    return single(float(slopes.mean()), error, {}), misfit


def _block_slopes(values: Tensor) -> Tensor:
    edges = torch.linspace(0, len(values) - 1, min(8, len(values) - 1) + 1).round().long()
    return values[edges].diff() / edges.diff()


def _error(samples: Tensor) -> float:
    return float(samples.std() / math.sqrt(len(samples)))


def _reach(mean: Tensor) -> Quantity:
    if len(mean) < 3:
        return single(math.nan, 0.0, {TOO_SHORT: True})
    if mean[1].isinf():
        return single(math.nan, 0.0, {NOTHING_ARRIVES: True})
    fallen = 2 * (mean[1:] - mean[1])
    below = (fallen <= -1).nonzero()
    if len(below) == 0:
        measured = len(mean) - 2
        return single(math.inf, 0.0, {f"beyond the {measured} steps measured": True})
    place = int(below[0])
    above, under = float(fallen[place - 1]), float(fallen[place])
    share = 1.0 if math.isinf(under) else (above + 1) / (above - under)
    return single(place - 1 + share, 0.0, {})
