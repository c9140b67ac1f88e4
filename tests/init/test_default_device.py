"""What is drawn and measured where the user's default device is not the CPU; that of torch's meta tensors stands for a
GPU's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import isornn
from isornn.diagnosis import fix_
from isornn.init import gradient_flossing_
from isornn.theory.carry import carry_of

T, B, D, N = 24, 64, 3, 8


class Stepped(nn.Module):
    """An LSTMCell and its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(D, N)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x:
            state = self.cell(step, state)
        assert state is not None
        return state[0]


class ReadOut(nn.Module):
    """The last state, through a linear layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(N, 1)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.layer(x)[0][-1])


def packed(x: Tensor) -> Any:
    return nn.utils.rnn.pack_padded_sequence(x, torch.linspace(T, 1, B, device="cpu").long())


def drawn(model: nn.Module, start: Callable[[nn.Module], Any]) -> list[Tensor]:
    start(model)
    return [parameter.detach() for parameter in model.parameters()]


def fixed(model: nn.Module, x: Tensor) -> list[Tensor]:
    findings = isornn.diagnose(model, x).findings
    assert fix_(model, findings, x)
    return [parameter.detach() for parameter in model.parameters()]


def scores(x: Tensor) -> list[Tensor]:
    found = isornn.memory(x.transpose(0, 1), x[-3, :, 0]).scores
    return [torch.tensor(found, dtype=torch.float64, device="cpu")]


GATED = isornn.Spec(isornn.cells.LSTM(), {"f": isornn.Gate(bias_mean=2.0, bias_var=0.5)})

# What is made is made on the CPU, and what is called then is called under the default device.
CASES: dict[str, tuple[Callable[[], Any], Callable[..., list[Tensor]]]] = {
    "critical_": (lambda: nn.GRU(D, N), lambda rnn, x: drawn(rnn, lambda m: isornn.init.critical_(m, batch=x))),
    "standard_": (lambda: nn.GRU(D, N), lambda rnn, x: drawn(rnn, isornn.init.standard_)),
    "chrono_": (lambda: nn.GRU(D, N), lambda rnn, x: drawn(rnn, lambda m: isornn.init.chrono_(m, 20))),
    "stacked_orthogonal_": (lambda: nn.GRU(D, N), lambda rnn, x: drawn(rnn, isornn.init.stacked_orthogonal_)),
    "two layers of two directions": (
        lambda: nn.LSTM(D, N, num_layers=2, bidirectional=True),
        lambda rnn, x: drawn(rnn, lambda m: isornn.init.critical_(m, batch=x)),
    ),
    "packed sequences": (
        lambda: nn.LSTM(D, N),
        lambda rnn, x: drawn(rnn, lambda m: isornn.init.critical_(m, batch=packed(x))),
    ),
    "LSTMCell": (Stepped, lambda rnn, x: drawn(rnn, lambda m: isornn.init.critical_(m, batch=x))),
    "minimal": (
        lambda: isornn.nn.MinimalRNN(D, N),
        lambda rnn, x: drawn(rnn, lambda m: isornn.init.critical_(m, batch=x)),
    ),
    "fix_": (lambda: ReadOut(nn.LSTM(D, N)), fixed),
    "gradient_flossing_": (
        lambda: ReadOut(nn.GRU(D, N)),
        lambda rnn, x: drawn(rnn, lambda m: gradient_flossing_(m, batch=x, updates=2)),
    ),
    "memory": (lambda: None, lambda _, x: scores(x)),
    "carry_of": (lambda: None, lambda _, x: [carry_of(GATED).memory(5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_default_device_of_the_users_changes_nothing(name: str) -> None:
    make, call = CASES[name]
    results = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        module, x = make(), torch.randn(T, B, D)
        with torch.device(device):
            results.append(call(module, x))
    assert results[0]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_the_default_device_may_be_set_before_isornn_is_imported() -> None:
    program = (
        "import torch; torch.set_default_device('meta'); import isornn;"
        "spec = isornn.Spec(isornn.cells.Peephole(), {'f': isornn.Gate(bias_mean=5.0)});"
        "print(round(isornn.analyze(spec).xi.number(), 1))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "74.5", found.stderr
