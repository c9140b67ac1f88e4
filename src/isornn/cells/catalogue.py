"""Cells by the name that spec files and the command line use: the nine of the theory's papers, and further ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from isornn.cells.activations import OptionError
from isornn.cells.cell import Cell
from isornn.cells.gru import GRU, ChoGRU
from isornn.cells.lstm import LSTM, CoupledLSTM, GersLSTM, Peephole
from isornn.cells.minimal import Minimal
from isornn.cells.typed import SCRN, TGRU, TLSTM, TMR, TRNN
from isornn.cells.vanilla import Vanilla

CELLS: dict[str, type[Cell]] = {
    kind.name: kind for kind in (Vanilla, Minimal, GRU, ChoGRU, LSTM, Peephole, TRNN, TLSTM, TGRU)
}

FURTHER_CELLS: dict[str, type[Cell]] = {kind.name: kind for kind in (GersLSTM, CoupledLSTM, TMR, SCRN)}


def cell_named(name: str, options: Mapping[str, Any] | None = None) -> Cell:
    """The cell called ``name`` with its ``options``.

    Raises:
        OptionError: unknown name, unknown option or value; the message names what is allowed.

    >>> cell_named("lstm", {"gate": "hard_sigmoid"})
    LSTM(gate='hard_sigmoid')
    """
    known = CELLS | FURTHER_CELLS
    if not isinstance(name, str) or name not in known:
        raise OptionError(f"cell: {name!r} is not one of {', '.join(known)}")
    return with_options(known[name], options or {})


def with_options(kind: type[Cell], options: Mapping[str, Any]) -> Cell:
    """The cell of this kind with its ``options``.

    Raises:
        OptionError: unknown option or value; the message names what is allowed.

    >>> with_options(LSTM, {"gate": "sigmoid"})
    LSTM(gate='sigmoid')
    """
    offered = [field.name for field in fields(kind)]
    for option in options:
        if option not in offered:
            raise OptionError(f"options.{option}: {kind.name} has {', '.join(offered) or 'none'}")
    return kind(**options)
