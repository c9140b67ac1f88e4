"""Parts of arrays in compiled loops, against numpy's own indices."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from isornn.nn.kernels.arithmetic import Array
from isornn.nn.kernels.rows import part_of, row_of

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
