"""Build specs from options and compute the theory's quantities for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from isornn.cells import Cell, Input, Spec, SpecError
from isornn.cells.arguments import seeded, whole_number
from isornn.cells.errors import suggested
from isornn.cells.starts import STARTS, TIMED, start
from isornn.cli.options import NO_INPUT, GivenInput, needed
from isornn.cli.own_code import allowed, typed_cell
from isornn.theory.analysis import analyze
from isornn.theory.reasons import TheoryMissing
from isornn.theory.records import Analysis
from isornn.theory.tied.analysis import tied_analysis

if TYPE_CHECKING:
    from isornn.theory.depth.stack import StackAnalysis

INITS = (*STARTS, "critical", "isometric")
LONGEST = 1_000_000
TIED_STEPS = 60
MOST_TIED_STEPS = 1000  # their time and memory grow with the square
STEPS = 100  # of the profile where no length is given
MOST_STEPS = 10_000  # of the profile; further on it is continued by chi


def needed_length(length: int | None) -> int:
    """``length``, which must be given and in the range of a start's."""
    from isornn.theory.critical_points.front import check_length

    given = needed("--length", length, "it is the number of steps to bridge")
    check_length(given)
    return given


def needed_cell(cell: str | None) -> Cell:
    """The cell of ``--cell``, which must be given.

    Raises:
        OptionNeeded, OptionError, CellError: none given, or there is none of this name.
    """
    return typed_cell(needed("--cell", cell, "isornn cells lists the names"))


def checked_length(length: int) -> int:
    """``length`` in its range.

    Raises:
        SpecError: it is not.
    """
    if not 1 <= length <= LONGEST:
        raise SpecError("length", length, f"it must be a number of steps from 1 to {LONGEST}")
    return length


def input_law(given: GivenInput, default: Input | None = None) -> Input:
    """The law of the input sequences, ``default`` where nothing else is given."""
    changed = {name: value for name, value in given._asdict().items() if value is not None}
    return replace(Input() if default is None else default, **changed)


def alone(**options: object) -> None:
    """Refuse options that cannot be combined with SPEC.json.

    Raises:
        SpecError: names the first of them.
    """
    for name, value in options.items():
        if value is not None:
            raise SpecError(f"--{name}", value, "SPEC.json says that itself; give SPEC.json or --cell")


def loaded(file: Path, given: GivenInput = NO_INPUT, allow_import: Sequence[str] | None = None) -> Spec:
    """The spec in a file, under another input law where one is given.

    Raises:
        SpecError: not a spec file; names the field.
        OptionError: a cell in a module that is not allowed.
    """
    spec = Spec.load(file, allow=allowed(allow_import))
    return replace(spec, input=input_law(given, spec.input))


def named_cell(cell: str | None) -> Cell:
    """The cell of ``--cell``, where no SPEC.json is given.

    Raises:
        OptionNeeded, OptionError, CellError: none given, or there is none of this name.
    """
    return typed_cell(needed("SPEC.json or --cell", cell, "it is a file of hyper-parameters, or a cell's name"))


def ask(spec: Spec, length: int | None) -> Analysis:
    """The theory's answer with a profile as far as ``length``."""
    with one_thread():
        return analyze(spec, length=min(length or STEPS, MOST_STEPS))


def ask_stack(layers: Sequence[Spec], length: int | None, tied: int | None) -> StackAnalysis:
    """The theory of a stack of layers, and that of tied networks over ``tied`` steps if given.

    Raises:
        SpecError: a stack that the theory does not cover.
    """
    from isornn.theory.depth.analysis import analyze_stack

    steps = min(length or STEPS, MOST_STEPS)
    try:
        with one_thread():
            return analyze_stack(layers, length=steps, tied=tied is not None, steps=tied or TIED_STEPS)
    except TheoryMissing as missing:
        raise SpecError("SPEC.json", [layer.cell.name for layer in layers], str(missing)) from None


def tied_steps(tied: bool, steps: int | None, least: int = 2) -> int | None:
    """The number of steps of tied networks, at least ``least``, if requested.

    Raises:
        SpecError: steps without --tied, or out of range.
    """
    if steps is not None and not tied:
        raise SpecError("--steps", steps, "it is for --tied")
    if steps is not None and not least <= steps <= MOST_TIED_STEPS:
        raise SpecError("steps", steps, f"it must be a number of steps from {least} to {MOST_TIED_STEPS}")
    return (steps or TIED_STEPS) if tied else None


def with_tied(analysis: Analysis, steps: int) -> Analysis:
    """The same with the theory of tied networks.

    Raises:
        SpecError: the theory does not have such networks.
    """
    generator = seeded(None)
    try:
        return replace(analysis, tied=tied_analysis(analysis.spec, steps, generator=generator))
    except TheoryMissing as missing:
        raise SpecError("--tied", analysis.spec.cell.name, str(missing)) from None


def ask_start(
    name: str, cell: Cell, hidden: int | None, inputs: int | None, length: int | None, input: Input
) -> Analysis:
    """The theory's answer about a named start.

    Raises:
        SpecError: as `started`.
    """
    return ask(started(name, cell, hidden, inputs, length, input), length)


def started(name: str, cell: Cell, hidden: int | None, inputs: int | None, length: int | None, input: Input) -> Spec:
    """The spec of a named start.

    Raises:
        SpecError: no such start; a start that the cell does not have.
        OptionNeeded: a size or a length that it needs was not given.
    """
    from isornn.theory.critical_points.point import critical, isometric

    if name not in INITS:
        raise SpecError("init", name, f"{suggested(name, INITS)}starts are {', '.join(INITS)}")
    if name in STARTS:
        needed("--hidden", hidden, "it is the number of units, N")
        needed("--inputs", inputs, "it is the number of inputs per step, D")
        if name in TIMED:
            needed("--length", length, "it is the number of steps to bridge, above 2")
        return start(name, cell, hidden, inputs, length, input)
    check_sizes(hidden, inputs)
    with one_thread():
        point = (critical if name == "critical" else isometric)(cell, needed_length(length), input=input)
    return point.spec


def check_sizes(hidden: int | None, inputs: int | None) -> None:
    """Sizes that a start does not need may be left out, but not be invalid."""
    for field, size in (("hidden", hidden), ("inputs", inputs)):
        if size is not None:
            whole_number(field, size)


@contextmanager
def one_thread() -> Iterator[None]:
    """The theory's tensors are small: synchronising threads costs more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
