"""The scan in Triton is the sequential loop, there and back, on a CUDA device or by Triton's interpreter on this one.

Triton reads where to run when it is first imported, so the interpreter runs these tests in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy
import pytest
import torch
from numpy.lib import NumpyVersion
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from isornn.cells import TGRU, TLSTM, TRNN, Cell
from isornn.nn import scan
from isornn.nn.kernels import device
from isornn.nn.kernels.contract import RecurrenceArgs
from isornn.nn.kernels.generated import GeneratedKernel
from isornn.nn.scan import linear_scan

triton = pytest.importorskip("triton", reason="Triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if not INTERPRETED and torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

runs = pytest.mark.skipif(
    DEVICE.type == "cpu" and not INTERPRETED, reason="no CUDA device here: test_by_the_interpreter runs it"
)
every_direction = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
# Triton's interpreter takes arrays of one number for numbers.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
@pytest.mark.skipif(
    NumpyVersion(numpy.__version__) >= "2.4.0" and NumpyVersion(triton.__version__) < "3.9.0",
    reason="Triton's interpreter runs with numpy 2.4 from Triton 3.9 on",
)
def test_by_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU too, where the interpreter has the kernels run."""
    for module in (device, scan):
        monkeypatch.setattr(module, "runs_triton", torch.compiler.assume_constant_result(lambda _: True))
    monkeypatch.setattr(scan._LinearScan, "forward", staticmethod(_on_device))


def _on_device(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    return device.scan_on_device(a, b, initial, reverse=reverse)


def sample(*shape: int, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> tuple[Tensor, ...]:
    """a within (-1, 1) but for a 0, a 1 and a -1, b, and an initial state."""
    generator = torch.Generator().manual_seed(sum(shape))
    a = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    for place, factor in enumerate((0.0, 1.0, -1.0)):
        a.flatten()[place::7] = factor
    b = torch.randn(shape, generator=generator, dtype=torch.float64)
    initial = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
    return tuple(tensor.to(DEVICE, dtype).requires_grad_(requires_grad) for tensor in (a, b, initial))


def looped(a: Tensor, b: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    h, record = initial, []
    for a_t, b_t in zip(*(values.flip(0) if reverse else values for values in (a, b)), strict=True):
        h = a_t * h + b_t
        record.append(h)
    return torch.stack(record[::-1] if reverse else record)


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@runs
@every_direction
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(4, 0), (1, 1), (1, 70), (2, 32), (3, 5, 7), (16, 64), (17, 33), (50, 3)], ids=str)
def test_there_and_back_are_the_loops(shape: tuple[int, ...], dtype: torch.dtype, reverse: bool) -> None:
    from isornn.nn.kernels import scan_triton

    a, b, initial = sample(*shape, dtype=dtype)
    h = scan_triton.scan(a, b, initial, reverse)
    grad = b.flip(0)
    found = scan_triton.scan_backward(a, initial, h, grad, reverse)
    assert {tensor.dtype for tensor in (h, *found)} == {dtype}
    exact = [tensor.double().requires_grad_() for tensor in (a, b, initial)]
    expected = looped(*exact, reverse=reverse)
    assert_close(h, expected)
    for value, of_loop in zip(found, torch.autograd.grad(expected, exact, grad.double()), strict=True):
        assert_close(value, of_loop)


@runs
def test_many_steps_and_factors_beyond_the_range_of_their_products() -> None:
    from isornn.nn.kernels import scan_triton

    steps = 300
    a = torch.tensor([1e-3, 1e3], device=DEVICE).repeat(steps // 2)[:, None]
    h = scan_triton.scan(a, torch.zeros_like(a), torch.ones(1, device=DEVICE), False)
    torch.testing.assert_close(h[1::2], torch.ones_like(h[1::2]))
    h = scan_triton.scan(1e30 * a, torch.zeros_like(a), torch.zeros(1, device=DEVICE), True)
    assert torch.equal(h, torch.zeros_like(h))


@runs
def test_memory_of_any_order_is_read_and_none_written_to() -> None:
    from isornn.nn.kernels import scan_triton

    a, b, initial = sample(6, 4, 5)
    before = [tensor.clone() for tensor in (a, b, initial)]
    turned = [tensor.mT.contiguous().mT for tensor in (a, b)]
    h = scan_triton.scan(*turned, initial.expand(4, 5), False)
    assert h.is_contiguous()
    assert_close(h, looped(a, b, initial))
    scan_triton.scan_backward(turned[0], initial, h, torch.ones_like(h[:, :1]).expand_as(h), False)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip((a, b, initial), before, strict=True))


@runs
@pytest.mark.usefixtures("by_triton")
@every_direction
def test_derivatives_of_first_and_second_order(reverse: bool) -> None:
    given = sample(3, 2, requires_grad=True)

    def run(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        return linear_scan(a, b, initial, reverse=reverse)

    assert gradcheck(run, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(run, given, check_batched_grad=True)


@runs
@pytest.mark.usefixtures("by_triton")
def test_forward_over_reverse() -> None:
    given = sample(3, 2)

    def energy(*values: Tensor) -> Tensor:
        return linear_scan(*values).pow(3).sum()

    def expected_energy(*values: Tensor) -> Tensor:
        return looped(*values).pow(3).sum()

    found = torch.func.hessian(energy)(*given)
    torch.testing.assert_close(found, torch.func.hessian(expected_energy)(*given))


@runs
@pytest.mark.usefixtures("by_triton")
def test_a_plain_backward_pass_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from isornn.nn.kernels import scan_triton

    launched: list[str] = []
    launch: Callable[..., None] = scan_triton._launch

    def counted(kernel: object, *tensors: Tensor, reverse: bool) -> None:
        launched.append(kernel.fn.__name__)  # type: ignore[attr-defined]
        launch(kernel, *tensors, reverse=reverse)

    monkeypatch.setattr(scan_triton, "_launch", counted)
    linear_scan(*sample(5, 3, requires_grad=True)).sum().backward()
    assert launched == ["_scan", "_scan_backward"]


@runs
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's tracing does
@pytest.mark.usefixtures("by_triton")
def test_compiled_as_one_graph() -> None:
    given = sample(4, 2, requires_grad=True)
    compiled = torch.compile(linear_scan, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*given).square().sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad(looped(*given).square().sum(), given))


@runs
@pytest.mark.usefixtures("by_triton")
@pytest.mark.parametrize("cell", [TRNN(), TLSTM(), TGRU()], ids=lambda cell: cell.name)
def test_strongly_typed_cells_scan_by_it(cell: Cell) -> None:
    generator = torch.Generator().manual_seed(0)
    drive, start = (torch.randn(*shape, generator=generator) for shape in ((9, 2, 3 * len(cell.gates)), (2, 3)))
    results, found = [], []
    for way, place in (("compiled", torch.device("cpu")), ("scan", DEVICE)):
        kernel = GeneratedKernel(cell, way)  # type: ignore[arg-type]
        given = RecurrenceArgs(None, None, None, [], [start.to(place)])
        states, kept = kernel.forward(drive.to(place, copy=True), given, keep=True)
        grads = [value.cos() for value in states]
        gradients = kernel.backward(given, states, kept, grads)
        results.append(states)
        found.append([gradients.drive, *gradients.initial])
    for there, on_device in [*zip(*results, strict=True), *zip(*found, strict=True)]:
        assert_close(on_device.cpu(), there)
