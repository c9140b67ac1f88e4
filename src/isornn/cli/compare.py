"""``isornn compare``."""

from __future__ import annotations

from typing import Annotated

import typer

from isornn.cli.options import (
    NO_INPUT,
    AsJson,
    CellName,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    with_input_options,
)
from isornn.cli.show import errors, print_json, print_table


@with_input_options
def compare(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    law: GivenInput = NO_INPUT,
    in_use: Annotated[
        bool, typer.Option("--in-use", help="Also the starts that other libraries use; takes about 20 s more.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Named starts side by side for sequences of T steps, the one whose reach is closest to T first."""
    from isornn.cli.ask import input_law, needed_cell, needed_length, one_thread
    from isornn.cli.options import needed
    from isornn.theory.compared_starts import COLUMNS
    from isornn.theory.compared_starts import compare as side_by_side

    steps, kind = needed_length(length), needed_cell(cell)
    units = needed("--hidden", hidden, "it is the number of units, N")
    features = needed("--inputs", inputs, "it is the number of inputs per step, D")
    with errors().status("") as status, one_thread():
        found = side_by_side(
            kind,
            steps,
            hidden=units,
            inputs=features,
            input=input_law(law),
            in_use=in_use,
            progress=lambda name: status.update(f"analysing {name}"),
        )
    if json:
        print_json(found.to_json())
    else:
        print_table(found.heading, COLUMNS, (one.row() for one in found.starts))
