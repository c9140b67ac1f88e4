"""Weights, states and input of unlike dtypes and devices are refused; what torch runs beside is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, grad

from isornn import nn
from isornn.cells import Values, Vanilla
from isornn.nn import segments
from isornn.nn.recurrence import recurrence

LAYERS = (nn.LSTM, nn.GRU, nn.VanillaRNN, nn.PeepholeLSTM)


@pytest.mark.parametrize("steps", [2, 6])
@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_left_on_meta_is_refused(kind: Callable[[int, int], nn.RNN], steps: int) -> None:
    with torch.device("meta"):
        layer = kind(3, 4)
    x = torch.zeros(steps, 2, 3)
    assert layer(x.to("meta"))[0].is_meta
    with pytest.raises(ValueError, match="input: device cpu is not allowed; the layer is on meta"):
        layer(x)
    weights = kind(3, 4).state_dict()
    weights.pop("weight_hh_l0")
    layer.load_state_dict(weights, strict=False, assign=True)
    with pytest.raises(ValueError, match="weight_hh: device meta is not allowed; the layer is on cpu"):
        layer(x)


def test_a_state_on_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hx\.h: device meta is not allowed; the layer is on cpu"):
        nn.GRU(3, 4)(torch.zeros(6, 2, 3), torch.empty(1, 2, 4, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "said"), [("weight_hh_l0", "weight_hh"), ("bias_ih_l0", "biases")])
@pytest.mark.parametrize("steps", [2, 6])
def test_one_weight_of_another_dtype_is_refused(name: str, said: str, dtype: torch.dtype, steps: int) -> None:
    layer = nn.GRU(3, 4)
    setattr(layer, name, torch.nn.Parameter(getattr(layer, name).detach().to(dtype)))
    if name == "bias_ih_l0" and dtype != torch.float64:  # the sum of both biases is single
        assert layer(torch.zeros(steps, 2, 3))[0].dtype == torch.float32
        return
    with pytest.raises(ValueError, match=f"{said}: {dtype} is not allowed; the layer is torch.float32"):
        layer(torch.zeros(steps, 2, 3))


@pytest.mark.parametrize("kind", [nn.GRU, nn.PeepholeLSTM])
def test_compiled_transforms(kind: Callable[[int, int], nn.RNN]) -> None:
    torch.manual_seed(0)
    layer, x = kind(3, 5), torch.randn(5, 2, 3)

    def loss(weights: Mapping[str, Tensor]) -> Tensor:
        total: Tensor = functional_call(layer, dict(weights), (x,))[0].square().sum()
        return total

    weights = dict(layer.named_parameters())
    wanted, found = grad(loss)(weights), torch.compile(grad(loss), backend="eager")(weights)
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_checkpoints_do_not_bind_a_program_to_a_length() -> None:
    layer = nn.LSTM(3, 5, checkpoint_every=4)
    traced = torch.jit.trace(layer, torch.randn(6, 2, 3))
    x = torch.randn(9, 2, 3)
    torch.testing.assert_close(traced(x)[0], layer(x)[0])


def test_large_finite_states_in_half_precision_are_no_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.VanillaRNN(8, 64, nonlinearity="relu").half()
    with torch.no_grad():
        layer.bias_ih_l0.fill_(1.0)
    lengths, calls, whole = [100 - 2 * k for k in range(40)], [0], recurrence

    def counted(*given: object) -> list[Tensor]:
        calls[0] += 1
        found: list[Tensor] = whole(*given)  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(segments, "recurrence", counted)
    out, _ = layer(torch.rand(100, 40, 8).half() + 1, lengths=torch.tensor(lengths))
    assert bool(out.isfinite().all()) and float(out.detach().float().sum()) > torch.finfo(torch.float16).max
    assert calls == [1]


@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm_without_gradients_is_the_one_with_them(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(3, 7, num_layers=2, bidirectional=True, bias=bias)
    x, state = torch.randn(20, 5, 3), (torch.randn(4, 5, 7), torch.randn(4, 5, 7))
    with torch.no_grad():
        found = layer(x, state)
    torch.testing.assert_close(found, layer(x, state), check_device=True)


def test_fake_tensors_give_shapes_of_a_cell_that_is_first_read_among_them() -> None:
    class Halved(Vanilla):
        """Read by no other test: graphs are kept by cell."""

        name = "halved"

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"h": torch.tanh(u.h) / 2}

    with FakeTensorMode():
        layer = nn.RNN(Halved(), 3, 4)
        out, _ = layer(torch.randn(6, 2, 3))
        out.sum().backward()
    assert isinstance(out, FakeTensor) and out.shape == (6, 2, 4)
    real = nn.RNN(Halved(), 3, 4)(torch.randn(6, 2, 3))[0]
    assert not isinstance(real, FakeTensor) and bool(real.isfinite().all())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda x: (x.to_sparse(),), "input: a sparse_coo tensor"),
        (lambda x: (torch.nested.nested_tensor([x[:4, 0], x[:2, 1]]),), "input: a nested tensor"),
        (lambda x: (x, (torch.zeros(1, 2, 4).to_sparse(), torch.zeros(1, 2, 4))), r"hx\.h: a sparse_coo tensor"),
    ],
)
def test_tensors_that_are_not_dense_are_refused(given: Callable[[Tensor], tuple[Any, ...]], words: str) -> None:
    with pytest.raises(ValueError, match=f"{words} is not allowed; it must be dense"):
        nn.LSTM(3, 4)(*given(torch.randn(6, 2, 3)))


@pytest.mark.parametrize("lengths", ["ab", [None, 2], [2.5, 1], torch.tensor([3, 2]).to_sparse()])
def test_lengths_that_are_no_whole_numbers_are_refused(lengths: Any) -> None:
    with pytest.raises(ValueError, match="lengths: .* not allowed"):
        nn.LSTM(3, 4)(torch.randn(6, 2, 3), lengths=lengths)


def test_a_previous_input_of_another_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match=r"previous: torch\.float64 is not allowed; the input is torch\.float32"):
        nn.TLSTM(3, 4)(torch.randn(6, 2, 3), previous=torch.zeros(2, 3).double())
