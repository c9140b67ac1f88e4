"""``isornn compare``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

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
from isornn.cli.show import errors, print_json, print_table
from isornn.formatting import share, with_error_of

if TYPE_CHECKING:
    from isornn.cells import Cell, Input


@dataclass(frozen=True)
class Row:
    """The results of one start; ``None`` where there is no value, ``reason`` says why there is no reach.

    ``left`` is the norm of the response after T steps relative to one step, ``sqrt(P_T / P_1)``.
    """

    start: str
    reach: float | None
    reach_stderr: float | None
    xi: float | None
    chi: float | None
    left: float | None
    verdict: str
    reason: str | None


def compare(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    input_variance: Variance = None,
    input_correlation: Correlation = None,
    input_mean: InputMean = None,
    input_autocorrelation: Autocorrelation = None,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Also the starts of libraries in use, which takes about 20 s more.")
    ] = False,
    json: AsJson = False,
) -> None:
    """All starts side by side for sequences of T steps, best first: the one whose reach is closest to T."""
    from isornn.cells import full_name
    from isornn.cells.starts import IN_USE, TEXTBOOK
    from isornn.cli.ask import input_law, needed_cell, needed_length

    steps, kind = needed_length(length), needed_cell(cell)
    law = input_law(GivenInput(input_variance, input_correlation, input_mean, input_autocorrelation))
    names = (*TEXTBOOK, *(IN_USE if in_use else ()), "critical")
    rows = sorted(_rows(names, kind, hidden, inputs, steps, law), key=lambda row: _miss(row, steps))
    if json:
        sizes = {"cell": full_name(kind), "hidden": hidden, "inputs": inputs, "length": steps}
        print_json({**sizes, "starts": [asdict(row) for row in rows]})
    else:
        _print(rows, f"{kind.name}, N = {hidden}, D = {inputs}, T = {steps}")


def _rows(
    names: Iterable[str], cell: Cell, hidden: int | None, inputs: int | None, length: int, law: Input
) -> Iterator[Row]:
    from isornn.cells import Spec, SpecError
    from isornn.cli.ask import ask_start, started
    from isornn.cli.reading import left_after, verdict
    from isornn.theory.records import TheoryMissing

    # Sizes and input are checked once, so that only what is peculiar to a start is left as its reason.
    Spec(cell, input=law)
    started("torch", cell, hidden, inputs, length, law)
    with errors().status("") as status:
        for name in names:
            status.update(f"analysing {name}")
            try:
                answer = ask_start(name, cell, hidden, inputs, length, law)
            except (SpecError, TheoryMissing) as reason:
                yield Row(name, None, None, None, None, None, "none", str(reason))
                continue
            yield Row(
                name,
                answer.reach.number(),
                answer.reach.error(),
                answer.xi.number(),
                answer.chi.number(),
                left_after(answer, length),
                verdict(answer, length),
                answer.reach.reason(),
            )


def _miss(row: Row, length: int) -> float:
    """How far the reach is from the length, as a ratio."""
    return math.inf if not row.reach else abs(math.log(row.reach / length))


def _print(rows: list[Row], title: str) -> None:

    columns = ("start", "reach, steps", "xi", "chi", "left after T", "verdict", "why not")
    cells = [
        (
            row.start,
            with_error_of(row.reach, row.reach_stderr),
            with_error_of(row.xi),
            with_error_of(row.chi),
            share(row.left),
            row.verdict,
            row.reason or "",
        )
        for row in rows
    ]
    print_table(title, columns, cells)
