"""Sequences and targets as rows of a regression: the inputs before each target, newest first, and the target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from isornn.warn import warn

Score = Literal["R^2", "Brier skill"]

MOST_ROWS = 800
FOLDS = 5
IGNORED = -100  # the class that torch's losses ignore
_ONE_HOT = 32  # symbols, above which each gets a random code of as many signs
_CLASSES = 64  # above which the rarer ones are one
_NUMBERS = 1 << 16  # of a row: features are projected on so many principal directions that they fit
_SAMPLE = 20_000  # steps, from which the principal directions are estimated
_TINY = torch.finfo(torch.float64).tiny
_MOSTLY = 0.6  # of them; of random symbols, however many, chance makes at most 0.53 end as another begins
_STIMULI = 50  # different sequences, up to which copies are repetitions of an experiment
_SEARCHED = 1000  # sequences in which the beginnings of others are searched for
_BASE = 0x2545F4914F6CDD1D  # of the polynomial that a stretch of steps is hashed by; odd, so that it has an inverse


class DataError(ValueError):
    """Inputs or targets that cannot be read: names the argument, what was found and what is allowed."""


@dataclass(frozen=True)
class Rows:
    """n targets, each with the inputs up to it.

    Args:
        history: (n, T, D) float32; ``history[:, l]`` is the input l steps before the target's own step, standardised,
            0 before the sequence began.
        targets: (n, k) float64: standardised values, or indicators of classes.
        groups: (n,) the sequence that each is of; copies of one are the same.
        folds: (n,) from 0 to `FOLDS` - 1; a sequence is in one fold.
        score: what a score of predictions of these targets is.
        whole: whether the history goes back to the first step of every sequence.
        per_step: whether each step has a target.
        directions: how many combinations of features took the features' place, where they did.
    """

    history: Tensor
    targets: Tensor
    groups: Tensor
    folds: Tensor
    score: Score
    whole: bool
    per_step: bool = False
    directions: int | None = None

    @property
    def sequences(self) -> int:
        return len(self.groups.unique())


def rows_of(
    batch: Any, target: Any, lengths: Any, longest: int | None, per_step: bool | None, generator: torch.Generator
) -> Rows:
    """At most `MOST_ROWS` rows of the data, drawn where there are more.

    One per sequence where it has one target, at its last step. Where each step has a target, steps are drawn: of
    classes so that each is as frequent as its number allows, of values uniformly.

    Raises:
        DataError: shapes that do not go together, or numbers that are not finite.
    """
    inputs, wanted = _as_tensor("batch", batch), _as_tensor("target", target)
    ends = _lengths(inputs, lengths)
    _check_apart(inputs)
    if wanted.dim() == 0 or len(wanted) != len(inputs):
        found = tuple(wanted.shape)
        raise DataError(
            f"target: shape {found} is not allowed; it must have an entry for each of {len(inputs)} sequences"
        )
    as_many = wanted.dim() >= 2 and wanted.shape[1] == inputs.shape[1]
    if per_step and not as_many:
        raise DataError(f"per_step: True is not allowed; the target has shape {tuple(wanted.shape)}, no entry per step")
    per_step = as_many and inputs.shape[1] > 1 if per_step is None else per_step
    sequence, step, chosen = _drawn(wanted, ends, per_step, generator)
    if not len(step):
        raise DataError("target: none is left; NaN and the class -100 leave a target out")
    targets, score = _targets(chosen)
    if len(targets) > 1 and bool((targets == targets[0]).all()):
        raise DataError("target: all entries are the same, so that there is nothing to predict")
    before = int(step.max()) + 1
    steps = before if longest is None else min(before, int(longest))
    inside = torch.arange(inputs.shape[1]) < ends[:, None]
    lags = step[:, None] - torch.arange(steps)
    real = _features(inputs, inside, sequence, lags, generator)
    directions = real.shape[-1] if inputs.dim() == 3 and real.shape[-1] < inputs.shape[-1] else None
    groups = _copies(inputs, sequence)
    return Rows(real, targets, groups, _folds(groups, generator), score, steps == before, per_step, directions)


def _as_tensor(name: str, values: Any) -> Tensor:
    if isinstance(values, Tensor) and values.is_nested:
        raise DataError(f"{name}: a nested tensor is not allowed; pad it, and give lengths")
    try:
        if isinstance(values, np.ndarray):  # torch takes neither another byte order nor negative strides
            values = np.array(values, values.dtype.newbyteorder("="), order="C")
        tensor = torch.as_tensor(values).detach().cpu().to_dense()
    except (TypeError, ValueError, RuntimeError) as error:
        given = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        raise DataError(f"{name}: {given} is not allowed; it must be a tensor or array of numbers ({error})") from None
    if tensor.is_complex():
        raise DataError(f"{name}: complex numbers are not allowed; give real and imaginary parts as features")
    return tensor


def _lengths(inputs: Tensor, lengths: Any) -> Tensor:
    """The number of steps of each sequence, (B,)."""
    symbols = inputs.dim() == 2 and not inputs.is_floating_point()
    if not (symbols or inputs.dim() == 3) or 0 in inputs.shape:
        allowed = "(sequences, steps, features), or (sequences, steps) of whole numbers, at least one of each"
        one = ""
        if inputs.dim() == 2 and inputs.is_floating_point():
            pieces = f"batch[:n * L].reshape(n, L, {inputs.shape[1]})"
            one = f"; one feature is batch[..., None]; one long series is cut into n pieces of L steps by {pieces}"
        found = f"{tuple(inputs.shape)} of {inputs.dtype}"
        raise DataError(f"batch: shape {found} is not allowed; it must be {allowed}{one}")
    if lengths is None:
        return torch.full((len(inputs),), inputs.shape[1])
    ends = _as_tensor("lengths", lengths)
    if ends.shape != inputs.shape[:1] or ends.is_floating_point():
        found = f"shape {tuple(ends.shape)} of {ends.dtype}"
        raise DataError(
            f"lengths: {found} is not allowed; it must be a whole number for each of {len(inputs)} sequences"
        )
    ends = ends.long()
    if int(ends.min()) < 1 or int(ends.max()) > inputs.shape[1]:
        found = f"{int(ends.min())} to {int(ends.max())}"
        raise DataError(
            f"lengths: {found} is not allowed; they must be from 1 to the {inputs.shape[1]} steps of the batch"
        )
    return ends


def _check_apart(inputs: Tensor) -> None:
    """Refuse windows that slide along a series by at most half of their steps.

    Predictions would be of sequences whose neighbours, nearly the same and with nearly the same target, were fitted to.

    Raises:
        DataError: most sequences repeat what the one before ends with, or end as another one begins.
    """
    _check_consecutive(inputs)
    found = _shifts_to_others(inputs)
    if len(found) > _MOSTLY * len(_searched(inputs)):
        steps = inputs.shape[1]
        raise DataError(
            f"batch: sequences overlap, which is not allowed, as errors are computed between them: most end with the "
            f"first {steps - int(np.median(found))} steps or so of another one, as shuffled windows of a series do; "
            f"cut the series into windows that begin {steps} steps apart"
        )


def _check_consecutive(inputs: Tensor) -> None:
    steps, pairs = inputs.shape[1], len(inputs) - 1
    for shift in range(1, steps // 2 + 1):
        ending, beginning = inputs[:-1, shift:], inputs[1:, : steps - shift]
        if not 2 * int(_same(ending[:, :1], beginning[:, :1]).sum()) > pairs:
            continue
        moves = ~_same(beginning[:, 1:], beginning[:, :1])
        if 2 * int((_same(ending, beginning) & moves).sum()) > pairs:
            raise DataError(
                f"batch: sequences overlap, which is not allowed, as errors are computed between them: most begin with "
                f"the last {steps - shift} steps of the one before; of such windows batch[::{-(-steps // shift)}] "
                f"do not overlap"
            )


def _same(one: Tensor, other: Tensor) -> Tensor:
    """Of which sequences all numbers are equal, (B,)."""
    return (one == other).flatten(1).all(1)


def _searched(inputs: Tensor) -> Tensor:
    """At most `_SEARCHED` of the sequences, or twice as many, evenly spaced."""
    return inputs[:: max(1, len(inputs) // _SEARCHED)]


def _shifts_to_others(inputs: Tensor) -> list[int]:
    """Of those `_searched` that end as another one begins, by how many steps, at most half of all, that one is later.

    What begins as a third one does, as after the same padding, is not counted.
    """
    half = inputs.shape[1] // 2
    kept = inputs.shape[1] - half
    powers = torch.full((inputs.shape[1],), _BASE).cumprod(0)
    begun = torch.cat([(_codes(some[:, :kept]) * powers[:kept]).sum(1) for some in inputs.split(_SEARCHED)])
    begun, place = (begun * powers[half]).sort()
    _, counts = begun.unique_consecutive(return_counts=True)
    alone = counts.repeat_interleave(counts) == 1
    begun, place = begun[alone], place[alone]
    if not len(place):
        return []
    searched = _searched(inputs)
    sums = (_codes(searched) * powers).cumsum(1)
    later = (sums[:, kept:] - sums[:, :half]) * powers[:half].flip(0)  # without the power of the step they begin at
    nearest = torch.searchsorted(begun, later).clamp(max=len(place) - 1)
    others = place[nearest]
    hits = (begun[nearest] == later) & (others != _searched(torch.arange(len(inputs)))[:, None])
    found = []
    for row in hits.any(1).nonzero()[:, 0].tolist():
        shift = int(hits[row].int().argmax())
        if torch.equal(searched[row, shift + 1 :], inputs[others[row, shift], : -shift - 1]):
            found.append(shift + 1)
    return found


def _copies(inputs: Tensor, sequence: Tensor) -> Tensor:
    """The rows' sequences, with the first in the place of all that are equal to it.

    Where some only begin alike they may be equal by chance, as those of few symbols, and are left apart. So are
    repetitions of a few sequences, as of an experiment's stimuli.
    """
    present, place = sequence.unique(return_inverse=True)
    steps = inputs.shape[1]
    codes = _codes(inputs[present]) * torch.full((steps,), _BASE).cumprod(0)
    whole, number = codes.sum(1).unique(return_inverse=True)
    if steps == 1 or not _STIMULI < len(whole) < len(present):
        return sequence
    if len(codes[:, : -(-steps // 2)].sum(1).unique()) < len(whole):
        return sequence
    first = torch.full_like(whole, len(inputs)).scatter_reduce(0, number, present, "amin")
    return first[number[place]]


def _codes(inputs: Tensor) -> Tensor:
    """A whole number for each step, (B, T), the same for equal steps."""
    numbers = inputs.double().view(torch.int64) if inputs.is_floating_point() else inputs.long()
    numbers = numbers ^ (numbers >> 32 & 0xFFFFFFFF)  # of whole numbers as floats the lower bits are 0
    if numbers.dim() == 2:
        return numbers
    return (numbers * torch.full((numbers.shape[2],), _BASE).cumprod(0)).sum(2)


def _drawn(wanted: Tensor, ends: Tensor, per_step: bool, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sequence, step and target of each row."""
    if per_step:
        known = torch.arange(wanted.shape[1]) < ends[:, None]
        asked = wanted[:, :, None] if wanted.dim() == 2 else wanted.flatten(2)
        sequence, step = (known & ~_left_out(asked)).nonzero(as_tuple=True)
        values = asked[sequence, step]
    else:
        asked = wanted.reshape(len(wanted), -1)
        sequence = (~_left_out(asked)).nonzero(as_tuple=True)[0]
        step, values = ends[sequence] - 1, asked[sequence]
    kept = _chosen(values, per_step, generator)
    return sequence[kept], step[kept], values[kept]


