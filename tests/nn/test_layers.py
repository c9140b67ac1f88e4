"""Every layer is its equations, torch's own layers where those exist, and differentiable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from checked import MGU
from isornn import nn
from isornn.cells import LSTM, OptionError

T, B, D, N = 5, 2, 3, 4
sig = torch.sigmoid
Pre = Callable[[str, Tensor | None], Tensor]


# The equations of the papers, one line a cell: (pre-activation, states, input) -> (new states, output).
def vanilla(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    h = torch.tanh(u("h", s[0]))
    return [h], h


def minimal(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    f = sig(u("u", s[0]))
    h = f * s[0] + (1 - f) * x
    return [h], h


def gru(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    z, r = sig(u("z", s[0])), sig(u("r", s[0]))
    h = z * s[0] + (1 - z) * torch.tanh(u("nx", None) + r * u("nh", s[0]))
    return [h], h


def gru_cho(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    z, r = sig(u("z", s[0])), sig(u("r", s[0]))
    h = z * s[0] + (1 - z) * torch.tanh(u("n", r * s[0]))
    return [h], h


def lstm(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    h, c = s
    c, o = sig(u("f", h)) * c + sig(u("i", h)) * torch.tanh(u("g", h)), sig(u("o", h))
    return [o * torch.tanh(c), c], o * torch.tanh(c)


def peephole(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    (c,) = s
    new = sig(u("f", c)) * c + sig(u("i", c)) * torch.tanh(u("g", c))
    return [new], sig(u("o", c)) * torch.tanh(new)


def t_rnn(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    f = sig(u("f", None))
    h = f * s[0] + (1 - f) * u("z", None)
    return [h], h


def t_lstm(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    f = sig(u("f", None))
    c = f * s[0] + (1 - f) * u("z", None)
    return [c], c * torch.tanh(u("o", None))


def t_gru(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
    h = sig(u("f", None)) * s[0] + u("z", None) * torch.tanh(u("o", None))
    return [h], h


LAYERS = {
    vanilla: nn.VanillaRNN,
    minimal: nn.MinimalRNN,
    gru: nn.GRU,
    gru_cho: nn.ChoGRU,
    lstm: nn.LSTM,
    peephole: nn.PeepholeLSTM,
    t_rnn: nn.TRNN,
    t_lstm: nn.TLSTM,
    t_gru: nn.TGRU,
}
every_layer = pytest.mark.parametrize(("equations", "kind"), LAYERS.items(), ids=lambda v: getattr(v, "__name__", ""))


def made(kind: Callable[..., nn.RNN], **options: Any) -> nn.RNN:
    torch.manual_seed(0)
    return kind(N if kind is nn.MinimalRNN else D, N, dtype=torch.float64, **options)


def sequence(layer: nn.RNN, *shape: int) -> Tensor:
    return torch.randn(*shape, layer.input_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(equations: Callable, layer: nn.RNN, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    s = [torch.zeros(B, N, dtype=torch.float64) for _ in layer.cell.states]
    previous, outputs = torch.zeros_like(x[0]), []
    for t in range(len(x)):

        def u(gate: str, r: Tensor | None, t: int = t, previous: Tensor = previous) -> Tensor:
            p = layer.gate_parameters(gate)
            total = torch.zeros(B, N, dtype=torch.float64)
            for weight, value in ((p.recurrent, r), (p.input, x[t]), (p.previous_input, previous)):
                if weight is not None:
                    total = total + value @ weight.mT
            return sum(p.biases, start=total)

        s, out = equations(u, s, x[t])
        outputs.append(out)
        previous = x[t]
    return torch.stack(outputs), s


@every_layer
@pytest.mark.parametrize("options", [{}, {"bias": False}], ids=str)
def test_layer_is_its_equations(equations: Callable, kind: type[nn.RNN], options: dict) -> None:
    layer = made(kind, **options)
    x = sequence(layer, T, B)
    out, state = layer(x)
    expected, last = by_hand(equations, layer, x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    states = state if isinstance(state, tuple) else (state,)
    assert len(states) == len(layer.cell.states)
    for found, want in zip(states, last, strict=True):
        torch.testing.assert_close(found[0], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS.values())
def test_parameters_are_stacked_by_gate_and_views_write_through(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    for k, gate in enumerate(layer.cell.gates):
        part = layer.gate_parameters(gate)
        reads = layer.cell.gates[gate]
        assert (part.recurrent is not None, part.input is not None) == (reads.state, reads.input)
        assert (part.previous_input is not None) == reads.previous_input
        assert len(part.biases) == max(1, reads.state + (reads.input or reads.previous_input))
        with torch.no_grad():
            for view in (part.recurrent, part.input, part.previous_input, *part.biases):
                if view is not None:
                    view.fill_(k + 1.0)
    for name, parameter in layer.named_parameters():
        stack = name.removesuffix("_l0")
        in_order = [k + 1.0 for k, gate in enumerate(layer.cell.gates) if layer.gate_slice(stack, gate) is not None]
        first_column = parameter if parameter.dim() == 1 else parameter[:, 0]
        assert first_column.tolist() == [v for v in in_order for _ in range(N)]


@pytest.mark.parametrize("kind", LAYERS.values())
def test_chunks_equal_one_run_when_the_previous_input_is_given(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    x = sequence(layer, T, B)
    whole, last = layer(x)
    first, state = layer(x[:2])
    carried = {"previous": x[1]} if layer.layout.stacks["weight_ph"] else {}
    rest, end = layer(x[2:], state, **carried)
    torch.testing.assert_close(torch.cat([first, rest]), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)
    if carried:
        assert not torch.allclose(layer(x[2:], state)[0][0], whole[2])


@pytest.mark.parametrize("kind", LAYERS.values())
def test_layouts_agree(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    turned = made(kind, batch_first=True)
    x = sequence(layer, T, B)
    out, state = layer(x)
    turned_out, turned_state = turned(x.transpose(0, 1))
    torch.testing.assert_close(turned_out.transpose(0, 1), out)
    torch.testing.assert_close(turned_state, state)
    single, single_state = layer(x[:, 1])
    torch.testing.assert_close(single, out[:, 1])
    pairs = zip(single_state, state, strict=True) if isinstance(state, tuple) else [(single_state, state)]
    for one, many in pairs:
        assert one.shape == (1, N)
        torch.testing.assert_close(one, many[:, 1])
    assert layer(x[3:, 1], single_state)[0].shape == (2, N)


def test_a_users_own_cell_is_a_layer() -> None:
    def mgu(u: Pre, s: list[Tensor], x: Tensor) -> tuple[list[Tensor], Tensor]:
        f = sig(u("f", s[0]))
        h = (1 - f) * s[0] + f * torch.tanh(u("n", f * s[0]))
        return [h], h

    torch.manual_seed(0)
    layer = nn.RNN(MGU(), D, N, dtype=torch.float64)
    x = sequence(layer, T, B)
    torch.testing.assert_close(layer(x)[0], by_hand(mgu, layer, x)[0], rtol=0, atol=1e-12)


def test_default_start_is_torchs() -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(30, 100)
    for parameter in layer.parameters():
        assert parameter.abs().max() <= 0.1
        assert float(parameter.detach().var()) == pytest.approx(0.01 / 3, rel=0.15)


@pytest.mark.parametrize("kind", LAYERS.values())
def test_the_error_of_a_misspelt_argument_lists_those_of_the_layer_and_its_cell(kind: Callable[..., nn.RNN]) -> None:
    with pytest.raises(OptionError, match=r"options\.batchfirst: True is not allowed; ") as refused:
        made(kind, batchfirst=True)
    assert f"{kind.__name__} takes input_size, hidden_size, num_layers, bias, batch_first, " in str(refused.value)
    own = ", ".join(field.name for field in dataclasses.fields(kind(3, 4).cell)) or "none"
    assert str(refused.value).endswith(f"untied, and the cell's options: {own}")


def test_options_reach_the_cell() -> None:
    assert nn.LSTM(3, 4, gate="hard_sigmoid").cell == LSTM("hard_sigmoid")
    with pytest.raises(OptionError, match=r"options\.gates"):
        nn.LSTM(3, 4, gates="hard_sigmoid")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(3, 4, features="tanh"), "features: the input of lstm"),
        (lambda: nn.LSTM(3, 4, num_layers=True), "num_layers: True"),
        (lambda: nn.LSTM(3, 4, dropout=2.0), "dropout: 2"),
        (lambda: nn.LSTM(3, 4, proj_size=4), "proj_size: 4"),
        (lambda: nn.TRNN(3, 4, proj_size=2), "proj_size: t_rnn"),
        (lambda: nn.GRU(3, 4, proj_size=2), "proj_size: gru's update reads h"),
        (lambda: nn.TGRU(3, 4, before="last"), "before: 'last'"),  # type: ignore[arg-type]
        (lambda: nn.TGRU(3, 4, 2)(torch.zeros(5, 2, 3), previous=torch.zeros(2, 3)), "previous: only with one layer"),
        (lambda: nn.LSTM(3, 4)(torch.zeros(5, 2, 3), lengths=[5]), r"lengths: shape \(1,\)"),
        (
            lambda: nn.LSTM(3, 4)(torch.zeros(5, 2, 3), lengths=[5, 6]),
            r"lengths: 5 to 6 is not allowed; .* to the 5 steps",
        ),
        (lambda: nn.LSTM(3, 4)(torch.zeros(5, 2, 3), lengths=[2.0, 3.0]), "lengths: .*float32"),
        (lambda: nn.LSTM(0, 4), "input_size: 0"),
        (lambda: nn.LSTM(3, 4)(torch.zeros(5, 2, 7)), r"input: shape \(5, 2, 7\)"),
        (lambda: nn.LSTM(3, 4)(torch.zeros(0, 2, 3)), "at least one step"),
        (lambda: nn.LSTM(3, 4)(torch.zeros(5, 2, 3), torch.zeros(1, 2, 4)), "lstm has h, c"),
        (lambda: nn.GRU(3, 4)(torch.zeros(5, 2, 3), torch.zeros(2, 4)), r"hx\.h: shape \(2, 4\)"),
        (lambda: nn.GRU(3, 4)(torch.zeros(5, 2, 3), previous=torch.zeros(2, 3)), "gru reads no previous input"),
        (lambda: nn.TGRU(3, 4)(torch.zeros(5, 2, 3), previous=torch.zeros(3)), r"previous: shape \(3,\)"),
        (lambda: nn.GRU(3, 4).gate_parameters("f"), "gate: 'f'"),
        (lambda: nn.GRU(3, 4).gate_slice("weight_hh_l0", "z"), "parameter: 'weight_hh_l0'"),
    ],
)
def test_errors_name_what_is_wrong(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
