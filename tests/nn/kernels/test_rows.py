"""Parts of arrays in compiled loops, against numpy's own indices."""

from __future__ import annotations

import re
from typing import Any

import numba
import numpy as np
import pytest

from isornn.nn.kernels.arithmetic import Array
from isornn.nn.kernels.rows import load, part_of, row_of, store

compiled: Any = numba.njit


def parts(array: Array, t: int, b: int, n: int) -> tuple[Array, Array, Array]:
    """Copies: a part has no memory of its own."""
    return row_of(array, (t, b)).copy(), row_of(array, (t,)).copy(), part_of(array, (t, b, n), (2, 3)).copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parts_are_where_their_indices_say(dtype: type) -> None:
    array: Array = np.arange(4 * 5 * 6, dtype=dtype).reshape(4, 5, 6)
    for whole in (array, array[1:, :, 1:]):  # the second with gaps between its rows
        row, first, block = compiled(parts)(whole, 2, 3, 1)
        np.testing.assert_array_equal(row, whole[2, 3])
        np.testing.assert_array_equal(first, whole[2, 0])
        np.testing.assert_array_equal(block, whole[2, 3:5, 1:4])


def halved(array: Array) -> None:
    for n in range(array.shape[-1]):
        row_of(array, (1,))[n] *= 0.5


def test_what_is_written_to_a_row_is_written_to_its_array() -> None:
    array = np.ones((3, 4))
    compiled(halved)(array)
    np.testing.assert_array_equal(array, [[1.0] * 4, [0.5] * 4, [1.0] * 4])


def running_sums(array: Array) -> None:
    """Each row is read as the one before, with the same number, and changed with it."""
    for t in range(1, array.shape[0]):
        before, row = row_of(array, (t - 1,)), row_of(array, (t,))
        for n in range(array.shape[1]):
            store(row, n, 3, load(row, n, 3) + load(before, n, 3))


@pytest.mark.parametrize("width", [1, 3, 64])
def test_rows_of_one_number_may_be_one_memory(width: int) -> None:
    array: Array = np.random.default_rng(0).integers(0, 9, (20, width)).astype(np.float64)
    expected = array.cumsum(0)
    compiled(running_sums)(array)
    np.testing.assert_array_equal(array, expected)


def combined(array: Array) -> None:
    """Ten rows, three of them changed, in one loop."""
    a, b, c, d, e = (
        row_of(array, (0,)),
        row_of(array, (1,)),
        row_of(array, (2,)),
        row_of(array, (3,)),
        row_of(array, (4,)),
    )
    f, g, h, i, j = (
        row_of(array, (5,)),
        row_of(array, (6,)),
        row_of(array, (7,)),
        row_of(array, (8,)),
        row_of(array, (9,)),
    )
    for n in range(array.shape[1]):
        first = load(a, n, 0) * load(b, n, 1) + load(c, n, 2) * load(d, n, 3)
        second = load(e, n, 4) * load(f, n, 5) + load(g, n, 6) * load(h, n, 7)
        store(a, n, 0, second)
        store(i, n, 8, first + second)
        store(j, n, 9, load(j, n, 9) * load(a, n, 0))


def test_a_loop_over_many_rows_is_vectorised() -> None:
    array: Array = np.random.default_rng(0).standard_normal((10, 100)).astype(np.float32)
    a, b, c, d, e, f, g, h, _, j = array.copy()
    loop = compiled(combined)
    loop(array)
    second = e * f + g * h
    np.testing.assert_allclose(array[[0, 8, 9]], [second, a * b + c * d + second, j * second], rtol=1e-5, atol=1e-6)
    assert re.search(r"store <\d+ x float>", next(iter(loop.inspect_llvm().values())))