def _left_out(asked: Tensor) -> Tensor:
    """Which targets, of the last axis, do not count: NaN, or the class that torch ignores."""
    return (asked.isnan() if asked.is_floating_point() else asked.long() == IGNORED).any(-1)


def _chosen(values: Tensor, balanced: bool, generator: torch.Generator) -> Tensor:
    """At most `MOST_ROWS` of the rows, in order: the largest of keys ``ln w + Gumbel`` are a draw with weights w."""
    uniform = torch.rand(len(values), generator=generator, dtype=torch.float64)
    keys = -(-uniform.clamp(1e-300, 1 - 1e-16).log()).log()
    if balanced and not values.is_floating_point():
        _, classes, counts = values[:, 0].unique(return_inverse=True, return_counts=True)
        keys -= counts[classes].double().log()
    return keys.topk(min(MOST_ROWS, len(keys))).indices.sort().values


def _targets(values: Tensor) -> tuple[Tensor, Score]:
    """Values standardised, constants as 0; classes as indicators."""
    if values.is_floating_point():
        if values.isinf().any():
            raise DataError("target: infinite values are not allowed; leave a target out with NaN")
        scaled = values.double() / _unit(values.double())
        centred = scaled - scaled.mean(0)
        return centred / centred.square().mean(0).sqrt().clamp(min=_TINY), "R^2"
    if values.shape[1] != 1:
        found = tuple(values.shape[1:])
        raise DataError(
            f"target: {found} classes for each entry are not allowed; it must be one class, or real numbers"
        )
    _, classes, counts = values[:, 0].unique(return_inverse=True, return_counts=True)
    rank = counts.argsort(descending=True).argsort()
    return torch.nn.functional.one_hot(rank.clamp(max=_CLASSES - 1)[classes]).double(), "Brier skill"


