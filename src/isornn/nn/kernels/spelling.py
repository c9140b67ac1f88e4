"""Expressions written out: the same text is Python for numba and for Triton, with functions of these names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from isornn.nn.kernels.operations import aten
from isornn.nn.kernels.schedule import Operation, Row, Statement, rows_of

FUNCTIONS = ("cos", "erf", "exp", "expm1", "log", "log1p", "sigmoid", "sin", "sqrt", "tanh", "where")
"""What a module of kernels must have by these names."""

_SPELLINGS: Mapping[Any, str] = {
    aten.add.Tensor: "({0} + {1})",
    aten.sub.Tensor: "({0} - {1})",
    aten.mul.Tensor: "({0} * {1})",
    aten.div.Tensor: "({0} / {1})",
    aten.neg.default: "(-{0})",
    aten.abs.default: "abs({0})",
    aten.reciprocal.default: "({one} / {0})",
    aten.rsqrt.default: "({one} / sqrt({0}))",
    aten.relu.default: "where({0} < {zero}, {zero}, {0})",
    aten.sgn.default: "where({0} > {zero}, {one}, where({0} < {zero}, -{one}, {zero}))",
    # Written so that NaN stays, as torch has it.
    aten.maximum.default: "where(({0} > {1}) | ({0} != {0}), {0}, {1})",
    aten.minimum.default: "where(({0} < {1}) | ({0} != {0}), {0}, {1})",
    aten.clamp_min.default: "where({0} < {1}, {1}, {0})",
    aten.clamp_max.default: "where({0} > {1}, {1}, {0})",
    aten.where.self: "where({0}, {1}, {2})",
    aten.masked_fill.Scalar: "where({1}, {2}, {0})",
    aten.sigmoid_backward.default: "({0} * (({one} - {1}) * {1}))",
    aten.tanh_backward.default: "({0} * ({one} - {1} * {1}))",
    aten.threshold_backward.default: "where({1} <= {2}, {zero}, {0})",
    aten.logical_and.default: "({0} & {1})",
    aten.logical_or.default: "({0} | {1})",
    aten.logical_not.default: "({0} == False)",
    **{getattr(aten, name).default: name + "({0})" for name in FUNCTIONS if name != "where"},
    **{
        getattr(getattr(aten, name), kind): "({0} " + sign + " {1})"
        for name, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="), ("eq", "=="), ("ne", "!="))
        for kind in ("Scalar", "Tensor")
    },
}


def spelled(value: Any, row: Callable[[Row], str], number: Callable[[float], str]) -> str:
    """An expression, for one unit.

    Args:
        value: the expression.
        row: a row's value for the unit.
        number: a fixed number in the loop's precision.
    """
    if isinstance(value, Row):
        return row(value)
    if not isinstance(value, Operation):
        return number(float(value))
    spelling = _SPELLINGS[value.function]
    fixed = {name: number(size) for name, size in (("one", 1.0), ("zero", 0.0)) if f"{{{name}}}" in spelling}
    return spelling.format(*(spelled(arg, row, number) for arg in value.args), **fixed)


def written_out(
    statements: Iterable[Statement],
    held: Iterable[Row],
    name: Callable[[Row], str],
    loaded: Callable[[Row], str],
    value: Callable[[Statement], str],
    stored: Callable[[Row], str | None],
) -> Iterator[str]:
    """The statements as lines on variables: each row is loaded where it is first read.

    Args:
        statements: in order.
        held: rows whose variables exist already.
        name: a row's variable.
        loaded: what is assigned to it from memory.
        value: what a statement assigns to its target's.
        stored: the line that writes a row to memory; ``None`` for one that stays a variable.
    """
    known = set(held)
    for one in statements:
        read = rows_of(one.value) | ({one.target} if one.adds else set())
        for row in sorted(read - known, key=name):
            yield f"{name(row)} = {loaded(row)}"
        yield f"{name(one.target)} = {f'{name(one.target)} + ' if one.adds else ''}{value(one)}"
        known |= {*read, one.target}
        to_memory = stored(one.target)
        if to_memory is not None:
            yield to_memory
