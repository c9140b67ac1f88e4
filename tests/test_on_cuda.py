"""On a CUDA device layers, starts, diagnoses and trainings give what they give on the CPU."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import pack_padded_sequence

import isornn
from isornn.cells import CELLS, FURTHER_CELLS, Cell, Vanilla, cell_named
from isornn.diagnosis import Monitor, measure
from isornn.init import critical_
from isornn.nn import GRU, LSTM, RNN, PeepholeLSTM, SpectralRNN, VanillaRNN, linear_scan
from isornn.training import run
from isornn.training.run import Device
from small_runs import configured, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

CUDA: Device = "cuda"
T, B, D, N = 9, 4, 3, 6
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}  # of what is multiplied in TF32, as cuDNN does

every_cell = pytest.mark.parametrize("name", CELLS | FURTHER_CELLS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sequence(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=dtype)


def layer_of(cell: Cell, **options: Any) -> RNN:
    torch.manual_seed(0)
    inputs = N if cell.input_enters_pointwise else D
    return RNN(cell, inputs, N, **({"dtype": torch.float64} | options))


def results(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Outputs, last states, and the gradients of the inputs and of every parameter, on the CPU."""
    x = x.detach().requires_grad_()
    out, last = layer(x)
    found = [out, *(last if isinstance(last, tuple) else (last,))]
    weighted = [(value * torch.randn(value.shape, generator=seeded(2)).to(value)).sum() for value in found]
    grads = torch.autograd.grad(torch.stack(weighted).sum(), [x, *layer.parameters()])
    return [value.detach().cpu() for value in (*found, *grads)]


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    for value, wanted in zip(found, expected, strict=True):
        scale = max(1.0, float(wanted.abs().max()))
        torch.testing.assert_close(value, wanted, rtol=0, atol=tolerance * scale)


def assert_as_on_the_cpu(layer: nn.Module, x: Tensor, tolerance: float | None = None) -> None:
    there = copy.deepcopy(layer).to(CUDA)
    assert_close(results(there, x.to(CUDA)), results(layer, x), tolerance or TOLERANCE[x.dtype])


# -- layers ----------------------------------------------------------------------------------------------------------


@every_cell
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "four"])
def test_values_and_gradients(name: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    layer = layer_of(cell_named(name), dtype=dtype, **options)
    assert_as_on_the_cpu(layer, sequence(T, B, layer.input_size, dtype=dtype))


@every_cell
def test_second_derivatives(name: str) -> None:
    layer = layer_of(cell_named(name)).to(CUDA)
    x = sequence(3, 2, layer.input_size).to(CUDA).requires_grad_()
    weight = next(layer.parameters()).detach().requires_grad_()
    place = next(iter(dict(layer.named_parameters())))

    def outputs(x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, {place: weight}, (x,))[0]
        return out

    assert gradcheck(outputs, (x, weight))
    assert gradgradcheck(outputs, (x, weight))


@pytest.mark.parametrize("kind", [LSTM, GRU, PeepholeLSTM])
def test_of_unequal_lengths(kind: Any) -> None:
    layer = kind(D, N, dtype=torch.float64)
    x, lengths = sequence(T, B, D), torch.tensor([T, 3, 1, 5])
    expected, _ = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))
    found, _ = layer.to(CUDA)(pack_padded_sequence(x.to(CUDA), lengths, enforce_sorted=False))
    torch.testing.assert_close(found.data.cpu(), expected.data)


@pytest.mark.parametrize("name", ["lstm", "gru", "vanilla", "peephole"])
@pytest.mark.parametrize("steps", [1, 3])
def test_few_steps(name: str, steps: int) -> None:
    assert_as_on_the_cpu(layer_of(cell_named(name), num_layers=2), sequence(steps, B, D))


@pytest.mark.parametrize("layer", [LSTM(D, N), GRU(D, N), VanillaRNN(D, N)], ids=lambda layer: type(layer).__name__)
def test_beyond_what_cudnn_takes_at_once(layer: Any) -> None:
    assert_as_on_the_cpu(layer.double(), sequence(70_000, 1, D), 1e-8)


@pytest.mark.parametrize(
    "options",
    [{"h_detach": 1.0}, {"checkpoint_every": 3}, {"bias": False}, {"proj_size": 2}, {"proj_size": 2, "bias": False}],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    assert_as_on_the_cpu(LSTM(D, N, dtype=torch.float64, **options), sequence(T, B, D))


def test_orthogonal_matrices() -> None:
    torch.manual_seed(0)
    assert_as_on_the_cpu(SpectralRNN(D, N, margin=0.1, dtype=torch.float64), sequence(T, B, D))


@pytest.mark.parametrize("name", ["lstm", "peephole", "gru_cho", "t_lstm", "min_gru"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(name: str, dtype: torch.dtype) -> None:
    layer = layer_of(cell_named(name), dtype=torch.float32).to(CUDA)
    x = sequence(T, B, layer.input_size, dtype=torch.float32).to(CUDA)
    expected = results(layer, x)
    with torch.autocast(CUDA, dtype):
        found = results(layer, x)
    assert_close([value.float() for value in found], expected, 0.05)


@pytest.mark.parametrize("name", ["lstm", "peephole", "gru_cho", "t_lstm", "min_gru"])
@pytest.mark.filterwarnings("default")  # of torch's own compiler
def test_compiled(name: str) -> None:
    torch.compiler.reset()
    layer = layer_of(cell_named(name), dtype=torch.float32).to(CUDA)
    x = sequence(T, B, layer.input_size, dtype=torch.float32).to(CUDA)
    compiled: Any = torch.compile(layer, fullgraph=True)
    assert_close(results(compiled, x), results(layer, x), 1e-3)  # cuDNN, which is not compiled, multiplies in TF32


@pytest.mark.parametrize("name", ["peephole", "gru_cho", "t_lstm", "min_gru"])
def test_captured_in_a_graph(name: str) -> None:
    layer = layer_of(cell_named(name), dtype=torch.float32).to(CUDA)
    x = sequence(T, B, layer.input_size, dtype=torch.float32).to(CUDA)
    expected = results(layer, x)
    gc.collect()  # what frees memory of the device while it captures spoils that
    graphed: Any = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (torch.zeros_like(x).requires_grad_(),))
    assert_close(results(graphed, x), expected, 1e-4)


def test_many_vectors_at_once() -> None:
    layer, x = PeepholeLSTM(D, N, dtype=torch.float64), sequence(2, T, B, D)

    def by_vmap(layer: nn.Module, x: Tensor) -> Tensor:
        found: Tensor = torch.vmap(lambda one: layer(one)[0])(x).cpu()
        return found

    torch.testing.assert_close(by_vmap(copy.deepcopy(layer).to(CUDA), x.to(CUDA)), by_vmap(layer, x))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (65, 3), (1000, 7, 33)])
