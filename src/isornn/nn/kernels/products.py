"""A step's matrix product in compiled loops: the library's takes as long to call and to share out as to compute.

A matrix that multiplies at every step is packed once: by panels of two vectors' columns, each of them contiguous. A
tile, a few rows times a panel, is summed in vector registers. With it a whole pass over a sequence is one compiled
loop, and threads share the sequences of a batch without waiting for each other at every step.

On one core of an AMD EPYC (AVX-512) the product of (16, 256) and (256, 1024), float32, takes 90 us where torch.addmm
takes 140 us and oneDNN's linear operation, with a weight packed likewise, 120 us; (8, 32) and (32, 128): 1.5, 2.6 and
16 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from torch import Tensor

from isornn.nn.kernels.arithmetic import Array, jit
from isornn.nn.kernels.rows import part_of, row_of

# As numba sees the processor, which is also what it keeps machine code by.
_WIDE = "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2]
_BYTES = 64 if _WIDE else 32  # of a vector; a panel is two of them wide
# Rows of a tile: their sums, two vectors each, must all be in registers; more sizes would take longer to compile.
SIZES = (8, 4, 2, 1) if _WIDE else (6, 3, 1)
_INNER = 256  # of a panel's rows at a time, which then stay in the first cache for all tiles


def packed(matrix: Tensor) -> Tensor:
    """(K, M) as panels (ceil(M / width), K, width), zeros beyond the last column.

    >>> import torch
    >>> panels = packed(torch.ones(3, 5))
    >>> panels.shape[:2], float(panels.sum())
    (torch.Size([1, 3]), 15.0)
    """
    width = 2 * _BYTES // matrix.element_size()
    whole, rest = divmod(matrix.shape[1], width)
    panels = matrix.new_empty(whole + bool(rest), len(matrix), width)
    panels[:whole] = matrix[:, : whole * width].unflatten(1, (whole, width)).transpose(0, 1)
    if rest:
        panels[whole, :, :rest] = matrix[:, whole * width :]
        panels[whole, :, rest:] = 0.0
    return panels


@jit
def multiply(total: Array, rows: Array, panels: Array, start: int, stop: int) -> None:
    """``total += rows matrix`` for rows start to stop; each comes out the same however they are divided."""
    inner, width = panels.shape[1:]
    sums = np.empty((SIZES[0], width), total.dtype)
    for begin in range(0, inner, _INNER):
        end = min(begin + _INNER, inner)
        for panel in range(len(panels)):
            left = panel * width
            right = min(left + width, total.shape[1])
            first = start
            for size in SIZES:
                while stop - first >= size:
                    target = part_of(total, (first, left), (size, right - left))
                    several = part_of(rows, (first, begin), (size, end - begin))
                    _tile(several, part_of(panels, (panel, begin), (end - begin, width)), target, sums)
                    for b in range(size):
                        _add(row_of(target, (b,)), row_of(sums, (b,)))
                    first += size


@jit
def _add(total: Array, row: Array) -> None:
    for n in range(len(total)):
        total[n] += row[n]


@intrinsic
def _tile_of(context: Any, rows: Any, panel: Any, target: Any, sums: Any) -> Any:
    """``sums[b] = sum_k rows[b, k] panel[k]`` for one of `SIZES` rows; meanwhile the target's rows are fetched."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, panel, target, sums = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args, arguments, strict=True)
        )
        tile = _Tile(context, builder, signature.args[0].dtype)
        count, inner = (cgutils.unpack_tuple(builder, array.shape)[0] for array in (rows, panel))
        builder.function.attributes.add("noinline")  # `multiply`, of which each loop would compile copies, for seconds
        ends = builder.append_basic_block("summed")
        switch = builder.switch(count, ends)
        for several in SIZES:
            with builder.goto_block(block := builder.append_basic_block(f"of_{several}")):
                tile.fetch(tile.rows(target, several))
                found = tile.summed(tile.rows(rows, several), tile.address(panel), inner)
                tile.store(found, tile.address(sums))
                builder.branch(ends)
            switch.add_case(ir.Constant(count.type, several), block)
        builder.position_at_end(ends)
        return context.get_dummy_value()

    return types.void(rows, panel, target, sums), build


_tile: Callable[..., None] = cast(Any, _tile_of)  # the context is numba's to give


class _Tile:
    """Writes a tile's instructions; LLVM's own choice of vectors keeps no sums in registers."""

    def __init__(self, context: Any, builder: Any, number: Any) -> None:
        self.builder, self.size = builder, number.bitwidth // 8
        self.integer, self.real = ir.IntType(64), context.get_value_type(number)
        self.vector = ir.VectorType(self.real, _BYTES // self.size)

    def address(self, array: Any) -> Any:
        """Where an array begins."""
        return self.builder.ptrtoint(array.data, self.integer)

    def rows(self, array: Any, count: int) -> list[Any]:
        """Where its rows begin."""
        stride = cgutils.unpack_tuple(self.builder, array.strides)[0]
        return [self._after(self.address(array), stride, b) for b in range(count)]

    def fetch(self, rows: list[Any]) -> None:
        """Ask for a panel's width of each row: they lie too far from each other for the processor to see it coming."""
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0i8")
        of_data, to_write, soon = number(1), number(1), number(3)
        for row in rows:
            for line in range(0, 2 * _BYTES, 64):
                place = self.builder.inttoptr(self._shifted(row, line), pointer)
                self.builder.call(fetch, [place, to_write, soon, of_data])

    def summed(self, rows: list[Any], panel: Any, inner: Any) -> list[Any]:
        """A loop over k; each row's sum in two vectors."""
        builder = self.builder
        before, loop, done = builder.block, *(builder.append_basic_block(name) for name in ("loop", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k, sums = builder.phi(self.integer), [builder.phi(self.vector) for _ in range(2 * len(rows))]
        line = self._after(panel, k, 2 * _BYTES)
        right = [self._load(self._shifted(line, part * _BYTES), self.vector) for part in range(2)]
        found = []
        for b, row in enumerate(rows):
            left = self._spread(self._load(self._after(row, k, self.size), self.real))
            for part in range(2):
                product = builder.fmul(left, right[part], flags=("contract",))
                found.append(builder.fadd(product, sums[2 * b + part], flags=("contract",)))
        following = builder.add(k, self.integer(1))
        starts = [self.integer(0), *[ir.Constant(self.vector, None)] * len(sums)]
        for phi, start, later in zip([k, *sums], starts, [following, *found], strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, inner), loop, done)
        builder.position_at_end(done)
        return found

    def store(self, values: list[Any], address: Any) -> None:
        """Vectors one after the other."""
        for place, value in enumerate(values):
            at = self.builder.inttoptr(self._shifted(address, place * _BYTES), self.vector.as_pointer())
            self.builder.store(value, at, align=self.size)

    def _after(self, address: Any, count: Any, size: int) -> Any:
        return self.builder.add(address, self.builder.mul(count, self.integer(size)))

    def _shifted(self, address: Any, by: int) -> Any:
        return self.builder.add(address, self.integer(by))

    def _load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=self.size)

    def _spread(self, number: Any) -> Any:
        """A vector of one number."""
        place = ir.IntType(32)
        none, first = ir.Constant(self.vector, ir.Undefined), ir.Constant(ir.VectorType(place, self.vector.count), None)
        return self.builder.shuffle_vector(self.builder.insert_element(none, number, place(0)), none, first)
