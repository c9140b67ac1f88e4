"""Statistics of a layer's inputs, gates and states, and the time constants of its units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells.graph import INPUT, Leaf
from isornn.cells.graph_values import LeafValues
from isornn.cells.roles import RetainedState, roles_of
from isornn.diagnosis.facts import GateActivity, InputFacts, Memory, StateMoments
from isornn.diagnosis.json_record import single, thinned
from isornn.diagnosis.replay import CHUNK, Replay, spans
from isornn.init.layer_input import are_constant
from isornn.nn.sequences import within
from isornn.theory import Quantity
from isornn.theory.reasons import NOTHING_LEFT

EDGE = 0.01
NO_REMEMBER_GATE = "the cell has no gate that multiplies its old state"
ONE_SEQUENCE = "the batch has one sequence at every step, so there are no pairs to correlate"
ZERO_INPUT = "the input is 0 throughout"
ONE_STEP = "the sequences have one step"


@torch.no_grad()
def input_facts(x: Tensor, lengths: Tensor) -> InputFacts:
    """Of inputs (T, B, D) with lengths (B,), a chunk of steps at a time, so that no copy of all is made."""
    steps, batch, features = x.shape
    total = square = x.new_zeros(features, dtype=torch.float64)
    by_sequence = x.new_zeros(batch, dtype=torch.float64)
    before = x.new_zeros(1, batch, features, dtype=torch.float64)
    shared = in_time = largest = 0.0
    counts = within(lengths, steps).sum(1)
    for start, stop in spans(steps, CHUNK):
        inside = torch.arange(start, stop, device=x.device).unsqueeze(1) < lengths
        now = torch.where(inside.unsqueeze(-1), x[start:stop].double(), 0.0)
        own = now.square().sum(1)
        total, square = total + now.sum((0, 1)), square + own.sum(0)
        by_sequence += now.square().sum((0, 2))
        largest = max(largest, float(now.abs().max()))
        shared += float((now.sum(1).square() - own).sum())
        in_time += float((now * torch.cat([before, now[:-1]])).sum())
        before = now[-1:]
    rows, links, pairs = int(counts.sum()), int(counts[1:].sum()), int((counts * (counts - 1)).sum())
    means = total / rows
    variances = _variances(x, lengths, means)
    moment = float((square / rows).mean())
    levels = (by_sequence / (lengths.clamp(1, steps) * features)).sqrt()
    zero = moment == 0
    scale = 1.0 if zero else moment * features
    trailing, leading = (0.0, 0.0) if bool((lengths < steps).any()) else _repeated(x)
    return InputFacts(
        mean=float(means.mean()),
        std=float((variances + (means - means.mean()).square()).mean().sqrt()),
        second_moment=moment,
        largest=largest,
        correlation=single(shared / max(pairs, 1) / scale, 0.0, {ZERO_INPUT: zero, ONE_SEQUENCE: pairs == 0}),
        correlation_in_time=single(in_time / max(links, 1) / scale, 0.0, {ZERO_INPUT: zero, ONE_STEP: links == 0}),
        feature_means=means.cpu(),
        feature_stds=variances.sqrt().cpu(),
        padding=trailing,
        leading_padding=leading,
        median_level=float(levels.median()),
        largest_level=float(levels.max()),
    )


def _variances(x: Tensor, lengths: Tensor, means: Tensor) -> Tensor:
    """Of every feature about its mean; 0 of a constant, of which rounding may leave something."""
    total = torch.zeros_like(means)
    for start, stop in spans(len(x), CHUNK):
        inside = torch.arange(start, stop, device=x.device).unsqueeze(1) < lengths
        total += torch.where(inside.unsqueeze(-1), x[start:stop].double() - means, 0.0).square().sum((0, 1))
    variances = total / int(lengths.clamp(max=len(x)).sum())
    return torch.where(are_constant(means, variances, x.dtype), 0.0, variances)


def _repeated(x: Tensor) -> tuple[float, float]:
    """Share of steps equal to the one before, all the way to the end; and to the one after, all the way from it."""
    if len(x) < 2:
        return 0.0, 0.0
    same = (x[1:] == x[:-1]).all(-1).long()
    return _share(same.flip(0).cumprod(0).sum(0), len(x)), _share(same.cumprod(0).sum(0), len(x))


def _share(repeated: Tensor, steps: int) -> float:
    """Of all steps, those that each sequence repeats (B,); as many in every one are part of a task, as the steps at
    which a copy is written, for lengths differ."""
    on_purpose = len(repeated) > 1 and bool((repeated == repeated[0]).all())
    return 0.0 if on_purpose else float(repeated.sum()) / (steps * len(repeated))


def gates_and_memory(replay: Replay, length: int) -> tuple[dict[str, GateActivity], Memory]:
    """In one pass over the replay: every gate's activity, and the time constants of the retained states.

    Gates go by their name: a gate is a pre-activation that is squashed to (0, 1) and multiplies something. Time
    constants are relative to ``length``.
    """
    roles = roles_of(replay.step.cell)
    gates, retained = roles.gates, roles.gated
    sums = {gate: _Sums() for gate in gates}
    totals: list[Tensor | float] = [0.0] * len(retained)
    logs: list[Tensor | float] = [0.0] * len(retained)
    for leaves, inside in _leaves(replay):
        for gate, collected in sums.items():
            collected.add(_rows(inside, leaves(Leaf("gate", gate))), _rows(inside, gates[gate].value(leaves)))
        for number, state in enumerate(retained):
            coefficient = state.coefficient(leaves)
            totals[number] = totals[number] + _rows(inside, coefficient).sum(0).cpu()
            of_steps = torch.where(inside.unsqueeze(-1), coefficient.abs().log(), 0.0)
            logs[number] = logs[number] + of_steps.sum(0).cpu()
    activities = {gate: collected.activity() for gate, collected in sums.items()}
    means = [torch.as_tensor(total) / int(replay.lengths.sum()) for total in totals]
    per_step = [torch.as_tensor(total) / replay.lengths.unsqueeze(1).cpu() for total in logs]
    return activities, _memories(retained, means, per_step, length)


def _memories(
    retained: Sequence[RetainedState], means: Sequence[Tensor], per_step: Sequence[Tensor], length: int
) -> Memory:
    if not retained:
        nothing = single(0.0, reasons={NO_REMEMBER_GATE: True})
        return Memory(None, length, None, nothing, nothing, nothing)
    first, *others = (_memory(*found, length) for found in zip(retained, means, per_step, strict=True))
    return replace(first, others=tuple(others))


def _memory(state: RetainedState, mean: Tensor, per_step: Tensor, length: int) -> Memory:
    scales = -1 / mean.abs().log()
    scales = torch.where(scales < 0, torch.inf, scales)  # -1/ln 1 is -inf
    under, beyond = scales < length / 2, scales > 2 * length
    shares = [single(float(part.double().mean())) for part in (under, ~under & ~beyond, beyond)]
    gate, sign = next(iter(state.retention.items()))
    return Memory(
        gate, length, scales, shares[0], shares[1], shares[2], state.state, sign, (), _through_gates(per_step, length)
    )


def _through_gates(per_step: Tensor, length: int) -> Quantity:
    """`Memory.through_gates` from the mean of ln |A| over each sequence's steps, (B, N)."""
    logs = 2 * (length - 1) * per_step
    of_sequences = (logs.logsumexp(1) - math.log(logs.shape[1])) / 2
    total = (logs.flatten().logsumexp(0) - math.log(logs.numel())) / 2
    spread = float(of_sequences.std()) if len(logs) > 1 else 0.0
    # A gate that is 0 at some step of every unit, as a hard sigmoid may be, leaves nothing in its sequence.
    error = spread / math.sqrt(len(logs)) if math.isfinite(spread) else math.inf
    return single(float(total), error, {NOTHING_LEFT: bool(total.isinf())})


