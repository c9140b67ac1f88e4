"""A linear scan is its loop over time, by the compiled loop and by doubling, and so are all its derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from isornn.nn import scan
from isornn.nn.kernels import threads
from isornn.nn.kernels.doubling import scan_by_doubling
from isornn.nn.scan import linear_scan

every_direction = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


@pytest.fixture(params=["loop", "doubling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On this device by the compiled loop, or by doubling as on others."""
    if request.param == "doubling":
        monkeypatch.setattr(scan._LinearScan, "forward", staticmethod(_by_doubling))
    return str(request.param)


def _by_doubling(a: Tensor, b: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    return scan_by_doubling(a, b, initial, reverse=reverse)


def looped(a: Tensor, b: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    h, record = initial, []
    for a_t, b_t in zip(*(values.flip(0) if reverse else values for values in (a, b)), strict=True):
        h = a_t * h + b_t
        record.append(h)
    return torch.stack(record[::-1] if reverse else record)


def sample(*shape: int, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> tuple[Tensor, ...]:
    """a within (-1, 1), b, and an initial state."""
    generator = torch.Generator().manual_seed(sum(shape))
    a = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    b = torch.randn(shape, generator=generator, dtype=torch.float64)
    initial = torch.randn(shape[1:], generator=generator, dtype=torch.float64)
    return tuple(tensor.to(dtype).requires_grad_(requires_grad) for tensor in (a, b, initial))


@pytest.mark.usefixtures("way")
@every_direction
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 33])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)], ids=str)
def test_scan_is_the_loop(steps: int, dtype: torch.dtype, tolerance: float, reverse: bool) -> None:
    a, b, initial = sample(steps, 2, 3, dtype=dtype)
    found = linear_scan(a, b, initial, reverse=reverse)
    assert found.dtype == dtype
    torch.testing.assert_close(found, looped(a, b, initial, reverse=reverse), rtol=tolerance, atol=tolerance)


def test_other_devices_go_by_doubling() -> None:
    # The meta device has shapes and no memory, so a loop over memory would fail.
    given = [tensor.to("meta").requires_grad_() for tensor in sample(5, 3)]
    h = linear_scan(*given)
    assert (h.device.type, h.shape) == ("meta", (5, 3))
    h.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in given)


@pytest.mark.usefixtures("way")
def test_factors_that_are_exactly_0_or_1() -> None:
    b = torch.tensor([3.0, 4.0, 5.0])
    initial = torch.tensor(2.0)
    assert linear_scan(torch.zeros(3), b, initial).tolist() == [3.0, 4.0, 5.0]
    assert linear_scan(torch.ones(3), b, initial).tolist() == [5.0, 9.0, 14.0]
    assert linear_scan(torch.tensor([1.0, 0.0, 1.0]), b, initial).tolist() == [5.0, 4.0, 9.0]


def test_doubling_is_the_loop_over_a_long_sequence() -> None:
    a, b, initial = sample(1000, 4)
    torch.testing.assert_close(scan_by_doubling(a.abs(), b, initial), linear_scan(a.abs(), b, initial))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@every_direction
def test_time_at_any_dimension(dim: int, reverse: bool) -> None:
    a, b, initial = sample(4, 2, 3)
    found = linear_scan(a.movedim(0, dim), b.movedim(0, dim), initial, dim=dim, reverse=reverse)
    torch.testing.assert_close(found.movedim(dim, 0), looped(a, b, initial, reverse=reverse))


def test_shapes_broadcast_and_gradients_are_summed_back() -> None:
    a, b, _ = sample(5, 4, 3)
    a, b = a[:, :1].clone().requires_grad_(), b.clone().requires_grad_()
    one_a = torch.tensor([0.3, -0.5, 0.9], dtype=torch.float64, requires_grad=True)
    initial = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    for factor in (a, one_a):
        sources = (factor, b, initial)
        found = torch.autograd.grad(linear_scan(*sources).square().sum(), sources)
        expected = torch.autograd.grad(looped(*sources).square().sum(), sources)
        torch.testing.assert_close(found, expected)


def test_initial_state_is_0_where_not_given() -> None:
    a, b, initial = sample(5, 3)
    torch.testing.assert_close(linear_scan(a, b), looped(a, b, torch.zeros_like(initial)))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_empty_sequences_and_empty_steps(shape: tuple[int, int]) -> None:
    a, b, initial = sample(*shape, requires_grad=True)
    found = linear_scan(a, b, initial)
    assert found.shape == shape
    found.sum().backward()
    for tensor in (a, b, initial):
        assert tensor.grad is not None and torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_threads_share_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    a, b, initial = sample(5, 11)
    torch.testing.assert_close(linear_scan(a, b, initial), looped(a, b, initial))


