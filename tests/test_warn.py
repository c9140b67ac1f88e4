"""Warnings point at the caller's line, however the package was entered."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from isornn import Input, init
from isornn.cells import Peephole
from isornn.nn import LSTM, RNN, parametrize_spectral_
from isornn.warn import warn


class Own(LSTM):
    def __init__(self) -> None:
        super().__init__(2, 3, dropout=0.5)


def entered_by_torch() -> None:
    layer = nn.RNN(3, 4)
    parametrize_spectral_(layer, "weight_hh_l0", 0.1)
    layer.weight_hh_l0 = torch.diag(torch.tensor([0.2, 1.0, 1.0, 3.0]))


def unmet_conditions() -> None:
    init.critical_(RNN(Peephole(), 3, 8), 50, fixed={"f.input_var": 4.0}, input=Input())


def unmet_conditions_of_a_batch() -> None:
    init.critical_(RNN(Peephole(), 3, 8), batch=torch.randn(50, 4, 3), fixed={"f.input_var": 4.0})


def unknown_input() -> None:
    init.critical_(nn.GRU(2, 8), 20)


@pytest.mark.parametrize(
    "entered", [Own, entered_by_torch, unmet_conditions, unmet_conditions_of_a_batch, unknown_input]
)
def test_a_warning_names_the_line_that_called_the_package(entered: Callable[[], object]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entered()
    assert {one.filename for one in caught} == {__file__}


def test_a_warning_of_the_callers_own_line() -> None:
    with pytest.warns(RuntimeWarning, match="here") as caught:
        warn("here", RuntimeWarning)
    assert caught[0].filename == __file__
