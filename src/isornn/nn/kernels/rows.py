"""Parts of arrays for compiled loops: where one begins, and nothing else.

An index in numba makes an array with a count of its users, which is changed by an atomic instruction: for a row of 32
numbers that takes as long as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


@intrinsic
def _part(context: Any, array: Any, place: Any, shape: Any) -> Any:
    """Of an array with contiguous rows, from an index on, the last axes: ``array[t, b:b+m, n:n+k]`` is
    ``part_of(array, (t, b, n), (m, k))``. Indices are not checked, none is negative, and those left out are 0."""
    kind = types.Array(array.dtype, len(shape), "C" if len(shape) == 1 else "A")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, shape = (cgutils.unpack_tuple(builder, value) for value in arguments[1:])
        return _view(context, builder, kind, array, arguments[0], place, shape)

    return kind(array, place, shape), build


@intrinsic
def _row(context: Any, array: Any, place: Any) -> Any:
    """`part_of` with all of the last axis."""
    kind = types.Array(array.dtype, 1, "C")

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.make_array(array)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, whole.shape)[-1:]
        return _view(context, builder, kind, array, arguments[0], cgutils.unpack_tuple(builder, arguments[1]), width)

    return kind(array, place), build


def _view(
    context: Any, builder: Any, kind: Any, array: Any, value: Any, place: Sequence[Any], shape: Sequence[Any]
) -> Any:
    whole = context.make_array(array)(context, builder, value)
    strides = cgutils.unpack_tuple(builder, whole.strides)
    # A number made a pointer: of two rows that LLVM knew to be of one array, it would not vectorise a loop that changes
    # one and reads the other.
    begin = builder.ptrtoint(whole.data, ir.IntType(64))
    for index, stride in zip(place, strides, strict=False):
        begin = builder.add(begin, builder.mul(index, stride))
    found = context.make_array(kind)(context, builder)
    pointer = builder.inttoptr(begin, whole.data.type)
    populate_array(found, pointer, shape, strides[-len(shape) :], whole.itemsize, meminfo=None)
    return found._getvalue()


@intrinsic(prefer_literal=True)
def _load(context: Any, row: Any, n: Any, number: Any) -> Any:
    """``row[n]`` in the alias scope of this number, a literal. Rows in different scopes must not alias; LLVM relies on
    that to vectorise a loop over several of them. A row has one scope in all functions of a module."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.load(_address(context, builder, signature, arguments))
        return _in_alias_scope(builder.module, found, number.literal_value)

    return row.dtype(row, n, number), build


@intrinsic(prefer_literal=True)
def _store(context: Any, row: Any, n: Any, number: Any, value: Any) -> Any:
    """``row[n] = value`` in the alias scope of this number, as `load`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, signature, arguments)
        _in_alias_scope(builder.module, builder.store(arguments[3], pointer), number.literal_value)
        return context.get_dummy_value()

    return types.void(row, n, number, row.dtype), build


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    row = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(row.data, [arguments[1]])


def _in_alias_scope(module: Any, access: Any, number: int) -> Any:
    """The load or store with LLVM's ``alias.scope`` and ``noalias``; of two scopes the higher says that they differ."""
    domain = module.add_metadata(["rows"])
    *lower, own = (module.add_metadata([f"row {k}", domain]) for k in range(number + 1))
    access.set_metadata("alias.scope", module.add_metadata([own]))
    if lower:
        access.set_metadata("noalias", module.add_metadata(lower))
    return access


part_of: Any = cast(Any, _part)  # the context is numba's to give
row_of: Any = cast(Any, _row)
load: Any = cast(Any, _load)
store: Any = cast(Any, _store)
