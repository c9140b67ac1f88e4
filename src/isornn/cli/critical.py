"""``isornn critical`` and ``isornn isometric``."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.options import (
    AsJson,
    Autocorrelation,
    CellName,
    Correlation,
    GivenInput,
    Hidden,
    InputMean,
    Inputs,
    Length,
    Variance,
)
from isornn.cli.pareto import Biases, Fix, Preference, Ranges, Specs, checked_biases, fixed_field, objective_of
from isornn.cli.show import check_writable, errors, print_json, print_table, say

if TYPE_CHECKING:
    from isornn.theory.critical_points.point import Critical

Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="SPEC.json", help="Write the spec there.")]


def critical(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    fix: Fix = None,
    input_variance: Variance = None,
    input_correlation: Correlation = None,
    input_mean: InputMean = None,
    input_autocorrelation: Autocorrelation = None,
    output: Output = None,
    json: AsJson = False,
) -> None:
    """The start for sequences of T steps: hyper-parameters, what they achieve, and the line of Python that sets them.

    T is the reach by biases alone. An input to the gates shortens it: the reach shown is that of the whole cell. The
    hyper-parameters are the same for every N and D, which may be left out.
    """
    from isornn.cli.ask import check_sizes, input_law, needed_cell, needed_length, one_thread
    from isornn.theory import critical

    check_writable("--output", output, (".json",))
    check_sizes(hidden, inputs)
    steps, kind = needed_length(length), needed_cell(cell)
    law = input_law(GivenInput(input_variance, input_correlation, input_mean, input_autocorrelation))
    fixed = dict(map(fixed_field, fix or []))
    with errors().status("analysing"), one_thread():
        point = critical(kind, steps, fixed=fixed, input=law)
        _ = point.analysis  # computed under the message
    _show(point, steps, output, json)


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
    input_variance: Variance = None,
    input_correlation: Correlation = None,
    input_mean: InputMean = None,
    input_autocorrelation: Autocorrelation = None,
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
    law = input_law(GivenInput(input_variance, input_correlation, input_mean, input_autocorrelation))
    fixed = dict(map(fixed_field, fix or []))
    if preference is None:
        _check_rule(ranges, specs)
        objective, doing = None, "solving"
    else:
        objective = objective_of(preference, ranges, specs)
        doing = f"evaluating {objective.specs} specs; isornn pareto shows them"
    with errors().status(doing), one_thread():
        point = isometric(kind, steps, fixed=fixed, input=law, biases=checked_biases(biases), objective=objective)
    _show(point, steps, output, json)


def _check_rule(ranges: list[str] | None, specs: int | None) -> None:
    """Refuse options that only an objective uses.

    Raises:
        SpecError: names the option.
    """
    from isornn.cells import SpecError

    for option, value in (("--range", ranges), ("--specs", specs)):
        if value:
            raise SpecError(option, value, "it goes with --objective; without one the rule says all")


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
    print_table("", ("condition", "wanted", "found", "met"), rows)
    print(sentence(point.analysis, length))
    print(point.python)
