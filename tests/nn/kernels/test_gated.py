"""The contract of `Kernel` where matrices read a state: the numbers of the cell's own steps, there and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn.cells import GRU, LSTM, Cell, ChoGRU, GersLSTM, Minimal, Peephole, Values, Vanilla
from isornn.nn.kernels import kernel_of
from isornn.nn.kernels.contract import Given, Gradients, Kernel
from isornn.nn.kernels.gru_steps import CHO_IN_TORCH, GRU_IN_TORCH
from isornn.nn.kernels.lstm_steps import GERS_IN_TORCH, MEMORY_IN_TORCH
from isornn.nn.kernels.minimal_steps import MINIMAL_IN_TORCH
from isornn.nn.kernels.vanilla import TRANSITIONS
from isornn.nn.step import step

IN_TORCH_OF = {
    LSTM(): MEMORY_IN_TORCH,
    GersLSTM(): GERS_IN_TORCH,
    Peephole(): MEMORY_IN_TORCH,
    GRU(): GRU_IN_TORCH,
    ChoGRU(): CHO_IN_TORCH,
    Minimal(): MINIMAL_IN_TORCH,
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def compiled(cell: Cell) -> Kernel:
    kernel = kernel_of(cell)
    assert kernel is not None
    return kernel


def in_torch(cell: Cell) -> Kernel:
    kernel: Any = compiled(cell)
    return replace(kernel, steps=lambda device: IN_TORCH_OF[cell])


def arguments(cell: Cell, shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """What a kernel takes, drawn at random."""
    (T, B, N), gates = shape, cell.gates.values()
    driven, recurrent = sum(reads.input for reads in gates), sum(reads.state for reads in gates)
    undriven = len(gates) - driven
    generator = torch.Generator().manual_seed(T + 10 * B + 100 * N)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    return {
        "drive": normal(T, B, driven * N),
        "weight": normal(recurrent * N, N) / N**0.5,
        "offset": normal(undriven * N) if undriven else None,
        "x": normal(T, B, N) if cell.input_enters_pointwise else None,
        "units": [normal(N) for _ in cell.parameters],
        "initial": [normal(B, N) for _ in cell.states],
    }


def stepped(
    cell: Cell,
    drive: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    x: Tensor | None,
    units: Sequence[Tensor],
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """The results that a kernel promises, by the cell's own steps."""
    N = initial[0].shape[-1]
    driven = [gate for gate, reads in cell.gates.items() if reads.input]
    undriven = [gate for gate in cell.gates if gate not in driven]
    fixed = dict(zip(undriven, offset.split(N), strict=True)) if offset is not None else {}
    matrices = dict(zip([gate for gate, reads in cell.gates.items() if reads.state], weight.split(N), strict=True))
    own = dict(zip(cell.parameters, units, strict=True))
    states, record = Values(**dict(zip(cell.states, initial, strict=True))), []
    for t, now in enumerate(drive):
        u_drive = dict(zip(driven, now.split(N, -1), strict=True)) | fixed
        x_t = None if x is None else x[t]
        states, u = step(cell, states, u_drive, lambda gate, r: r @ matrices[gate].t(), x_t, own)
        values, output = [getattr(states, name) for name in cell.states], cell.output(states, u)
        record.append(values if output is values[0] else [*values, output])
    return [torch.stack(values) for values in zip(*record, strict=True)]


def reference(cell: Cell, given: dict[str, Any], grads: Sequence[Tensor | None]) -> tuple[list[Tensor], dict[str, Any]]:
    """Results, and the gradients of all that is given, by name."""

    def leaf(value: Tensor | None) -> Any:
        return None if value is None else value.clone().requires_grad_()

    def gradient(value: Tensor | None) -> Any:
        return None if value is None else value.grad

    leaves = _each(leaf, given)
    results = stepped(cell, **leaves)
    total = sum((grad * result).sum() for grad, result in zip(grads, results, strict=True) if grad is not None)
    assert isinstance(total, Tensor)
    total.backward()
    return [result.detach() for result in results], _each(gradient, leaves)


def _each(function: Callable[[Tensor | None], Any], given: dict[str, Any]) -> dict[str, Any]:
    """The function of every tensor, those in lists one by one."""
    return {
        name: [function(one) for one in value] if isinstance(value, list) else function(value)
        for name, value in given.items()
    }


def run(kernel: Kernel, given: dict[str, Any], grads: Sequence[Tensor | None]) -> tuple[list[Tensor], Gradients]:
    """Forward and backward, which write to nothing but the drive."""
    drive, fixed = parted(given)
    untouchable = _tensors(vars(fixed).values())
    copies = [value.clone() for value in untouchable]
    results, kept = kernel.forward(drive, fixed, keep=True)
    untouchable += _tensors([results, kept, grads])
    copies += [value.clone() for value in _tensors([results, kept, grads])]
    found = kernel.backward(fixed, results, kept, grads)
    for value, copy in zip(untouchable, copies, strict=True):
        assert torch.equal(value, copy)
    return results, found


