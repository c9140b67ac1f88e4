"""Compiled sigmoid and tanh against those of longer precision, in units in the last place."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch

from isornn.nn.kernels import arithmetic


@numba.njit(fastmath={"contract"}, error_model="numpy")  # not kept: what it is made of changes
def sigmoid_over(row: np.ndarray) -> None:
    for n in range(len(row)):
        row[n] = arithmetic.sigmoid(row[n])


@numba.njit(fastmath={"contract"}, error_model="numpy")  # not kept: what it is made of changes
def tanh_over(row: np.ndarray) -> None:
    for n in range(len(row)):
        row[n] = arithmetic.tanh(row[n])


@numba.njit(fastmath={"contract"}, error_model="numpy")  # not kept: what it is made of changes
def log1p_over(row: np.ndarray) -> None:
    for n in range(len(row)):
        row[n] = arithmetic.log1p(row[n])


@numba.njit(fastmath={"contract"}, error_model="numpy")  # not kept: what it is made of changes
def exp_over(row: np.ndarray) -> None:
    for n in range(len(row)):
        row[n] = arithmetic.exp(row[n])


@numba.njit(fastmath={"contract"}, error_model="numpy")  # not kept: what it is made of changes
def expm1_over(row: np.ndarray) -> None:
    for n in range(len(row)):
        row[n] = arithmetic.expm1(row[n])


FUNCTIONS = {"sigmoid": (sigmoid_over, torch.sigmoid), "tanh": (tanh_over, torch.tanh)}
functions = pytest.mark.parametrize("name", FUNCTIONS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def exactly(name: str, u: np.ndarray) -> np.ndarray:
    """In the widest type of this machine, each by a formula without cancellation."""
    u = u.astype(np.longdouble)
    if name == "sigmoid":
        return 1 / (1 + np.exp(-u))
    e = np.expm1(-2 * np.abs(u))
    return -np.sign(u) * e / (2 + e)


def computed(name: str, u: np.ndarray) -> np.ndarray:
    row = u.copy()
    FUNCTIONS[name][0](row)
    return row


def arguments(dtype: Any) -> np.ndarray:
    """Of either sign, from the smallest normal numbers to where sigmoid(-u) is no longer one."""
    largest = {np.float32: 87.0, np.float64: 708.0}[dtype]
    sizes = np.concatenate([np.geomspace(np.finfo(dtype).tiny, 1.0, 20_001), np.linspace(0.0, largest, 200_001)])
    return np.concatenate([-sizes, sizes]).astype(dtype)


@functions
@dtypes
def test_right_to_a_few_units_in_the_last_place(name: str, dtype: Any) -> None:
    u = arguments(dtype)
    wanted = exactly(name, u)
    unit = np.spacing(np.abs(wanted).astype(dtype)).astype(np.longdouble)
    error = np.abs(computed(name, u) - wanted) / unit
    assert error.max() < 4


@functions
@dtypes
def test_not_much_worse_than_torch(name: str, dtype: Any) -> None:
    u = np.random.default_rng(0).normal(size=10_000, scale=5).astype(dtype)
    function: Callable[[torch.Tensor], torch.Tensor] = FUNCTIONS[name][1]
    np.testing.assert_allclose(computed(name, u), function(torch.from_numpy(u)).numpy(), rtol=8 * np.finfo(dtype).eps)


@functions
@dtypes
def test_saturates(name: str, dtype: Any) -> None:
    u = np.array([-np.inf, -np.finfo(dtype).max, -1000, 1000, np.finfo(dtype).max, np.inf], dtype)
    lowest = {"sigmoid": 0, "tanh": -1}[name]
    np.testing.assert_array_equal(computed(name, u), [lowest] * 3 + [1] * 3)


@functions
@dtypes
def test_not_a_number_stays_that(name: str, dtype: Any) -> None:
    assert np.isnan(computed(name, np.full(33, np.nan, dtype))).all()


@dtypes
def test_logarithms_and_exponentials_are_right_to_a_few_units_in_the_last_place(dtype: Any) -> None:
    x = np.concatenate([arguments(dtype), np.geomspace(1e-3, np.finfo(dtype).max / 2, 5_001, dtype=dtype)])
    x = np.concatenate([x[x > -1], -np.geomspace(np.finfo(dtype).tiny, 0.999, 5_001, dtype=dtype)])
    for compiled, exact in ((log1p_over, np.log1p), (exp_over, np.exp), (expm1_over, np.expm1)):
        largest = {np.float32: 87.0, np.float64: 708.0}[dtype] + 1.7 * (compiled is expm1_over)
        u = x if compiled is log1p_over else x[np.abs(x) < largest]
        found, wanted = u.copy(), exact(u.astype(np.longdouble))
        compiled(found)
        unit = np.spacing(np.abs(wanted).astype(dtype)).astype(np.longdouble)
        assert (np.abs(found - wanted) / unit).max() < 4


@dtypes
def test_logarithms_and_exponentials_at_the_ends(dtype: Any) -> None:
    row = np.array([-1, np.inf, -2, np.nan, 0], dtype)
    log1p_over(row)
    np.testing.assert_array_equal(row, np.array([-np.inf, np.inf, np.nan, np.nan, 0], dtype))
    row = np.array([-np.inf, np.inf, -2000, 2000, np.nan, 0], dtype)
    exp_over(row)
    np.testing.assert_array_equal(row, np.array([0, np.inf, 0, np.inf, np.nan, 1], dtype))
    row = np.array([-np.inf, np.inf, -2000, 2000, np.nan, 0], dtype)
    expm1_over(row)
    np.testing.assert_array_equal(row, np.array([-1, np.inf, -1, np.inf, np.nan, 0], dtype))


@dtypes
def test_zero(dtype: Any) -> None:
    np.testing.assert_array_equal(computed("tanh", np.zeros(3, dtype)), 0)
    np.testing.assert_array_equal(computed("sigmoid", np.zeros(3, dtype)), 0.5)


def test_numba_is_imported_only_where_a_kernel_runs() -> None:
    program = "import sys, isornn.nn; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@dtypes
def test_every_function_becomes_vector_instructions(dtype: Any) -> None:
    compiled: Any
    for compiled in (sigmoid_over, tanh_over, log1p_over, exp_over, expm1_over):
        compiled(np.zeros(1, dtype))
        text = compiled.inspect_llvm((numba.typeof(np.empty(1, dtype)),))
        assert re.search(r"fdiv <\d|fmul .*<\d+ x (float|double)>", text), compiled.__name__
