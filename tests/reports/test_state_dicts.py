"""Recurrent layers from a state dict alone: the tensors and their order are the model's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from isornn.cells import SpecError, cell_named
from isornn.reports.state_dicts import layers_of, notes, random_inputs


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"recurrent": nn.LSTM(3, 5, num_layers=2, bidirectional=True, proj_size=2)})
        self.decoder = nn.LSTM(4, 6, bias=False)
        self.head = nn.Linear(6, 2)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: {"epoch": 3, "state_dict": own, "optimizer": {}}])
def test_every_module_comes_back(wrapped) -> None:
    model = Model()
    found = layers_of(wrapped(model.state_dict()), "lstm")
    named = {name: module for name, module in found.named_modules() if isinstance(module, nn.LSTM)}
    assert list(named) == ["encoder.recurrent", "decoder"]
    for name, module in named.items():
        own, x = model.get_submodule(name), torch.randn(7, 2, model.get_submodule(name).input_size)
        assert torch.equal(module(x)[0], own(x)[0])
    inputs = random_inputs(found, 2000)
    assert [x.shape for x in inputs] == [(2000, 8, 3), (2000, 8, 4)]
    assert all(abs(float(x.var()) - 1) < 0.05 for x in inputs)
    found(*inputs)


@pytest.mark.parametrize(("kind", "cell"), [(nn.GRU, "gru"), (nn.RNN, "vanilla")])
def test_a_bare_module_is_itself(kind: Callable[..., nn.RNNBase], cell: str) -> None:
    module = kind(3, 4, dtype=torch.float64)
    found = layers_of(module.state_dict(), cell)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    assert type(found) is kind and torch.equal(found(x)[0], module(x)[0])
    (drawn,) = random_inputs(found, 5)
    said = notes(found, cell, 5)[0]
    assert drawn.dtype == torch.float64 and f"torch.nn.{kind.__name__}" in said and ("tanh" in said) == (kind is nn.RNN)


@pytest.mark.parametrize(
    ("content", "cell", "said"),
    [
        (nn.LSTM(2, 3).state_dict(), "gru", "weight_hh_l0: .* 3 rows for each unit"),
        (nn.LSTM(2, 3).state_dict(), "t_lstm", "--cell: .*one of lstm, gru, vanilla"),
        (nn.Linear(2, 3).state_dict(), "lstm", "tensors named weight_ih_l0 and weight_hh_l0"),
        ([1, 2], "lstm", "tensors named"),
        ({"a.weight_ih_l0": torch.zeros(4), "a.weight_hh_l0": torch.zeros(4)}, "vanilla", "a.weight_hh_l0: .*a matrix"),
        ({**nn.GRU(2, 3).state_dict(), "bias_hh_l0": torch.zeros(2)}, "gru", r"bias_hh_l0: \[2\] .* gru .*\[9\]"),
        (nn.LSTM(2, 4).state_dict(), cell_named("mgu"), r"weight_hh_l0: \[16, 4\] .* mgu .*\[16, 8\]"),
        (nn.LSTM(2, 4).state_dict(), cell_named("sru"), "bias_hh_l0: .* sru .* has no such tensor"),
        ({f"half.{n}": t for n, t in nn.GRU(2, 3).state_dict().items()}, "gru", "torch cannot call a module so"),
    ],
)
def test_what_is_no_such_state_dict_is_refused(content: object, cell: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        layers_of(content, cell)


@pytest.mark.parametrize(("kind", "name"), [(nn.LSTMCell, "lstm"), (nn.GRUCell, "gru"), (nn.RNNCell, "vanilla")])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cells_weights_are_those_of_a_layer(kind: Any, name: str, bias: bool) -> None:
    cell = kind(3, 5, bias=bias)
    layer = layers_of(nn.ModuleDict({"loop": cell}).state_dict(), name).get_submodule("loop")
    found, x = cell(torch.ones(2, 3)), torch.ones(1, 2, 3)
    torch.testing.assert_close(layer(x)[0][0], found[0] if isinstance(found, tuple) else found)


def test_modules_of_several_kinds_are_told_by_their_rows():
    model = nn.ModuleDict({"encoder": nn.LSTM(5, 8), "decoder": nn.GRUCell(8, 6), "plain": nn.RNN(4, 3)})
    for cell in ("lstm", "gru", "vanilla"):
        found = layers_of(model.state_dict(), cell)
        assert [type(one).__name__ for one in found._in_order] == ["LSTM", "GRU", "RNN"]
        assert "torch.nn.GRU and torch.nn.LSTM and torch.nn.RNN with tanh" in notes(found, cell, 5)[0]
    with pytest.raises(SpecError, match="of gru it has 3 rows for each unit"):
        layers_of({name: value for name, value in model.state_dict().items() if "encoder" in name}, "gru")


@pytest.mark.parametrize("inner", [False, True])
def test_of_a_compiled_model_names_are_those_within(inner: bool) -> None:
    model = Model()
    if inner:
        model.decoder = torch.compile(model.decoder)  # type: ignore[assignment]
    whole: Any = model if inner else torch.compile(model)
    content = whole.state_dict()
    assert any("_orig_mod" in name for name in content)
    found = layers_of(content, "lstm")
    named = [name for name, module in found.named_modules() if isinstance(module, nn.LSTM)]
    assert named == ["encoder.recurrent", "decoder"]
    found(*random_inputs(found, 4))


@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_that_are_computed_are_named(wrapped: bool) -> None:
    content = parametrizations.weight_norm(nn.LSTM(3, 8), "weight_hh_l0").state_dict()
    with pytest.raises(SpecError, match=r"parametrizations\.weight_hh_l0\.original0 is a part of one that is computed"):
        layers_of({"model": content} if wrapped else content, "lstm")