def _leaves(replay: Replay) -> Iterator[tuple[LeafValues, Tensor]]:
    """The leaves of the cell's graph on the replay, some steps at a time, and (steps, B) whether these are of the
    sequences."""
    step = replay.step
    for start, stop in spans(replay.steps, CHUNK):
        x = replay.inputs[start:stop].double()
        states = tuple(values[start:stop] for values in replay.states)
        u = replay.pre_activations(start, stop)
        new = tuple(values[start + 1 : stop + 1] for values in replay.states)
        known: dict[Leaf, Tensor] = {Leaf("input", INPUT): x}
        for kind, values in (("state", states), ("new state", new)):
            known |= {Leaf(kind, name): value for name, value in zip(step.cell.states, values, strict=True)}
        known |= {Leaf("gate", name): getattr(u, name) for name in step.cell.gates}
        known |= {Leaf("parameter", name): getattr(u, name) for name in step.cell.parameters}
        yield known.__getitem__, replay.inside[start:stop]


def _rows(inside: Tensor, values: Tensor) -> Tensor:
    """(rows, N) of values (steps, B, N)."""
    return values.flatten(0, 1) if bool(inside.all()) else values[inside]


class _Sums:
    """Sums of a gate's values, chunk by chunk: rows are steps of sequences, columns units."""

    def __init__(self) -> None:
        self.count = 0
        self.closed = self.open = 0
        self.values = self.u = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, u: Tensor, values: Tensor) -> None:
        self.count += len(u)
        self.closed += int((values < EDGE).sum())
        self.open += int((values > 1 - EDGE).sum())
        self.values = self.values + values.sum(0).cpu()
        self.u = self.u + u.sum(0).cpu()
        self.squares = self.squares + u.square().sum(0).cpu()

    def activity(self) -> GateActivity:
        means = self.values / self.count
        total = self.count * len(means)
        mean = float(self.u.sum() / total)
        variance = float(self.squares.sum() / total) - mean**2
        return GateActivity(
            float(means.mean()), self.closed / total, self.open / total, mean, max(variance, 0.0) ** 0.5, means
        )