def _unit(values: Tensor) -> Tensor:
    """The largest size in each column: not divided by it, large numbers may have infinite squares, small ones 0."""
    largest = values.abs().amax(0)
    return torch.where(largest > 0, largest, 1.0)


def _folds(sequence: Tensor, generator: torch.Generator) -> Tensor:
    present, place = sequence.unique(return_inverse=True)
    return torch.randperm(len(present), generator=generator)[place] % FOLDS


def _features(inputs: Tensor, inside: Tensor, sequence: Tensor, step: Tensor, generator: torch.Generator) -> Tensor:
    """The inputs at ``step`` (n, T) of the rows' sequences, as features of mean 0 and variance 1 over all steps."""
    present = inputs[inside]
    if inputs.is_floating_point() and not present.isfinite().all():
        raise DataError(
            "batch: NaN or infinite inputs are not allowed within the sequences' lengths; fill in what is missing, and "
            "say where in a further feature"
        )
    code = _symbol_codes(present, generator) if inputs.dim() == 2 else None
    sample = present[torch.randperm(len(present), generator=generator)[:_SAMPLE]]
    steps = step.shape[1]
    flat = _coded(present, code) if code is not None else present
    # A time stamp varies by less than float32 resolves.
    kind = torch.float32 if flat.dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.float64
    unit = _unit(flat.to(kind))
    spread, mean = torch.std_mean(flat.to(kind) / unit, 0, correction=0)
    resolved = spread > 8 * torch.finfo(kind).eps * mean.abs()
    if bool((~resolved & (flat != flat[:1]).any(0)).any()):
        warn(
            f"{int((~resolved).sum())} of {len(resolved)} features of the inputs vary by less than {flat.dtype} "
            f"resolves beside their means, and are left out; subtract the means in float64",
        )
    scale = torch.where(resolved, 1 / torch.where(resolved, spread, 1.0), 0.0)

    def standardised(values: Tensor) -> Tensor:
        return ((_coded(values, code).to(kind) / unit - mean) * scale).float()

    most = max(1, _NUMBERS // steps)
    turn = _principal(standardised(sample), most) if len(scale) > most else None
    history = torch.zeros(*step.shape, len(scale) if turn is None else most, dtype=torch.float32)
    for rows in torch.arange(len(step)).split(max(1, (1 << 24) // (steps * len(scale)))):
        values = inputs[sequence[rows][:, None], step[rows].clamp(min=0)]
        values = standardised(values)
        values = values if turn is None else values @ turn
        history[rows] = values * (step[rows] >= 0)[..., None]
    return history


def _symbol_codes(present: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The symbols that occur, sorted, and a vector for each: indicators, or random signs where they are many."""
    symbols = present.long().unique()
    if len(symbols) <= _ONE_HOT:
        return symbols, torch.eye(len(symbols), dtype=torch.float32)
    return symbols, torch.randint(0, 2, (len(symbols), _ONE_HOT), generator=generator).float() * 2 - 1


def _coded(values: Tensor, code: tuple[Tensor, Tensor] | None) -> Tensor:
    if code is None:
        return values
    symbols, vectors = code
    return vectors[torch.searchsorted(symbols, values.long().contiguous()).clamp(max=len(symbols) - 1)]


def _principal(sample: Tensor, count: int) -> Tensor:
    """The directions (D, count) of largest variance, scaled so that each projection has variance 1."""
    values, vectors = torch.linalg.eigh((sample.T @ sample / len(sample)).double())
    kept = values[-count:].clamp(min=1e-12)
    return (vectors[:, -count:] / kept.sqrt()).float()


def grid(longest: int) -> tuple[int, ...]:
    """Lengths from 1 to ``longest``, each about sqrt(2) times the one before.

    >>> grid(20)
    (1, 2, 3, 4, 6, 8, 11, 16, 20)
    """
    inside = {round(math.sqrt(2) ** power) for power in range(1 + math.floor(2 * math.log2(longest) + 1e-9))}
    return tuple(sorted(inside | {longest}))


def fold_rows(folds: Tensor) -> Sequence[Tensor]:
    """The rows of each fold that has any."""
    return [rows for rows in ((folds == fold).nonzero()[:, 0] for fold in range(FOLDS)) if len(rows)]
