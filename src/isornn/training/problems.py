"""Tasks by the name that configurations have for them: what is trained on, validated on and tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isornn.tasks import Adding, Copy, Task
from isornn.training.fields import Field, whole


@dataclass(frozen=True)
class Problem:
    """The parts of a task.

    Args:
        training: drawn without end or in passes.
        validation: held out; by it the best weights are chosen.
        test: held out from both.
        length: T, the steps to bridge, which a start may be made for.
    """

    training: Task
    validation: Task
    test: Task
    length: int


# The seeds of held-out items: the same for all seeds of training, from which `tasks.loader` keeps its own apart.
_VALIDATION, _TEST = 0, 1


def _generated(kind: Callable[..., Task], steps: Callable[[int], int]) -> Callable[..., Problem]:
    def build(folder: Path | None, length: int, held_out: int) -> Problem:
        validation, test = (kind(length, size=held_out, seed=seed) for seed in (_VALIDATION, _TEST))
        return Problem(kind(length), validation, test, steps(length))

    return build


_GENERATED: Mapping[str, Field] = {"length": whole(2), "held_out": whole(1, default=1000)}

PROBLEMS: Mapping[str, tuple[Mapping[str, Field], Callable[..., Problem]]] = {
    "copy": (_GENERATED, _generated(Copy, lambda length: length + 20)),
    "adding": (_GENERATED, _generated(Adding, lambda length: length)),
}


def problem_named(name: str, options: Mapping[str, Any], folder: Path | None = None) -> Problem:
    """The task called ``name`` with its ``options``, from the data in ``folder`` where it needs some.

    Raises:
        ValueError: an option that the task does not allow.
        DataError: a file that is missing or damaged.

    >>> problem_named("adding", {"length": 100, "held_out": 500}).validation
    <adding(100); generated; 500 items>
    """
    _, build = PROBLEMS[name]
    return build(folder, **options)