def test_arguments_are_not_written_to() -> None:
    given = sample(5, 3, requires_grad=True)
    before = [tensor.detach().clone() for tensor in given]
    linear_scan(*given).square().sum().backward()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(given, before, strict=True))


@pytest.mark.usefixtures("way")
@every_direction
@pytest.mark.parametrize("steps", [1, 4])
def test_derivatives_of_first_and_second_order(steps: int, reverse: bool) -> None:
    given = sample(steps, 2, requires_grad=True)

    def run(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        return linear_scan(a, b, initial, reverse=reverse)

    assert gradcheck(run, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(run, given, check_batched_grad=True)


@pytest.mark.usefixtures("way")
@every_direction
@pytest.mark.parametrize("in_dims", [(0, 1, 1), (None, 2, None), (1, None, 0), (None, None, 0)], ids=str)
def test_vmap(in_dims: tuple[int | None, ...], reverse: bool) -> None:
    size = 3
    a, b, initial = (
        value if axis is None else torch.stack([value * (k + 1) / size for k in range(size)], axis)
        for value, axis in zip(sample(4, 2), in_dims, strict=True)
    )

    def run(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
        return linear_scan(a, b, initial, reverse=reverse)

    found = torch.func.vmap(run, in_dims)(a, b, initial)
    for k in range(size):
        one = [
            value if axis is None else value.select(axis, k)
            for value, axis in zip((a, b, initial), in_dims, strict=True)
        ]
        torch.testing.assert_close(found[k], looped(*one, reverse=reverse))


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_functional_transforms(argnum: int) -> None:
    given = sample(4, 2)

    def energy(*values: Tensor) -> Tensor:
        return linear_scan(*values).pow(3).sum()

    def expected_energy(*values: Tensor) -> Tensor:
        return looped(*values).pow(3).sum()

    for transform in (torch.func.grad, torch.func.hessian):
        torch.testing.assert_close(
            transform(energy, argnum)(*given),
            transform(expected_energy, argnum)(*given),
        )
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(linear_scan, argnum)(*given), torch.func.jacrev(looped, argnum)(*given))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's tracing does
@every_direction
def test_compiled_as_one_graph(reverse: bool) -> None:
    given = sample(4, 2, requires_grad=True)
    compiled = torch.compile(linear_scan, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*given, reverse=reverse).square().sum(), given)
    expected = torch.autograd.grad(looped(*given, reverse=reverse).square().sum(), given)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    # 1 + 1/1024 a step stands still at 2 in bfloat16, and would not reach this sum in float16.
    a, b = torch.ones(5000, dtype=dtype), torch.full((5000,), 1 / 1024, dtype=dtype)
    found = linear_scan(a, b, torch.ones((), dtype=dtype))
    assert found.dtype == dtype
    assert found[-1] == torch.tensor(1 + 5000 / 1024).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gradients_are_rounded_once(dtype: torch.dtype) -> None:
    given = [tensor.to(dtype) for tensor in sample(9, 3)]
    halves = [tensor.clone().requires_grad_() for tensor in given]
    singles = [tensor.float().requires_grad_() for tensor in given]
    found = torch.autograd.grad(linear_scan(*halves).sum(), halves)
    expected = torch.autograd.grad(linear_scan(*singles).sum(), singles)
    for grad, exact in zip(found, expected, strict=True):
        assert torch.equal(grad, exact.to(dtype))


def test_dtypes_are_promoted() -> None:
    a, b, initial = sample(3, 2)
    assert linear_scan(a.float(), b.half(), initial.bfloat16()).dtype == torch.float32
    assert linear_scan(a.float(), b).dtype == torch.float64


def test_errors_say_what_is_allowed() -> None:
    a, b, initial = sample(4, 3)
    with pytest.raises(TypeError, match=r"a: dtype torch.int64 is not allowed"):
        linear_scan(a.long(), b, initial)
    with pytest.raises(TypeError, match=r"initial: dtype torch.complex128 is not allowed"):
        linear_scan(a, b, initial.to(torch.complex128))
    with pytest.raises(ValueError, match=r"b: shape \(4, 2\) is not allowed; it must broadcast with a's, \(4, 3\)"):
        linear_scan(a, b[:, :2], initial)
    with pytest.raises(ValueError, match=r"initial: shape \(4, 3\) is not allowed; it must broadcast to .* \(3,\)"):
        linear_scan(a, b, b)
    with pytest.raises(ValueError, match=r"a: device meta is not allowed; b is on cpu"):
        linear_scan(a.to("meta"), b, initial)
    with pytest.raises(ValueError, match=r"dim: 2 is not allowed"):
        linear_scan(a, b, initial, dim=2)
    with pytest.raises(ValueError, match=r"dim: 0 is not allowed"):
        linear_scan(initial[0], b[0, 0])