def parted(given: dict[str, Any]) -> tuple[Tensor, Given]:
    """A drive to write over, and the rest."""
    return given["drive"].clone(), Given(**{name: value for name, value in given.items() if name != "drive"})


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among the values and in the lists among them."""
    listed = [value if isinstance(value, list) else [value] for value in values]
    return [one for several in listed for one in several if one is not None]


def count_results(cell: Cell) -> int:
    return len(cell.states) + isinstance(cell, Peephole)


def assert_agrees(kernel: Kernel, cell: Cell, given: dict[str, Any], grads: Sequence[Tensor | None]) -> None:
    expected, gradients = reference(cell, given, grads)
    results, found = run(kernel, given, grads)
    for name, wanted in gradients.items():
        assert (getattr(found, name) is None) == (wanted is None)
    own = _tensors(getattr(found, name) for name in gradients)
    pairs = zip([*results, *own], [*expected, *_tensors(gradients.values())], strict=True)
    for value, wanted in pairs:
        assert value.shape == wanted.shape
        assert value.is_contiguous()
        scale = max(1.0, float(wanted.abs().max()))  # of what is summed, where the sum cancels
        torch.testing.assert_close(value, wanted, rtol=0, atol=TOLERANCE[wanted.dtype] * scale)


kernels = pytest.mark.parametrize("kernel", [compiled, in_torch])
cells = pytest.mark.parametrize("cell", IN_TORCH_OF, ids=lambda cell: cell.name)
transitions = pytest.mark.parametrize("cell", [Vanilla(name) for name in TRANSITIONS], ids=lambda c: c.nonlinearity)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])


@kernels
@cells
@dtypes
@pytest.mark.parametrize("N", [1, 5, 16])
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("T", [1, 2, 7])
def test_results_and_gradients_are_those_of_the_cells_steps(
    kernel: Any, cell: Cell, dtype: torch.dtype, N: int, B: int, T: int
) -> None:
    grads = [torch.randn(T, B, N, dtype=dtype) for _ in range(count_results(cell))]
    assert_agrees(kernel(cell), cell, arguments(cell, (T, B, N), dtype), grads)


@kernels
@pytest.mark.parametrize("absent", [0, 1])
@pytest.mark.parametrize("cell", [LSTM(), GersLSTM(), Peephole()], ids=lambda cell: cell.name)
def test_a_results_gradient_may_be_absent(kernel: Any, cell: Cell, absent: int) -> None:
    grads: list[Tensor | None] = [torch.randn(4, 2, 6, dtype=torch.float64) for _ in range(2)]
    grads[absent] = None
    assert_agrees(kernel(cell), cell, arguments(cell, (4, 2, 6), torch.float64), grads)


@kernels
@cells
def test_gradients_of_results_may_have_any_strides(kernel: Any, cell: Cell) -> None:
    grads = [torch.randn(6, 4, 3, dtype=torch.float64).permute(1, 2, 0) for _ in range(count_results(cell))]
    grads[0] = torch.ones(1, 1, 1, dtype=torch.float64).expand(4, 3, 6)
    assert_agrees(kernel(cell), cell, arguments(cell, (4, 3, 6), torch.float64), grads)


@kernels
@cells
@dtypes
def test_gates_wide_open_and_shut(kernel: Any, cell: Cell, dtype: torch.dtype) -> None:
    given = arguments(cell, (5, 2, 16), dtype)
    given["drive"] += 1000 * torch.randint(-1, 2, given["drive"].shape)
    grads = [torch.randn(5, 2, 16, dtype=dtype) for _ in range(count_results(cell))]
    assert_agrees(kernel(cell), cell, given, grads)


@kernels
@cells
def test_nothing_is_kept_unless_asked_for(kernel: Any, cell: Cell) -> None:
    given = arguments(cell, (3, 2, 5), torch.float64)
    expected = stepped(cell, **given)
    initial = [value.clone() for value in given["initial"]]
    results, kept = kernel(cell).forward(*parted(given), keep=False)
    assert kept == []
    for value, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(value, wanted)
    assert all(torch.equal(value, copy) for value, copy in zip(given["initial"], initial, strict=True))


def test_the_gru_needs_no_offset() -> None:
    given = arguments(GRU(), (3, 2, 5), torch.float64)
    absent, zero = dict(given, offset=None), dict(given, offset=torch.zeros_like(given["offset"]))
    grads = [torch.randn(3, 2, 5, dtype=torch.float64)]
    (results, found), (expected, wanted) = run(compiled(GRU()), absent, grads), run(compiled(GRU()), zero, grads)
    torch.testing.assert_close([*results, found.drive, found.weight], [*expected, wanted.drive, wanted.weight])
    assert found.offset is None


@transitions
@dtypes
@pytest.mark.parametrize("T", [1, 2, 7])
def test_vanilla_is_its_own_steps(cell: Vanilla, dtype: torch.dtype, T: int) -> None:
    gradient = torch.randn(5, 3, T, dtype=dtype).permute(2, 1, 0)
    assert_agrees(compiled(cell), cell, arguments(cell, (T, 3, 5), dtype), [gradient])


@transitions
def test_vanilla_keeps_nothing_but_its_results(cell: Vanilla) -> None:
    results, kept = compiled(cell).forward(*parted(arguments(cell, (3, 2, 5), torch.float64)), keep=True)
    assert (len(results), kept) == (1, [])


@pytest.mark.parametrize("cell", [*IN_TORCH_OF, Vanilla()], ids=lambda cell: cell.name)
def test_no_gradient_at_all_is_zeros(cell: Cell) -> None:
    given = arguments(cell, (3, 2, 5), torch.float64)
    _, found = run(compiled(cell), given, [None] * count_results(cell))
    own = _tensors(getattr(found, name) for name in given)
    assert [value.shape for value in own] == [value.shape for value in _tensors(given.values())]
    assert all(torch.equal(value, torch.zeros_like(value)) for value in own)


@pytest.mark.parametrize("cell", [LSTM(gate="hard_sigmoid"), Vanilla("prelu"), Vanilla("oplu")], ids=repr)
def test_other_functions_have_no_kernels(cell: Cell) -> None:
    assert kernel_of(cell) is None
