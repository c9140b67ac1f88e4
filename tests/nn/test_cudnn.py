"""What torch.nn calls on a CUDA device gives what the kernels give; run here on the CPU, where torch has it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from isornn.nn import GRU, LSTM, PeepholeLSTM, VanillaRNN, cudnn
from isornn.nn.rnn import RNN

LAYERS: dict[str, Any] = {
    "lstm": LSTM,
    "gru": GRU,
    "tanh": VanillaRNN,
    "relu": lambda D, N, **options: VanillaRNN(D, N, nonlinearity="relu", **options),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}

every_layer = pytest.mark.parametrize("name", LAYERS)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the calls of torch's functions, which are made on the CPU too."""
    made: list[int] = []
    run = cudnn._run

    def counted(mode: str, inputs: Tensor, *others: Any) -> tuple[Tensor, ...]:
        made.append(len(inputs))
        return run(mode, inputs, *others)

    monkeypatch.setattr(cudnn, "_acceptable", lambda _: True)
    monkeypatch.setattr(cudnn, "_run", counted)
    return made


def gradients(layer: RNN, x: Tensor, state: Any, **given: Any) -> list[Tensor]:
    """Outputs, last states, and the gradients of everything."""
    states = [state] if isinstance(state, Tensor) else list(state)
    leaves = [value.clone().requires_grad_() for value in (x, *states)]
    out, last = layer(leaves[0], tuple(leaves[1:]) if len(states) > 1 else leaves[1], **given)
    results = [out, last] if isinstance(last, Tensor) else [out, *last]
    generator = torch.Generator().manual_seed(1)
    weighted = (torch.randn(value.shape, generator=generator, dtype=value.dtype) * value for value in results)
    loss = torch.stack([value.sum() for value in weighted]).sum()
    return [*results, *torch.autograd.grad(loss, [*leaves, *layer.parameters()])]


def sample(layer: RNN, T: int = 7, B: int = 3) -> tuple[Tensor, Any]:
    generator = torch.Generator().manual_seed(0)
    dtype, places = next(layer.parameters()).dtype, len(list(layer.places()))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    sizes = [layer.proj_size or layer.hidden_size, *(layer.hidden_size for _ in layer.cell.states[1:])]
    states = tuple(normal(places, B, size) for size in sizes)
    return normal(T, B, layer.input_size), states if len(states) > 1 else states[0]


def both(layer: RNN, calls: list[int], **given: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of numbers by torch's functions and by the kernels."""
    x, state = sample(layer)
    found = gradients(layer, x, state, **given)
    assert calls
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudnn, "_acceptable", lambda _: False)
        count = len(calls)
        expected = gradients(layer, x, state, **given)
        assert len(calls) == count
    return zip(found, expected, strict=True)


@every_layer
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, True)])
def test_values_and_gradients(
    name: str, dtype: torch.dtype, bias: bool, layers: int, bidirectional: bool, calls: list[int]
) -> None:
    layer = LAYERS[name](4, 5, num_layers=layers, bias=bias, bidirectional=bidirectional, dtype=dtype)
    for value, wanted in both(layer, calls):
        torch.testing.assert_close(value, wanted, rtol=TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])
    assert calls == [7] * layers * (1 + bidirectional)


@every_layer
def test_long_sequences_go_in_chunks(name: str, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    function = getattr(torch._VF, "rnn_" + name if name in ("tanh", "relu") else name)

    def seen(part: Tensor, *others: Any) -> Any:
        whole.append(len(part))
        return function(part, *others)

    monkeypatch.setattr(cudnn, "_MOST_STEPS", 3)
    monkeypatch.setattr(torch._VF, function.__name__, seen)
    for value, wanted in both(LAYERS[name](4, 5, dtype=torch.float64), calls):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-11)
    assert whole == [3, 3, 1]


def test_a_projected_lstm(calls: list[int]) -> None:
    for value, wanted in both(LSTM(4, 5, proj_size=2, dtype=torch.float64), calls):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)


@every_layer
def test_segments_that_are_run_again(name: str, calls: list[int]) -> None:
    for value, wanted in both(LAYERS[name](4, 5, dtype=torch.float64, checkpoint_every=3), calls):
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)


@every_layer
def test_it_is_torchs_layer(name: str, calls: list[int]) -> None:
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(name)
    expected: Any = theirs(4, 5) if theirs else torch.nn.RNN(4, 5, nonlinearity=name)
    layer = LAYERS[name](4, 5)
    layer.load_state_dict(expected.state_dict())
    x, state = sample(layer)
    torch.testing.assert_close(layer(x, state), expected(x, state))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected(x))
    assert calls == [7, 7]


@every_layer
def test_derivatives_of_first_and_second_order(name: str, calls: list[int]) -> None:
    layer = LAYERS[name](2, 3, dtype=torch.float64)
    x, state = sample(layer, T=3, B=2)
    names = [key for key, _ in layer.named_parameters()]
    leaves = [value.detach().requires_grad_() for value in (x, *layer.parameters())]

    def run(x: Tensor, *parameters: Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x, state))[0]

    assert gradcheck(run, leaves)
    assert gradgradcheck(run, leaves)
    assert calls


def test_a_graph_that_is_freed_says_so(calls: list[int]) -> None:
    layer = LSTM(2, 3)
    loss = layer(torch.randn(4, 2, 2))[0].sum()
    loss.backward(retain_graph=True)
    first = layer.weight_hh_l0.grad.clone()
    loss.backward()
    torch.testing.assert_close(layer.weight_hh_l0.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (PeepholeLSTM(4, 5), {}),
        (LSTM(4, 5, gate="hard_sigmoid"), {}),
        (VanillaRNN(4, 5, nonlinearity="sigmoid"), {}),
        (LSTM(4, 5, untied=True), {}),
        (VanillaRNN(4, 5, proj_size=2), {}),
        (LSTM(4, 5), {"lengths": [7, 2, 0]}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_torch_has_not_runs_as_before(layer: RNN, given: dict[str, Any], calls: list[int]) -> None:
    layer(sample(layer)[0], **given)
    assert calls == []


def test_on_a_cpu_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "_run", None)
    LSTM(4, 5)(torch.zeros(2, 3, 4))
