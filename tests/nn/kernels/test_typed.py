"""The kernels of the strongly typed cells are the cells' own steps, by loop and by doubling, there and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pytest
import torch
from isornn.nn.kernels.typed import TGRUKernel, TLSTMKernel, TRNNKernel
from torch import Tensor

from isornn.cells import TGRU, TLSTM, TRNN, Cell, Values
from isornn.nn.kernels import threads
from isornn.nn.kernels.contract import Given, Gradients, Kernel
from isornn.nn.step import step

KERNELS: dict[Cell, type[TRNNKernel] | type[TLSTMKernel] | type[TGRUKernel]] = {
    TRNN(): TRNNKernel,
    TLSTM(): TLSTMKernel,
    TGRU(): TGRUKernel,
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}

every_cell = pytest.mark.parametrize("cell", KERNELS, ids=lambda cell: cell.name)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(params=["loop", "doubling"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def kernel_of(cell: Cell, way: str) -> Kernel:
    """The cell's kernel, made to run by doubling as it does on other devices."""
    kernel = KERNELS[cell]()
    if way == "doubling":
        kernel._run, kernel._run_back = kernel._run_by_scan, kernel._run_back_by_scan  # type: ignore[method-assign]
    return kernel


def run(kernel: Kernel, drive: Tensor, start: Tensor, keep: bool = True) -> tuple[list[Tensor], list[Tensor]]:
    return kernel.forward(drive.clone(), Given(None, None, None, [], [start]), keep)


def run_back(
    kernel: Kernel, start: Tensor, results: list[Tensor], kept: list[Tensor], grads: Sequence[Tensor | None]
) -> Gradients:
    return kernel.backward(Given(None, None, None, [], [start]), results, kept, grads)


def stepped(cell: Cell, drive: Tensor, start: Tensor) -> list[Tensor]:
    """The results by the cell's steps: its state and, where that is another, its output."""
    (name,) = cell.states
    states, record = Values(**{name: start}), []
    for now in drive.unflatten(2, (len(cell.gates), -1)):
        states, u = step(cell, states, dict(zip(cell.gates, now.unbind(1), strict=True)), _no_product)
        record.append([getattr(states, name), cell.output(states, u)])
    state, output = (torch.stack(values) for values in zip(*record, strict=True))
    return [state] if type(cell).output is Cell.output else [state, output]


def _no_product(gate: str, r: Tensor) -> NoReturn:
    raise AssertionError(f"gate {gate} of a strongly typed cell reads no state")


def assert_close(found: Tensor, expected: Tensor) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[expected.dtype] * scale)


