"""Few steps on a CPU by torch's own cells: as torch's layers have them, and as the kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn import nn
from isornn.nn import torch_cells

B, D, N = 3, 4, 5
KINDS: list[tuple[Callable[..., nn.RNN], Callable[..., torch.nn.RNNBase], dict[str, Any]]] = [
    (nn.LSTM, torch.nn.LSTM, {}),
    (nn.GRU, torch.nn.GRU, {}),
    (nn.VanillaRNN, torch.nn.RNN, {}),
    (nn.VanillaRNN, torch.nn.RNN, {"nonlinearity": "relu"}),
]
with_peer = pytest.mark.parametrize(("ours", "theirs", "options"), KINDS, ids=["lstm", "gru", "tanh", "relu"])


def results(layer: torch.nn.Module, x: Tensor, lengths: list[int] | None = None) -> list[Tensor]:
    """Outputs, last states and gradients."""
    out, last = layer(x) if lengths is None else layer(x, lengths=lengths)
    states = list(last) if isinstance(last, tuple) else [last]
    total = out.square().sum() + sum(state.sum() for state in states)
    return [out, *states, *torch.autograd.grad(total, [x, *layer.parameters()])]


def sequence(steps: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(steps, B, D, dtype=torch.float64, requires_grad=True)


@with_peer
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_few_steps_are_torchs(ours: Any, theirs: Any, options: dict[str, Any], steps: int, bias: bool) -> None:
    given = {"num_layers": 2, "bidirectional": True, "bias": bias, "dtype": torch.float64, **options}
    layer, peer = ours(D, N, **given), theirs(D, N, **given)
    peer.load_state_dict(layer.state_dict())
    found, expected = results(layer, sequence(steps)), results(peer, sequence(steps))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@with_peer
def test_few_steps_are_the_kernels(ours: Any, theirs: Any, options: dict[str, Any], monkeypatch: Any) -> None:
    layer, lengths = ours(D, N, dtype=torch.float64, **options), [3, 0, 2]
    by_cells = results(layer, sequence(3), lengths)
    monkeypatch.setattr(torch_cells, "_FEW_STEPS", 0)
    torch.testing.assert_close(by_cells, results(layer, sequence(3), lengths), rtol=0, atol=1e-12)


@with_peer
def test_outputs_of_few_steps_may_be_changed_in_place(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    layer = ours(D, N, dtype=torch.float64, **options)
    weights = list(layer.parameters())
    for steps in (1, 2):
        x = sequence(steps)
        found = torch.autograd.grad(layer(x)[0].mul_(2).relu_().square().sum(), weights)
        expected = torch.autograd.grad((2 * layer(x)[0]).relu().square().sum(), weights)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@with_peer
def test_few_steps_have_second_derivatives(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    layer = ours(D, N, dtype=torch.float64, **options)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0].square().sum(), sequence(2))
