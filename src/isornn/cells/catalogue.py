"""The nine cells by the name that spec files and the command line use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isornn.cells.activations import OptionError
from isornn.cells.cell import Cell
from isornn.cells.gru import GRU, ChoGRU
from isornn.cells.lstm import LSTM, Peephole
from isornn.cells.minimal import Minimal
from isornn.cells.typed import TGRU, TLSTM, TRNN
from isornn.cells.vanilla import Vanilla

CELLS: dict[str, type[Cell]] = {
    kind.name: kind for kind in (Vanilla, Minimal, GRU, ChoGRU, LSTM, Peephole, TRNN, TLSTM, TGRU)
}


def cell_named(name: str, options: Mapping[str, Any] | None = None) -> Cell:
    """The cell called ``name`` with its ``options``.

    Raises:
        OptionError: unknown name, unknown option or value; the message names what is allowed.

    >>> cell_named("lstm", {"gate": "hard_sigmoid"})
    LSTM(gate='hard_sigmoid')
    """
    if not isinstance(name, str) or name not in CELLS:
        raise OptionError(f"cell: {name!r} is not one of {', '.join(CELLS)}")
    kind, given = CELLS[name], dict(options or {})
    offered = [field.name for field in fields(kind)]
    for option in given:
        if option not in offered:
            raise OptionError(f"options.{option}: {name} has {', '.join(offered)}")
    return kind(**given)