def sample(cell: Cell, steps: int, batch: int, units: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A drive, an initial state and gradients of the results."""
    generator = torch.Generator().manual_seed(steps + 10 * batch + 100 * units)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    grads = [normal(steps, batch, units) for _ in range(KERNELS[cell].results)]
    return normal(steps, batch, len(cell.gates) * units), normal(batch, units), grads


def expected_gradients(
    cell: Cell, drive: Tensor, start: Tensor, grads: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor]:
    drive, start = drive.clone().requires_grad_(), start.clone().requires_grad_()
    results = stepped(cell, drive, start)
    loss = sum((grad * result).sum() for grad, result in zip(grads, results, strict=True) if grad is not None)
    assert isinstance(loss, Tensor)
    of_drive, of_start = torch.autograd.grad(loss, (drive, start))
    return of_drive, of_start


@every_cell
@every_dtype
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("units", [1, 5, 16])
def test_kernel_is_the_cells_steps(
    cell: Cell, dtype: torch.dtype, steps: int, batch: int, units: int, way: str
) -> None:
    drive, start, grads = sample(cell, steps, batch, units, dtype)
    kernel = kernel_of(cell, way)
    results, kept = run(kernel, drive, start)
    for result, expected in zip(results, stepped(cell, drive, start), strict=True):
        assert result.is_contiguous()
        assert_close(result, expected)
    found = run_back(kernel, start, results, kept, grads)
    of_drive, of_start = expected_gradients(cell, drive, start, grads)
    assert_close(found.drive, of_drive)
    assert_close(found.initial[0], of_start)
    assert (found.weight, found.offset, found.x, found.units, len(found.initial)) == (None, None, None, [], 1)


@every_cell
def test_what_is_kept_has_the_width_that_is_promised(cell: Cell, way: str) -> None:
    drive, start, _ = sample(cell, 7, 3, 5, torch.float32)
    kernel = kernel_of(cell, way)
    _, kept = run(kernel, drive, start)
    assert [tensor.shape for tensor in kept] == [(7, 3, width * 5) for width in kernel.kept_widths]


@every_cell
@every_dtype
@pytest.mark.parametrize("bias", [1000.0, -1000.0])
def test_gates_that_are_exactly_0_or_1(cell: Cell, dtype: torch.dtype, bias: float, way: str) -> None:
    drive, start, grads = sample(cell, 6, 3, 5, dtype)
    drive[:, :, :5] += bias
    drive[:, :, 10:] -= bias
    kernel = kernel_of(cell, way)
    results, kept = run(kernel, drive, start)
    found = run_back(kernel, start, results, kept, grads)
    for result, expected in zip(results, stepped(cell, drive, start), strict=True):
        torch.testing.assert_close(result, expected)
    of_drive, of_start = expected_gradients(cell, drive, start, grads)
    torch.testing.assert_close(found.drive, of_drive)
    torch.testing.assert_close(found.initial[0], of_start)


@every_cell
def test_a_shut_cell_keeps_its_state_to_the_bit(cell: Cell, way: str) -> None:
    drive, start, _ = sample(cell, 50, 2, 3, torch.float32)
    drive[:, :, :3], drive[:, :, 6:] = 1000.0, 0.0
    state, *_ = run(kernel_of(cell, way), drive, start)[0]
    assert torch.equal(state, start.expand_as(state))


@pytest.mark.parametrize("missing", [0, 1])
def test_a_result_without_gradient(missing: int, way: str) -> None:
    cell, kernel = TLSTM(), kernel_of(TLSTM(), way)
    drive, start, given = sample(cell, 7, 3, 5, torch.float64)
    grads = [None if place == missing else grad for place, grad in enumerate(given)]
    found = run_back(kernel, start, *run(kernel, drive, start), grads)
    of_drive, of_start = expected_gradients(cell, drive, start, grads)
    assert_close(found.drive, of_drive)
    assert_close(found.initial[0], of_start)


@every_cell
def test_no_gradient_at_all_is_zeros(cell: Cell, way: str) -> None:
    drive, start, grads = sample(cell, 7, 3, 5, torch.float64)
    kernel = kernel_of(cell, way)
    found = run_back(kernel, start, *run(kernel, drive, start), [None] * len(grads))
    assert torch.equal(found.drive, torch.zeros_like(drive))
    assert torch.equal(found.initial[0], torch.zeros_like(start))


@every_cell
def test_nothing_is_written_to_but_the_drive(cell: Cell, way: str) -> None:
    drive, start, grads = sample(cell, 7, 3, 5, torch.float64)
    kernel = kernel_of(cell, way)
    results, kept = run(kernel, drive, start)
    everything = [start, *results, *kept, *grads]
    before = [tensor.clone() for tensor in everything]
    first = run_back(kernel, start, results, kept, grads)
    second = run_back(kernel, start, results, kept, grads)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(everything, before, strict=True))
    assert torch.equal(first.drive, second.drive)
    assert torch.equal(first.initial[0], second.initial[0])


@every_cell
def test_nothing_is_kept_unless_asked(cell: Cell, way: str) -> None:
    drive, start, _ = sample(cell, 7, 3, 5, torch.float64)
    results, kept = run(kernel_of(cell, way), drive, start, keep=False)
    assert kept == []
    for result, expected in zip(results, stepped(cell, drive, start), strict=True):
        assert_close(result, expected)


@every_cell
def test_other_devices_go_by_doubling(cell: Cell) -> None:
    # The meta device has shapes and no memory, so a loop over memory would fail.
    drive, start, grads = sample(cell, 7, 3, 5, torch.float32)
    drive, start, grads = drive.to("meta"), start.to("meta"), [grad.to("meta") for grad in grads]
    kernel = KERNELS[cell]()
    results, kept = run(kernel, drive, start)
    found = run_back(kernel, start, results, kept, grads)
    assert {tensor.device.type for tensor in (*results, *kept, found.drive, *found.initial)} == {"meta"}
    assert (found.drive.shape, found.initial[0].shape) == (drive.shape, start.shape)


@every_cell
def test_threads_share_the_work_and_change_nothing(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    drive, start, grads = sample(cell, 7, 8, 5, torch.float32)
    kernel = KERNELS[cell]()
    found = []
    for count in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        results, kept = run(kernel, drive, start)
        gradients = run_back(kernel, start, results, kept, grads)
        found.append([*results, gradients.drive, *gradients.initial])
    assert all(torch.equal(alone, together) for alone, together in zip(*found, strict=True))