def state_moments(replay: Replay) -> dict[str, StateMoments]:
    """Of every state of the cell, by name."""
    times = thinned(replay.steps) + 1
    names = replay.step.cell.states
    return {name: _moments(values, replay.inside, times) for name, values in zip(names, replay.states, strict=True)}


def _moments(values: Tensor, inside: Tensor, times: Tensor) -> StateMoments:
    chunks = [_at(values[times[i:j]], inside[times[i:j] - 1]) for i, j in spans(len(times), 32)]
    return StateMoments(times, *torch.cat(chunks, 1).cpu())


def _at(values: Tensor, inside: Tensor) -> Tensor:
    """(4, c): mean, second moment, correlation, spread of (c, B, N) over the sequences that have not ended."""
    own = torch.where(inside.unsqueeze(-1), values, 0.0)
    count = inside.sum(1).double()
    mean = own.mean(-1).sum(1) / count
    squares = own.square().mean(-1)  # (c, B)
    square = squares.sum(1) / count
    # sum over pairs a != b of h_a h_b = (sum h)^2 - sum h^2
    pairs = (own.sum(1).square() - own.square().sum(1)).mean(-1) / (count * (count - 1))
    variance = square - mean.square()
    known = (variance > 1e-12 * square) & (count > 1)
    correlation = torch.where(known, (pairs - mean.square()) / torch.where(known, variance, 1.0), torch.nan)
    off = torch.where(inside, squares - square.unsqueeze(1), 0.0).square().sum(1)
    spread = torch.where(count > 1, (off / (count - 1).clamp(min=1)).sqrt(), torch.nan)
    return torch.stack([mean, square, correlation, spread])
