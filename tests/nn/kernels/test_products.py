"""A step's product in compiled loops, against torch's in longer precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isornn.nn import LSTM
from isornn.nn.kernels.products import multiply, packed

# Fewer, as many and more rows than a tile's, more columns than a panel's, more of the inner dimension than a block's.
SHAPES = [(1, 1, 1), (6, 3, 5), (8, 40, 32), (19, 300, 70), (3, 520, 33)]


def sample(rows: int, inner: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    sizes = (rows, columns), (rows, inner), (inner, columns)
    total, left, matrix = (torch.randn(*size, generator=generator, dtype=dtype) for size in sizes)
    return total, left, matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_adds_the_product(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    total, left, matrix = sample(*shape, dtype)
    wanted = total.double() + left.double() @ matrix.double()
    multiply(total.numpy(), left.numpy(), packed(matrix).numpy(), 0, len(left))
    bound = torch.finfo(dtype).eps * shape[1] * (1 + left.abs() @ matrix.abs()).double()  # of a sum in any order
    assert bool(((total.double() - wanted).abs() <= bound).all())


@pytest.mark.parametrize("columns", [5, 32, 64, 70])
def test_packing_a_transposed_matrix(columns: int) -> None:
    matrix = torch.arange(3.0 * columns).reshape(columns, 3).t()
    panels = packed(matrix)
    unpacked = panels.transpose(0, 1).flatten(1)
    assert panels.is_contiguous()
    assert torch.equal(unpacked[:, :columns], matrix)
    assert not unpacked[:, columns:].any()


def test_rows_come_out_the_same_however_they_are_divided_and_others_are_left() -> None:
    total, left, matrix = sample(19, 300, 70, torch.float32)
    whole, panels = total.clone(), packed(matrix).numpy()
    multiply(whole.numpy(), left.numpy(), panels, 0, 19)
    parts = total.clone()
    for start, stop in ((3, 4), (4, 15)):
        multiply(parts.numpy(), left.numpy(), panels, start, stop)
    assert torch.equal(parts[3:15], whole[3:15])
    assert torch.equal(parts[:3], total[:3])
    assert torch.equal(parts[15:], total[15:])


def test_of_columns_among_others() -> None:
    total, left, matrix = sample(5, 12, 40, torch.float64)
    wide, source = torch.zeros(5, 100, dtype=torch.float64), torch.zeros(5, 30, dtype=torch.float64)
    wide[:, 30:70], source[:, 9:21] = total, left
    multiply(wide.numpy()[:, 30:70], source.numpy()[:, 9:21], packed(matrix).numpy(), 0, 5)
    torch.testing.assert_close(wide[:, 30:70], total + left @ matrix, rtol=0, atol=1e-13)
    assert not bool(wide[:, :30].any()) and not bool(wide[:, 70:].any())


def test_what_is_not_a_number_stays_in_its_row() -> None:
    total, left, matrix = sample(9, 12, 5, torch.float32)
    left[4, 7] = float("nan")
    multiply(total.numpy(), left.numpy(), packed(matrix).numpy(), 0, 9)
    assert total.isnan().all(1).tolist() == [row == 4 for row in range(9)]


def test_a_single_step_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Tensor) -> Tensor:
        raise AssertionError("packed for a single step")

    layer = LSTM(3, 256)
    monkeypatch.setattr("isornn.nn.kernels.products.packed", refused)
    layer(torch.zeros(1, 1, 3))[0].sum().backward()
    with pytest.raises(AssertionError, match="packed for a single step"):
        layer(torch.zeros(100, 1, 3))
