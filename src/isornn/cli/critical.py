"""``isornn critical``."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.options import AsJson, CellName, Correlation, Length, Variance
from isornn.cli.pareto import Biases, Fix, Preference, Ranges, Specs, checked_biases, fixed_field, objective_of
from isornn.cli.show import check_writable, errors, print_json, print_table, say

if TYPE_CHECKING:
    from isornn.cells import Cell, Input
    from isornn.theory.critical_points.front import Objective
    from isornn.theory.critical_points.records import Critical


def critical(
    cell: CellName = None,
    length: Length = None,
    fix: Fix = None,
    biases: Biases = "fixed",
    time_scales: Annotated[
        str,
        typer.Option(
            "--time-scales",
            help="uniform: the cell sees T steps as a whole; octaves: all lags up to T, the better start.",
        ),
    ] = "uniform",
    preference: Preference = None,
    ranges: Ranges = None,
    specs: Specs = None,
    input_variance: Variance = None,
    input_correlation: Correlation = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="SPEC.json", help="Write the spec there.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Hyper-parameters with which a cell sees T steps, what they achieve, and the line of Python that sets them."""
    from isornn.cli.ask import input_law, needed, needed_length, solve
    from isornn.cli.own_code import typed_cell

    check_writable("--output", output, (".json",))
    steps, kind = needed_length(length), typed_cell(needed("--cell", cell))
    law, fixed = input_law(input_variance, input_correlation), dict(map(fixed_field, fix or []))
    if preference is None:
        _check_rule(ranges, specs)
        with errors().status("solving"):
            point = solve(kind, steps, law, fixed, biases, time_scales)
    else:
        _check_uniform(time_scales)
        point = _with_objective(kind, steps, law, fixed, biases, objective_of(preference, ranges, specs))
    if output is not None:
        _write(point, output)
    if json:
        print_json(_as_json(point))
    else:
        _print(point, steps)


def _check_rule(ranges: list[str] | None, specs: int | None) -> None:
    """Refuse what only an objective looks at.

    Raises:
        SpecError: names the option.
    """
    from isornn.cells import SpecError

    for option, value in (("--range", ranges), ("--specs", specs)):
        if value:
            raise SpecError(option, value, "it goes with --objective; without one the rule says all")


def _check_uniform(time_scales: str) -> None:
    from isornn.cells import SpecError

    if time_scales != "uniform":
        raise SpecError("--time-scales", time_scales, "with --objective it is uniform; --range may set the ends")


def _with_objective(
    kind: Cell, steps: int, law: Input, fixed: dict[str, float], biases: str, objective: Objective
) -> Critical:
    from isornn.theory import critical

    with errors().status(f"looking at {objective.specs} specs; isornn pareto shows them"):
        return critical(kind, steps, fixed=fixed, input=law, biases=checked_biases(biases), objective=objective)


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
    rows = [(c.name, c.wanted, c.found, "yes" if c.met else "no, it binds") for c in point.conditions]
    print_table("", ("condition", "wanted", "found", "met"), rows)
    print(sentence(point.analysis, length))
    print(point.python)
