"""``isornn analyze``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import (
    NO_INPUT,
    AllowImport,
    AsJson,
    CellName,
    Figure,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    Steps,
    Tied,
    with_input_options,
)
from isornn.cli.show import check_writable, errors, print_json, print_table, say
from isornn.formatting import plus_minus, rounded
from isornn.present.labels import LABELS

if TYPE_CHECKING:
    from isornn.theory.records import Analysis


@with_input_options
def analyze(
    specs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SPEC.json ...]", help="A spec file, or one for each layer from the bottom."),
    ] = None,
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    init: Annotated[
        str | None, typer.Option("--init", metavar="START", help="torch (default), standard, chrono, critical, ...")
    ] = None,
    length: Length = None,
    law: GivenInput = NO_INPUT,
    tied: Tied = False,
    steps: Steps = None,
    allow_import: AllowImport = None,
    json: AsJson = False,
    plot: Figure = None,
) -> None:
    """Over how many steps signals and gradients survive in a network drawn by SPEC.json, or by a named start."""
    from isornn.cli import ask

    check_writable("--plot", plot, (".png", ".pdf", ".svg"))
    length = None if length is None else ask.checked_length(length)
    tied_steps = ask.tied_steps(tied, steps)
    if specs:
        ask.alone(cell=cell, hidden=hidden, inputs=inputs, init=init)
    if specs and len(specs) > 1:
        _stack(specs, law, allow_import, length, tied_steps, json, plot)
        return
    with errors().status("analysing"):
        if specs:
            analysis = ask.ask(ask.loaded(specs[0], law, allow_import), length)
        else:
            name = "torch" if init is None else init
            analysis = ask.ask_start(name, ask.named_cell(cell), hidden, inputs, length, ask.input_law(law))
        if tied_steps is not None:
            analysis = ask.with_tied(analysis, tied_steps)
    if json:
        print_json(analysis.to_json())
    else:
        _print(analysis, length)
    if plot is not None:
        _draw(analysis, plot, length)


def _stack(
    files: list[Path],
    law: GivenInput,
    allow_import: list[str] | None,
    length: int | None,
    tied_steps: int | None,
    json: bool,
    plot: Path | None,
) -> None:
    """Layers, the first of which has the input law."""
    from isornn.cells import SpecError
    from isornn.cli import ask
    from isornn.cli.stack import print_stack

    if plot is not None:
        raise SpecError("--plot", str(plot), "it is for one layer")
    with errors().status("analysing"):
        layers = [
            ask.loaded(files[0], law, allow_import),
            *(ask.loaded(file, allow_import=allow_import) for file in files[1:]),
        ]
        stack = ask.ask_stack(layers, length, tied_steps)
    if json:
        print_json(stack.to_json())
    else:
        print_stack(stack)


def _print(analysis: Analysis, length: int | None) -> None:
    from isornn.cli.reading import sentence
    from isornn.cli.tied import print_tied

    residual = float(analysis.fixed_point.residual)
    print_table(analysis.heading, ("quantity", "value", "uncertainty", "why not"), _rows(analysis, residual))
    print(sentence(analysis, length))
    if analysis.tied is not None:
        print_tied(analysis.tied)


def _rows(analysis: Analysis, residual: float) -> Iterator[tuple[str, str, str, str]]:
    exact = f"exact (residual {residual:.1g})" if analysis.engine == "quadrature" else "exact"
    for name, quantity in analysis.quantities():
        value, error = quantity.number(), quantity.error()
        shown = ("-", "") if value is None else (rounded(value, error or 0.0), plus_minus(error) if error else exact)
        yield str(LABELS[name]), *shown, quantity.reason() or ""


def _draw(analysis: Analysis, file: Path, length: int | None) -> None:
    from isornn.present import draw_analysis

    draw_analysis(analysis, file, length)
    say(f"isornn: figure in {file}")
