"""The contract of `Kernel`: the numbers of the cell's own steps, there and back, for every cell and in every way.

Triton's kernels run on a CUDA device, or by Triton's interpreter on this one: Triton reads where to run when it is
first imported, so the interpreter has a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy
import pytest
import torch
from numpy.lib import NumpyVersion
from torch import Tensor

from isornn.cells import (
    CELLS,
    FURTHER_CELLS,
    GRU,
    LSTM,
    TLSTM,
    TRNN,
    Cell,
    ChoGRU,
    GersLSTM,
    Peephole,
    Reads,
    Values,
    Vanilla,
)
from isornn.cells.trace import graph_of
from isornn.nn.kernels import device, passes, threads, why_no_kernel
from isornn.nn.kernels.contract import Gradients, Kernel, RecurrenceArgs
from isornn.nn.kernels.generated import GeneratedKernel
from isornn.nn.kernels.scan_steps import carries_affinely
from isornn.nn.step import step


@dataclass(frozen=True)
class TwoScans(Cell):
    """A cell of no paper: two states, each affine in itself alone, one of them only where a gate is open."""

    name = "two_scans"
    states = ("h", "m")
    gates = {"a": Reads(state=False), "b": Reads(state=False)}
    parameters = {"scale": 0.5}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.a)
        h = (s.h - u.b) / (1 + u.b.square()) + 0.5 * s.h
        return {"h": h, "m": torch.where(u.b > 0, s.m, f * (1 - s.m) * u.scale)}

    def output(self, s: Values, u: Values) -> Any:
        return torch.tanh(s.h) * s.m * u.scale


@dataclass(frozen=True)
class GatedTwice(Cell):
    """A cell of no paper: two gated reads, one of them by a gate that reads the state alone; two states."""

    name = "gated_twice"
    states = ("h", "m")
    gates = {"a": Reads(), "b": Reads(input=False), "n": Reads(), "o": Reads(input=False)}
    parameters = {"scale": 0.5}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        if gate == "n":
            return torch.sigmoid(u.a) * s.h
        return s.m * torch.tanh(u.b) if gate == "o" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.a + torch.nn.functional.softplus(u.scale) * s.m)
        m = torch.clamp(f * s.m + (1 - f) * torch.tanh(u.n), -0.8, 0.9)
        return {"h": torch.maximum(m, 0.1 * u.b) / (1 + u.o.square()).sqrt(), "m": m + 0.1 * torch.exp(-u.o.abs())}

    def output(self, s: Values, u: Values) -> Any:
        return torch.where(u.o > 0, s.h, s.m * u.scale)


CATALOGUE = [kind() for kind in (CELLS | FURTHER_CELLS).values()]
OPTIONS = [LSTM("hard_sigmoid"), GRU("hard_sigmoid"), ChoGRU("hard_sigmoid")]
TRANSITIONS = [Vanilla(name) for name in ("sigmoid", "relu", "identity", "prelu", "leaky_relu", "modrelu")]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def arguments(cell: Cell, shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """What a kernel takes, drawn at random."""
    (T, B, N), gates = shape, cell.gates.values()
    driven = sum(reads.input or not reads.state for reads in gates)
    recurrent = sum(reads.state for reads in gates)
    undriven = len(gates) - driven
    generator = torch.Generator().manual_seed(T + 10 * B + 100 * N)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=dtype)

    return {
        "drive": normal(T, B, driven * N),
        "weight": normal(recurrent * N, N) / N**0.5 if recurrent else None,
        "offset": normal(undriven * N) if undriven else None,
        "x": normal(T, B, N) if cell.input_enters_pointwise else None,
        "units": [normal(N) for _ in cell.parameters],
        "initial": [normal(B, N) for _ in cell.states],
    }


def stepped(
    cell: Cell,
    drive: Tensor,
    weight: Tensor | None,
    offset: Tensor | None,
    x: Tensor | None,
    units: Sequence[Tensor],
    initial: Sequence[Tensor],
) -> list[Tensor]:
    """The results that a kernel promises, by the cell's own steps."""
    N = initial[0].shape[-1]
    driven = [gate for gate, reads in cell.gates.items() if reads.input or not reads.state]
    undriven = [gate for gate in cell.gates if gate not in driven]
    fixed = dict(zip(undriven, offset.split(N), strict=True)) if offset is not None else {}
    parts = () if weight is None else weight.split(N)
    matrices = dict(zip([gate for gate, reads in cell.gates.items() if reads.state], parts, strict=True))
    own = dict(zip(cell.parameters, units, strict=True))
    states, record = Values(**dict(zip(cell.states, initial, strict=True))), []
    for t, now in enumerate(drive):
        u_drive = dict(zip(driven, now.split(N, -1), strict=True)) | fixed
        x_t = None if x is None else x[t]
        states, u = step(cell, states, u_drive, lambda gate, r: r @ matrices[gate].t(), x_t, own)
        values, output = [getattr(states, name) for name in cell.states], cell.output(states, u)
        record.append(values if graph_of(cell).output_is_first_state else [*values, output])
    return [torch.stack(values) for values in zip(*record, strict=True)]


