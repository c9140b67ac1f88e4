"""``isornn explore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isornn.cli.options import AllowImport, CellName, whole
from isornn.cli.show import say

_LOWEST, _HIGHEST = 1024, 65535


def explore(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC.json]", help="A spec file; or --cell.")] = None,
    cell: CellName = None,
    allow_import: AllowImport = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="PORT", parser=whole, help="Any free one unless given.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """A page on this machine with sliders for a cell's hyper-parameters (an LSTM by default), which shows its reach."""
    from isornn.cells import SpecError
    from isornn.cli.ask import alone, loaded
    from isornn.cli.own_code import typed_cell

    if port is not None and not _LOWEST <= port <= _HIGHEST:
        raise SpecError("--port", port, f"it must be a whole number from {_LOWEST} to {_HIGHEST}")
    if spec is not None:
        alone(cell=cell)
    from isornn.explorer.controls import opening

    if spec is None:
        start = opening(typed_cell("lstm" if cell is None else cell))
    else:
        start = loaded(spec, allow_import=allow_import)
    from isornn.explorer.server import serve  # after all refusals, as it takes seconds to import

    serve(start, port, lambda line: say(f"isornn: {line}"), browser)
