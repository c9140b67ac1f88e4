"""``isornn critical`` and ``isornn isometric``."""

from __future__ import annotations

from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from isornn.cli.near_isometry import Biases, Fix, Preference, Ranges, Specs, checked_biases, fixed_fields, objective_of
from isornn.cli.options import (
    NO_INPUT,
    AsJson,
    Batch,
    CellName,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    with_input_options,
)
from isornn.cli.progress import working
from isornn.cli.show import check_writable, print_json, print_table, say

if TYPE_CHECKING:
    from isornn.init.layer_input import LayerInput
    from isornn.theory.critical_points.point import Critical

Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="SPEC.json", help="Write the spec there.")]


@with_input_options
def critical(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    fix: Fix = None,
    law: GivenInput = NO_INPUT,
    data: Batch = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """The start for sequences of T steps: hyper-parameters, what they achieve, and the line of Python that sets them.

    T is the reach by biases alone. An input to the gates shortens it: the reach shown is that of the whole cell. The
    hyper-parameters are the same for every N and D, which may be left out. With --data, T is the number of its steps
    unless given, and input weights are for the size of its numbers.
    """
    from isornn.cli.ask import check_sizes, input_law, needed_cell, needed_length, one_thread
    from isornn.theory import critical
    from isornn.theory.critical_points.python_line import batch_line

    check_writable("--output", output, (".json",))
    check_sizes(hidden, inputs)
    found = None if data is None else _measured(data, law, inputs)
    steps = needed_length(length) if found is None or length is not None else _own_length(data, found)
    kind, own = needed_cell(cell), input_law(law) if found is None else found.seen.law(f"--data: {str(data)!r}")
    fixed = fixed_fields(fix)
    with working("analysing"), one_thread():
        point = critical(kind, steps, fixed=fixed, input=own)
        _ = point.analysis  # computed under the message
    if found is not None:
        say(f"isornn: {found.seen}")
        if found.wrong is not None:
            say(f"isornn: the features of {str(data)!r} {found.wrong}")
        point = replace(point, python=batch_line(point.length, fixed))
    _show(point, steps, output, json)


class _Measured(NamedTuple):
    steps: int
    seen: LayerInput
    wrong: str | None  # with its features, in words


def _measured(file: Path, given: GivenInput, inputs: int | None) -> _Measured:
    """Inputs (sequences, steps, features), with lengths where the file has them: the most steps, and their law.

    Raises:
        SpecError: another shape, no numbers, NaN or infinity, lengths that do not fit, or a law or another number of
            inputs beside it.
    """
    import torch

    from isornn.cells import SpecError
    from isornn.cli.data_files import read_data_set
    from isornn.init.feature_sizes import wrong_with_data
    from isornn.init.layer_input import LayerInput
    from isornn.nn.sequences import Sequences

    for name, value in given._asdict().items():
        if value is not None:
            raise SpecError(f"--input-{name}", value, "--data has its own; give one of the two")
    data = read_data_set("--data", file, needed=("inputs",))
    batch = data["inputs"]
    if batch.dim() != 3 or batch.numel() == 0 or batch.is_complex():
        found = f"{tuple(batch.shape)} of {str(batch.dtype).removeprefix('torch.')}"
        raise SpecError(
            "--data", str(file), f"it must be an array (sequences, steps, features) of real numbers, not {found}"
        )
    if inputs not in (None, batch.shape[2]):
        allowed = f"it must be {batch.shape[2]}, as many as --data has features, or left out"
        raise SpecError("--inputs", inputs, allowed)
    try:
        read = Sequences.of(batch, data.get("lengths"), True, batch.shape[2])
    except ValueError as error:
        raise SpecError("--data", str(file), str(error)) from None
    x, steps = read.values, batch.shape[1]
    if not bool(x.isfinite().all()):
        raise SpecError("--data", str(file), "all of its numbers must be finite")
    lengths = x.new_full((x.shape[1],), steps, dtype=torch.int64) if read.lengths is None else read.lengths
    seen = LayerInput.of(x, lengths)
    return _Measured(int(lengths.max()), seen, wrong_with_data(seen, x, lengths))


def _own_length(file: Path | None, found: _Measured) -> int:
    """The number of steps of ``--data``, in the range of a start's.

    Raises:
        SpecError: it has one step, or too many.
    """
    from isornn.cells import SpecError
    from isornn.cli.ask import needed_length

    if found.steps == 1:
        raise SpecError(
            "--data", str(file), "its sequences have one step; give --length, the number of steps to bridge"
        )
    return needed_length(found.steps)


@with_input_options
def isometric(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    fix: Fix = None,
    biases: Biases = "fixed",
    preference: Preference = None,
    ranges: Ranges = None,
    specs: Specs = None,
    law: GivenInput = NO_INPUT,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """Hyper-parameters with which a cell's reach is T and its steps are nearly isometric; critical trains better.

    They are the same for every N and D, which may be left out.
    """
    from isornn.cli.ask import check_sizes, input_law, needed_cell, needed_length, one_thread
    from isornn.theory import isometric

    check_writable("--output", output, (".json",))
    check_sizes(hidden, inputs)
    steps, kind = needed_length(length), needed_cell(cell)
    fixed = fixed_fields(fix)
    if preference is None:
        _check_rule(ranges, specs)
        objective, doing = None, "solving"
    else:
        objective = objective_of(preference, ranges, specs)
        doing = f"evaluating {objective.specs} specs; isornn pareto shows them"
    with working(doing), one_thread():
        point = isometric(
            kind, steps, fixed=fixed, input=input_law(law), biases=checked_biases(biases), objective=objective
        )
    _show(point, steps, output, json)


def _check_rule(ranges: list[str] | None, specs: int | None) -> None:
    """Refuse options that only an objective uses.

    Raises:
        SpecError: names the option.
    """
    from isornn.cells import SpecError

    for option, value in (("--range", ranges), ("--specs", specs)):
        if value is not None and value != []:
            raise SpecError(option, value, "it is for --objective, without which no specs are searched")


def _show(point: Critical, length: int, output: Path | None, json: bool) -> None:
    if output is not None:
        _write(point, output)
    if json:
        print_json(_as_json(point))
    else:
        _print(point, length)


def _as_json(point: Critical) -> dict[str, Any]:
    achieved = point.analysis.to_json()
    return {
        "spec": achieved.pop("spec"),
        "length": point.length,
        "achieved": achieved,
        "conditions": [asdict(condition) for condition in point.conditions],
        "python": point.python,
    }


def _write(point: Critical, file: Path) -> None:
    from isornn.files import replacing

    with replacing(file) as new:
        new.write_text(dumps(point.spec.to_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    say(f"isornn: spec in {file}")


def _print(point: Critical, length: int) -> None:
    from isornn.cli.reading import sentence

    print(dumps(point.spec.to_json(), indent=1))
    rows = [(c.name, c.wanted, c.found, "yes" if c.met else "no") for c in point.conditions]
    if rows:
        print_table("", ("condition", "wanted", "found", "met"), rows)
    print(sentence(point.analysis, length))
    print(point.python)
