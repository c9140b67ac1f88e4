"""Recurrent cells, each defined by one step, and the hyper-parameters of their random initialisation."""

from isornn.cells.bias_laws import BiasLaw
from isornn.cells.catalogue import CELLS, FURTHER_CELLS, cell_named, full_name, with_options
from isornn.cells.cell import (
    Cell,
    ParameterLaw,
    ParametersSpread,
    Reads,
    Values,
    drawn_parameters,
    initial_parameters,
    spread_parameters,
)
from isornn.cells.errors import CellError, OptionError, SpecError
from isornn.cells.gru import GRU, ChoGRU
from isornn.cells.laws import Gate, Input
from isornn.cells.lstm import LSTM, CoupledLSTM, GersLSTM, Peephole
from isornn.cells.minimal import Minimal
from isornn.cells.spec import Spec
from isornn.cells.type_rules import Typing, typing_of
from isornn.cells.typed import SCRN, TGRU, TLSTM, TMR, TRNN
from isornn.cells.vanilla import Vanilla

__all__ = [
    "CELLS",
    "FURTHER_CELLS",
    "GRU",
    "LSTM",
    "SCRN",
    "TGRU",
    "TLSTM",
    "TMR",
    "TRNN",
    "BiasLaw",
    "Cell",
    "CellError",
    "ChoGRU",
    "CoupledLSTM",
    "Gate",
    "GersLSTM",
    "Input",
    "Minimal",
    "OptionError",
    "ParameterLaw",
    "ParametersSpread",
    "Peephole",
    "Reads",
    "Spec",
    "SpecError",
    "Typing",
    "Values",
    "Vanilla",
    "cell_named",
    "drawn_parameters",
    "full_name",
    "initial_parameters",
    "spread_parameters",
    "typing_of",
    "with_options",
]
