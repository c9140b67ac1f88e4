"""``isornn diagnose``."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.options import AsJson, CellName, Length, needed
from isornn.cli.show import check_writable, errors, print_json, print_rich, say

if TYPE_CHECKING:
    from isornn.reports import Comparison, Report

_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


def diagnose(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[WHAT]", help="package.module:factory, or a file of weights, with --cell."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="The batch, .npy, .npz or .pt, in place of the factory's."),
    ] = None,
    length: Length = None,
    cell: CellName = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE.html", help="One page with all figures, for a browser.")
    ] = None,
    theory: Annotated[
        bool,
        typer.Option("--theory", help="Also what theory predicts, which takes longer than all else."),
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A.json B.json", help="Two files of --json side by side, without WHAT."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Over how many steps gradients survive in your model on your data, with findings and the Python that fixes them.

    The factory is a function without arguments that returns the model, or (model, batch).
    """
    from isornn.cells import SpecError
    from isornn.cli.ask import LONGEST

    check_writable("--html", html, (".html",))
    if compare is not None:
        if what is not None:
            raise SpecError("WHAT", what, "with --compare nothing else is measured")
        _show(_compared(*compare), html, json)
        return
    what = needed(
        "WHAT", what, "it must be package.module:factory or a file of weights, unless --compare has two reports"
    )
    if length is not None and not 2 <= length <= LONGEST:
        raise SpecError("--length", length, f"it must be a number of steps to bridge, from 2 to {LONGEST}")
    if Path(what).suffix.lower() in _WEIGHTS:
        report = _of_weights(Path(what), data, length, cell, theory)
    else:
        report = _of_factory(what, data, length, cell, theory)
    _show(report, html, json)


def _show(found: Report | Comparison, html: Path | None, json: bool) -> None:
    if json:
        print_json(found.to_json())
    else:
        print_rich(found)
    if html is not None:
        found.to_html(html)
        say(f"isornn: page in {html}")


def _compared(first: Path, second: Path) -> Comparison:
    from isornn.cells import SpecError
    from isornn.reports import Comparison, Report

    if first == second:
        raise SpecError("--compare", str(second), "it must be another file than the first")
    return Comparison({str(file): Report.read(file) for file in (first, second)})


def _of_factory(what: str, data: Path | None, length: int | None, cell: str | None, theory: bool) -> Report:
    from isornn.cells import SpecError
    from isornn.cli.data_files import read_batch
    from isornn.cli.model_files import factory_name, made

    factory_name(what)
    if cell is not None:
        raise SpecError(
            "--cell",
            cell,
            "it is for a file of weights (of a run's folder, its checkpoint.pt); a factory's model knows its own",
        )
    with errors().status("making the model"):
        model, batch = made(what)
    if data is not None:
        batch = read_batch(data, model)
    batch = needed("--data", batch, f"it is the batch, unless {what} returns (model, batch)")
    return _diagnosed(what, model, batch, length, theory)


def _of_weights(file: Path, data: Path | None, length: int | None, cell: str | None, theory: bool) -> Report:
    from isornn.cells import SpecError
    from isornn.cells.catalogue import OF_TORCH
    from isornn.cli.model_files import read_weights
    from isornn.cli.own_code import typed_cell
    from isornn.reports import Report
    from isornn.reports.state_dicts import KINDS, STEPS, layers_of, notes, random_inputs

    if data is not None:
        raise SpecError("--data", str(data), "it is for a factory; of weights alone nobody knows what gets the data")
    weights = read_weights(file)
    why = "a file of weights does not say whose they are: torch's lstm, gru or vanilla, or another cell"
    cell = needed("--cell", cell, why)
    steps = STEPS if length is None else length
    name = OF_TORCH.get(cell, cell)
    kind = name if name in KINDS else typed_cell(name)
    model = layers_of(weights, kind)
    found = _diagnosed(str(file), model, random_inputs(model, steps), steps, theory)
    return Report(found.diagnosis, found.findings, model, notes(model, kind, steps))


def _diagnosed(what: str, model: Any, batch: Any, length: int | None, theory: bool) -> Report:
    """The report; an error of the user's own code when it ran on the batch is reported as such.

    Raises:
        TheirError: such an error, or a model that cannot be measured.
    """
    from isornn.cli.model_files import TheirError, their
    from isornn.diagnosis import ReplayError
    from isornn.reports import diagnose

    try:
        with errors().status("measuring") as status, redirect_stdout(sys.stderr):
            return diagnose(model, batch, length, theory=theory, progress=status.update)
    except ReplayError as error:
        raise TheirError(f"{what}: {error}") from error
    except Exception as error:
        if not _raised_by_the_model(error):
            raise
        raise their(f"{what}: when the model ran on the batch", error) from error


def _raised_by_the_model(error: Exception) -> bool:
    """Whether it was raised by the model's own run, and not by the hooks on it."""
    trace, passed = error.__traceback__, []
    while trace is not None:
        passed.append((trace.tb_frame.f_globals.get("__name__", ""), trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    passes_on = ("isornn.capture.torch_functions", "__torch_function__")  # every function of torch that the model calls
    if passed[-1] == passes_on:
        passed.pop()
    ours = ("isornn.capture", "isornn.diagnosis")
    return ("isornn.capture.run", "capture") in passed and not passed[-1][0].startswith(ours)
