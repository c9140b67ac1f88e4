"""Tasks by the name that configurations have for them: what is trained on, validated on and tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from isornn.tasks import (
    Adding,
    Characters,
    ConcatenatedDigits,
    Copy,
    NoisePadded,
    RepeatedPixels,
    Sentences,
    SequentialImages,
    Series,
    Task,
    UnrolledColour,
    Words,
    load_book,
    load_cifar,
    load_digits,
    load_ptb,
    load_series,
)
from isornn.tasks.image_set import Part
from isornn.training.fields import Field, flag, seed, text, whole


@dataclass(frozen=True)
class Problem:
    """The parts of a task.

    Args:
        training: drawn without end or in passes.
        validation: held out; by it the best weights are chosen.
        test: held out from both.
    """

    training: Task
    validation: Task
    test: Task

    @property
    def length(self) -> int:
        """T, the most steps of a training item, which a start may be made for."""
        items = range(len(self.training)) if self.training.lengths_vary else (0,)
        return max(len(self.training[item][0]) for item in items)


def problem_named(name: str, options: Mapping[str, Any], batch_size: int, folder: Path | None = None) -> Problem:
    """The task called ``name`` with its ``options``, from the data in ``folder`` where it needs some.

    Raises:
        ValueError: an option that the task does not allow.
        DataError: a file that is missing or damaged.

    >>> problem_named("adding", {"length": 100, "held_out": 500}, batch_size=64).validation
    <adding(100); generated; 500 items>
    """
    _, parts = PROBLEMS[name]
    task = parts(folder, batch_size, **options)
    return Problem(task("train"), task("valid"), task("test"))


Parts = Callable[[Part], Task]

# Held-out items are the same for all seeds of training, from which `tasks.loader` keeps its own apart.
_SEEDS: Mapping[Part, int] = {"train": 0, "valid": 0, "test": 1}
LONGEST = 1_000_000
"""Steps of a sequence."""
_MOST_ROWS = 10_000
# Steps of a held-out text at once; its loss does not depend on them, for the state goes on.
_HELD_OUT_UNROLL = 1000
# Side of the squares that MNIST is averaged over.
_BLOCK = 4


def _generated(kind: Callable[..., Task], folder: Path | None, batch_size: int, length: int, held_out: int) -> Parts:
    return lambda part: kind(length, size=None if part == "train" else held_out, seed=_SEEDS[part])


def _digits(
    kind: Callable[..., Task],
    folder: Path | None,
    batch_size: int,
    pooled: bool,
    block: int | None,
    held_out: int | None,
    **options: Any,
) -> Parts:
    images = load_digits(folder, pooled=pooled, block=block or _BLOCK)
    images = images if held_out is None else images.with_held_out(held_out)
    return lambda part: kind(images, part=part, **options)


def _concatenated(folder: Path | None, batch_size: int, held_out: int, **options: Any) -> Parts:
    images = load_digits(folder, pooled=False)
    return lambda part: ConcatenatedDigits(
        images, part=part, size=None if part == "train" else held_out, seed=_SEEDS[part], **options
    )


def _colour(folder: Path | None, batch_size: int) -> Parts:
    images = load_cifar(folder)
    return lambda part: UnrolledColour(images, part)


def _series(folder: Path | None, batch_size: int, set: str) -> Parts:
    series = load_series(set, folder)
    return lambda part: Series(series, part)


def _sentences(folder: Path | None, batch_size: int, longest: int) -> Parts:
    ptb = load_ptb(folder)
    return lambda part: Sentences(ptb, longest, part)


def _words(folder: Path | None, batch_size: int, unroll: int, held_out_columns: int) -> Parts:
    ptb, layout = load_ptb(folder), _layout(batch_size, unroll, held_out_columns)
    return lambda part: Words(ptb, part, **layout(part))


def _characters(folder: Path | None, batch_size: int, book: str, unroll: int, held_out_columns: int) -> Parts:
    read, layout = load_book(folder, book), _layout(batch_size, unroll, held_out_columns)
    return lambda part: Characters(read, part, **layout(part))


def _layout(batch_size: int, unroll: int, held_out_columns: int) -> Callable[[Part], dict[str, int]]:
    held_out = {"columns": held_out_columns, "unroll": _HELD_OUT_UNROLL}
    return lambda part: {"columns": batch_size, "unroll": unroll} if part == "train" else held_out


_HELD_OUT: Mapping[str, Field] = {"held_out": whole(1, default=1000)}
# Where they are absent: of each held-out part all images, not the first so many; pooled ones as `load_digits` has them.
_IMAGES: Mapping[str, Field] = {"held_out": whole(1, default=None), "block": whole(1, default=None)}
_TEXT: Mapping[str, Field] = {"held_out_columns": whole(1, default=1)}

PROBLEMS: Mapping[str, tuple[Mapping[str, Field], Callable[..., Parts]]] = {
    "copy": ({"length": whole(1, most=LONGEST), **_HELD_OUT}, partial(_generated, Copy)),
    "adding": ({"length": whole(2, most=LONGEST), **_HELD_OUT}, partial(_generated, Adding)),
    "noise_padded": (
        {"length": whole(1, most=LONGEST), "pooled": flag(True), **_IMAGES},
        partial(_digits, NoisePadded),
    ),
    "sequential_images": (
        {"permutation": seed(default=None), "pooled": flag(False), **_IMAGES},
        partial(_digits, SequentialImages),
    ),
    "repeated_pixels": (
        {
            "repeats": whole(1, most=_MOST_ROWS),
            "inputs": whole(1, default=7, most=_MOST_ROWS),
            "blank_rows": whole(0, default=0, most=_MOST_ROWS),
            "pooled": flag(False),
            **_IMAGES,
        },
        partial(_digits, RepeatedPixels),
    ),
    "concatenated_digits": (
        {
            "digits": whole(1, most=_MOST_ROWS),
            "repeats": whole(1, default=10, most=_MOST_ROWS),
            "inputs": whole(1, default=112, most=_MOST_ROWS),
            **_HELD_OUT,
        },
        _concatenated,
    ),
    "unrolled_colour": ({}, _colour),
    "series": ({"set": text()}, _series),
    "sentences": ({"longest": whole(2)}, _sentences),
    "words": ({"unroll": whole(1, default=20), **_TEXT}, _words),
    "characters": ({"book": text("war_and_peace.txt"), "unroll": whole(1, default=100), **_TEXT}, _characters),
}
"""By name, the options and what makes the parts from a folder, the batch size and the options."""