def reference(cell: Cell, given: dict[str, Any], grads: Sequence[Tensor | None]) -> tuple[list[Tensor], dict[str, Any]]:
    """Results, and the gradients of all that is given, by name."""

    def leaf(value: Tensor | None) -> Any:
        return None if value is None else value.clone().requires_grad_()

    def gradient(value: Tensor | None) -> Any:
        if value is None:
            return None
        return torch.zeros_like(value) if value.grad is None else value.grad

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
    """Forward and backward, which write to nothing but the drive and what is kept."""
    drive, fixed = parted(given)
    untouchable = _tensors(vars(fixed).values())
    copies = [value.clone() for value in untouchable]
    results, kept = kernel.forward(drive, fixed, keep=True)
    untouchable += _tensors([results, grads])
    copies += [value.clone() for value in _tensors([results, grads])]
    found = kernel.backward(fixed, results, kept, grads)
    for value, copy in zip(untouchable, copies, strict=True):
        assert torch.equal(value, copy)
    return results, found


def parted(given: dict[str, Any]) -> tuple[Tensor, RecurrenceArgs]:
    """A drive to write over, and the rest."""
    return given["drive"].clone(), RecurrenceArgs(**{name: value for name, value in given.items() if name != "drive"})


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among the values and in the lists among them."""
    listed = [value if isinstance(value, list) else [value] for value in values]
    return [one for several in listed for one in several if one is not None]


def count_results(cell: Cell) -> int:
    return len(cell.states) + (not graph_of(cell).output_is_first_state)


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
        scale = max(1.0, float(wanted.nan_to_num().abs().max()))  # of what is summed, where the sum cancels
        torch.testing.assert_close(value, wanted, rtol=0, atol=TOLERANCE[wanted.dtype] * scale, equal_nan=True)


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = not INTERPRETED and torch.cuda.is_available() and device.runs_triton(torch.device("cuda"))
WHY_NOT = "no CUDA device here, or no Triton: test_triton_by_its_interpreter runs it where Triton is"


@dataclass(frozen=True)
class OnGPU(Kernel):
    """A kernel that runs on a CUDA device with what is on the CPU."""

    kernel: GeneratedKernel

    @property
    def kept_widths(self) -> tuple[int, ...]:
        return self.kernel.kept_widths

    def forward(self, drive: Tensor, given: RecurrenceArgs, keep: bool) -> tuple[list[Tensor], list[Tensor]]:
        results, kept = self.kernel.forward(drive.cuda(), self._moved(given), keep)
        return [value.cpu() for value in results], [value.cpu() for value in kept]

    def backward(
        self, given: RecurrenceArgs, results: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> Gradients:
        moved = [[None if value is None else value.cuda() for value in values] for values in (results, kept, grads)]
        found = self.kernel.backward(self._moved(given), *moved)
        return Gradients(**_each(lambda value: None if value is None else value.cpu(), vars(found)))

    def _moved(self, given: RecurrenceArgs) -> RecurrenceArgs:
        return RecurrenceArgs(**_each(lambda value: None if value is None else value.cuda(), vars(given)))


def compiled(cell: Cell) -> Kernel:
    return GeneratedKernel(cell, "compiled")


def stepwise(cell: Cell) -> Kernel:
    return GeneratedKernel(cell, "stepwise")


def in_torch(cell: Cell) -> Kernel:
    return GeneratedKernel(cell, "torch")


def by_scan(cell: Cell) -> Kernel:
    return GeneratedKernel(cell, "scan")


def by_triton(cell: Cell) -> Kernel:
    kernel = GeneratedKernel(cell, "triton")
    return OnGPU(kernel) if ON_GPU else kernel


def in_every_way(cells: Iterable[Cell]) -> pytest.MarkDecorator:
    """Every kernel of every cell: scans of the cells that have one."""
    ways = [compiled, stepwise, in_torch, by_scan, by_triton]
    pairs = [(way, cell) for cell in cells for way in ways if way is not by_scan or carries_affinely(cell)]
    marks = {by_triton: [pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason=WHY_NOT)]}
    named = [
        pytest.param(way, cell, marks=marks.get(way, ()), id=f"{way.__name__}-{cell.name if named else cell!r}")
        for way, cell in pairs
        for named in [cell in EVERY_CELL]
    ]
    return pytest.mark.parametrize(("kernel", "cell"), named)


EVERY_CELL = [*CATALOGUE, GatedTwice(), TwoScans()]
SCANNED = [cell for cell in EVERY_CELL if carries_affinely(cell)]
cells = pytest.mark.parametrize("cell", EVERY_CELL, ids=lambda cell: cell.name)
scanned = pytest.mark.parametrize("cell", SCANNED, ids=lambda cell: cell.name)
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
# The interpreter computes in the elements beyond the last too, and takes arrays of one number for numbers.
OF_INTERPRETER = ("Conversion of an array", "overflow", "divide by", "invalid value")
pytestmark = [pytest.mark.filterwarnings(f"ignore:{message}") for message in OF_INTERPRETER if INTERPRETED]


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_triton_by_its_interpreter() -> None:
    if NumpyVersion(numpy.__version__) >= "2.4.0" and NumpyVersion(version("triton")) < "3.9.0":
        pytest.skip("Triton's interpreter runs with numpy 2.4 from Triton 3.9 on")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "by_triton"]
    done = subprocess.run(
        [*command, __file__], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


@in_every_way(EVERY_CELL)
@dtypes
@pytest.mark.parametrize(("T", "B", "N"), [(1, 1, 1), (2, 3, 5), (7, 3, 16), (7, 1, 5), (2, 1, 16)])
def test_results_and_gradients_are_those_of_the_cells_steps(
    kernel: Any, cell: Cell, dtype: torch.dtype, T: int, B: int, N: int
) -> None:
    grads = [torch.randn(T, B, N, dtype=dtype) for _ in range(count_results(cell))]
    assert_agrees(kernel(cell), cell, arguments(cell, (T, B, N), dtype), grads)


@in_every_way([LSTM(), GersLSTM(), Peephole(), TLSTM()])
@pytest.mark.parametrize("absent", [0, 1])
def test_a_results_gradient_may_be_absent(kernel: Any, cell: Cell, absent: int) -> None:
    grads: list[Tensor | None] = [torch.randn(4, 2, 6, dtype=torch.float64) for _ in range(2)]
    grads[absent] = None
    assert_agrees(kernel(cell), cell, arguments(cell, (4, 2, 6), torch.float64), grads)


@in_every_way(EVERY_CELL)
def test_gradients_of_results_may_have_any_strides(kernel: Any, cell: Cell) -> None:
    grads = [torch.randn(6, 4, 3, dtype=torch.float64).permute(1, 2, 0) for _ in range(count_results(cell))]
    grads[0] = torch.ones(1, 1, 1, dtype=torch.float64).expand(4, 3, 6)
    assert_agrees(kernel(cell), cell, arguments(cell, (4, 3, 6), torch.float64), grads)


@in_every_way(EVERY_CELL)
@dtypes
def test_gates_wide_open_and_shut(kernel: Any, cell: Cell, dtype: torch.dtype) -> None:
    torch.manual_seed(0)  # the draws below are the same whatever ran before
    given = arguments(cell, (5, 2, 16), dtype)
    given["drive"] += 1000 * torch.randint(-1, 2, given["drive"].shape)
    grads = [torch.randn(5, 2, 16, dtype=dtype) for _ in range(count_results(cell))]
    assert_agrees(kernel(cell), cell, given, grads)


@in_every_way(EVERY_CELL)
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


@in_every_way([*OPTIONS, *TRANSITIONS])
@dtypes
def test_options_are_printed_too(kernel: Any, cell: Cell, dtype: torch.dtype) -> None:
    gradient = [torch.randn(5, 3, 7, dtype=dtype).permute(2, 1, 0) for _ in range(count_results(cell))]
    assert_agrees(kernel(cell), cell, arguments(cell, (7, 3, 5), dtype), gradient)


@in_every_way([Vanilla(), *TRANSITIONS[:3]])
def test_vanilla_keeps_nothing_but_its_results(kernel: Any, cell: Cell) -> None:
    results, kept = kernel(cell).forward(*parted(arguments(cell, (3, 2, 5), torch.float64)), keep=True)
    assert (len(results), kept) == (1, [])


@pytest.mark.parametrize("kept", [({"lstm"}, (4,)), ({"gru"}, (3, 1)), ({"minimal"}, (1,)), ({"t_rnn"}, (2,))], ids=str)
def test_what_is_kept_is_no_more_than_is_needed(kept: tuple[set[str], tuple[int, ...]]) -> None:
    names, widths = kept
    for cell in CATALOGUE:
        if cell.name in names:
            given = arguments(cell, (7, 3, 5), torch.float32)
            _, found = compiled(cell).forward(*parted(given), keep=True)
            assert [tensor.shape for tensor in found] == [(7, 3, width * 5) for width in widths]
            assert GeneratedKernel(cell).kept_widths == widths


@in_every_way(EVERY_CELL)
def test_no_gradient_at_all_is_zeros(kernel: Any, cell: Cell) -> None:
    given = arguments(cell, (3, 2, 5), torch.float64)
    _, found = run(kernel(cell), given, [None] * count_results(cell))
    own = _tensors(getattr(found, name) for name in given)
    assert [value.shape for value in own] == [value.shape for value in _tensors(given.values())]
    assert all(torch.equal(value, torch.zeros_like(value)) for value in own)


@in_every_way(SCANNED)
def test_what_is_kept_has_the_width_that_is_promised(kernel: Any, cell: Cell) -> None:
    _, kept = kernel(cell).forward(*parted(arguments(cell, (7, 3, 5), torch.float32)), keep=True)
    assert [value.shape for value in kept] == [(7, 3, width * 5) for width in kernel(cell).kept_widths]


@in_every_way(cell for cell in SCANNED if cell.name in ("t_rnn", "t_lstm", "t_gru"))
def test_a_shut_cell_keeps_its_state_to_the_bit(kernel: Any, cell: Cell) -> None:
    given = arguments(cell, (50, 2, 3), torch.float32)
    given["drive"][:, :, :3], given["drive"][:, :, 6:] = 1000.0, 0.0
    (state, *_), _ = kernel(cell).forward(*parted(given), keep=True)
    assert torch.equal(state, given["initial"][0].expand_as(state))


@in_every_way(SCANNED)
def test_the_backward_pass_may_be_run_again(kernel: Any, cell: Cell) -> None:
    given = arguments(cell, (7, 3, 5), torch.float64)
    grads = [torch.randn(7, 3, 5, dtype=torch.float64) for _ in range(count_results(cell))]
    drive, fixed = parted(given)
    results, kept = kernel(cell).forward(drive, fixed, keep=True)
    as_kept = [[value.clone() for value in kept] for _ in range(2)]  # what was kept may be written over
    first, second = (kernel(cell).backward(fixed, results, own, grads) for own in as_kept)
    pairs = zip(_tensors(vars(first).values()), _tensors(vars(second).values()), strict=True)
    assert all(torch.equal(value, again) for value, again in pairs)


@scanned
def test_other_devices_scan(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    # The meta device has shapes and no memory, so a loop over memory would fail; the steps one by one are not taken.
    monkeypatch.setattr("isornn.nn.kernels.torch_steps.stepped_in_torch", None)
    given = _each(lambda v: None if v is None else v.to("meta"), arguments(cell, (7, 3, 5), torch.float32))
    drive, fixed = parted(given)
    results, kept = GeneratedKernel(cell).forward(drive, fixed, keep=True)
    found = GeneratedKernel(cell).backward(fixed, results, kept, [torch.empty_like(value) for value in results])
    own = _tensors(getattr(found, name) for name in given)
    assert {value.device.type for value in (*results, *kept, *own)} == {"meta"}
    assert [value.shape for value in own] == [value.shape for value in _tensors(given.values())]


@pytest.mark.parametrize("way", ["compiled", "stepwise", "torch", "scan", None])
def test_the_way_that_is_asked_for_is_taken_and_a_small_layer_is_compiled(
    way: passes.Way | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def noting(name: str, before: Any) -> Any:
        def noted(*given: Any) -> None:
            taken.append(name)
            before(*given)

        return noted

    for name, place in (("_compiled", passes.Pass), ("_by_steps", passes.Pass), ("run_by_scan", passes)):
        monkeypatch.setattr(place, name, noting(name, getattr(place, name)))
    drive, given = parted(arguments(TRNN(), (4, 2, 6), torch.float64))
    GeneratedKernel(TRNN(), way).forward(drive, given, keep=False)
    assert taken == [{"stepwise": "_by_steps", "torch": "_by_steps", "scan": "run_by_scan"}.get(way or "", "_compiled")]


def test_what_is_carried_affinely() -> None:
    expected = {"t_rnn", "t_lstm", "t_gru", "min_gru", "min_lstm", "rg_lru", "scrn", "two_scans"}
    assert {cell.name for cell in SCANNED} == expected


@cells
def test_threads_share_the_work_and_change_nothing(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    given = arguments(cell, (7, 8, 5), torch.float32)
    grads = [torch.randn(7, 8, 5) for _ in range(count_results(cell))]
    found = []
    for count in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        results, gradients = run(compiled(cell), given, grads)
        found.append([*results, *_tensors(vars(gradients).values())])
    assert all(torch.equal(alone, together) for alone, together in zip(*found, strict=True))


def test_programs_do_not_depend_on_the_modes_of_the_caller() -> None:
    @dataclass(frozen=True)
    class Fresh(Cell):
        name = "fresh"
        gates = {"h": Reads()}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"h": torch.tanh(u.h) * s.h}

    with torch.inference_mode(), torch.autocast("cpu"):
        assert why_no_kernel(Fresh()) is None
    grads = [torch.randn(4, 2, 3, dtype=torch.float64)]
    assert_agrees(in_torch(Fresh()), Fresh(), arguments(Fresh(), (4, 2, 3), torch.float64), grads)