def test_linear_scan(shape: tuple[int, ...], reverse: bool) -> None:
    given = [torch.rand(shape, generator=seeded(3)), sequence(*shape), sequence(*shape[1:])]
    given = [value.double() for value in given]
    grad = torch.randn(shape, generator=seeded(4), dtype=torch.float64)

    def found(device: str) -> list[Tensor]:
        leaves = [value.to(device).requires_grad_() for value in given]
        h = linear_scan(*leaves, reverse=reverse)
        return [value.detach().cpu() for value in (h, *torch.autograd.grad(h, leaves, grad.to(device)))]

    assert_close(found(CUDA), found("cpu"), 1e-12)


def test_linear_scan_differentiated_twice() -> None:
    a, b = (sequence(5, 3).to(CUDA).requires_grad_() for _ in range(2))
    assert gradgradcheck(lambda a, b: linear_scan(a, b), (a, b))


# -- models ----------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.front, self.recurrent, self.head = nn.Linear(D, D), recurrent, nn.Linear(N, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.recurrent(self.front(x))[0][-1])
        return out


RECURRENT: dict[str, Any] = {
    "nn.LSTM": lambda: nn.LSTM(D, N, num_layers=2),
    "nn.GRU": lambda: nn.GRU(D, N),
    "LSTM": lambda: LSTM(D, N),
    "PeepholeLSTM": lambda: PeepholeLSTM(D, N),
    "VanillaRNN": lambda: RNN(Vanilla(), D, N),
}
every_model = pytest.mark.parametrize("name", RECURRENT)


def model_of(name: str) -> Model:
    torch.manual_seed(0)
    return Model(RECURRENT[name]())


@every_model
def test_a_start_is_that_on_the_cpu(name: str) -> None:
    x, here = sequence(40, 16, D, dtype=torch.float32), model_of(name)
    there = copy.deepcopy(here).to(CUDA)
    critical_(here, batch=x, generator=seeded(5))
    critical_(there, batch=x.to(CUDA), generator=seeded(5))
    for value, wanted in zip(there.parameters(), here.parameters(), strict=True):
        assert value.device.type == CUDA
        torch.testing.assert_close(value.detach().cpu(), wanted.detach(), rtol=1e-3, atol=1e-4)


@every_model
def test_a_diagnosis_is_that_on_the_cpu(name: str) -> None:
    x, here = sequence(40, 16, D, dtype=torch.float32), model_of(name)
    there = copy.deepcopy(here).to(CUDA)
    before = copy.deepcopy(there.state_dict())
    pairs = [(here, x), (there, x.to(CUDA))]
    expected, found = (measure(model, given, theory=False) for model, given in pairs)
    assert [layer.info.name for layer in found.layers] == [layer.info.name for layer in expected.layers]
    for layer, wanted in zip(found.layers, expected.layers, strict=True):
        assert layer.check.residual <= layer.check.tolerance
        assert layer.backward.xi.number() == pytest.approx(wanted.backward.xi.number(), rel=0.01)
        assert layer.lyapunov.exponents[0].number() == pytest.approx(wanted.lyapunov.exponents[0].number(), rel=0.01)
    assert all(torch.equal(value, before[key]) for key, value in there.state_dict().items())
    judged = [[finding.kind for finding in isornn.diagnose(model, given).findings] for model, given in pairs]
    assert judged[0] == judged[1]


@every_model
def test_a_monitor_changes_nothing(name: str) -> None:
    def trained(watched: bool) -> list[Tensor]:
        model = model_of(name).to(CUDA)
        monitor = Monitor(model, every=1) if watched else None
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(3):
            optimiser.zero_grad()
            model(torch.randn(20, B, D, generator=seeded(seed)).to(CUDA)).square().sum().backward()
            optimiser.step()
            if monitor is not None:
                monitor.step()
        if monitor is not None:
            monitor.close()
            assert monitor.record.iterations.tolist() == [0, 1, 2]
            assert all(reason == "" for layer in monitor.record.layers for reason in layer.reasons)
        return [value.detach().cpu() for value in model.parameters()]

    assert_close(trained(True), trained(False), 1e-6)


def test_a_run_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    whole, twice = tmp_path / "whole", tmp_path / "twice"
    configuration = configured(model={"name": "peephole", "hidden": 6, "layers": 2, "dropout": 0.3})

    class Stop(Exception):
        pass

    def stop(state: Any) -> None:
        if state.update == 10:
            raise Stop

    record = run(configuration, whole, device=CUDA)
    with pytest.raises(Stop):
        run(configuration, twice, device=CUDA, on_update=[stop])
    assert run(configuration, twice, device=CUDA).best == record.best
    assert same(whole, twice)
