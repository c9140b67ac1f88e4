"""Import the user's code that a command line names, from the current folder too, as ``python -m`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isornn.cells import Cell


def import_from_here() -> None:
    """Let modules of the current folder be imported; only for a module that the user has named."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)


def typed_cell(name: str) -> Cell:
    """The cell of ``--cell``; a module that the user typed there may be imported.

    Raises:
        OptionError, CellError: as `cell_named`.
    """
    from isornn.cells import cell_named

    module, colon, _ = name.partition(":")
    if not colon:
        return cell_named(name)
    import_from_here()
    return cell_named(name, allow=(module,))


def allowed(packages: Sequence[str] | None) -> tuple[str, ...]:
    """The packages of ``--allow-import``, which files may name cells of.

    Raises:
        SpecError: no name of a package.
    """
    from isornn.cells import SpecError

    for package in packages or ():
        if not all(part.isidentifier() for part in package.split(".")):
            raise SpecError("--allow-import", package, "it must be the name of a package or module, as my_cells")
    if packages:
        import_from_here()
    return tuple(packages or ())
