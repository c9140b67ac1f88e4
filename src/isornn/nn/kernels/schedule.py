"""Where the values of one step live, and in which order they are computed: a cell's program as statements on rows.

A row is what one sequence has of one quantity at one step, (N,) numbers. Every statement writes one row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from isornn.nn.kernels.program import Program
from isornn.nn.layout import Layout


@dataclass(frozen=True)
class Row:
    """One row of an array: ``drive[k]`` is that of the k-th driven gate; arrays with one row have part ``None``."""

    array: str
    part: int | None = None

    @property
    def name(self) -> str:
        """The row's variable in printed source."""
        name = f"row_{variable(self.array)}"  # first, so that no name of a state makes that of another's row
        return name if self.part is None else f"{name}_{self.part}"


def variable(array: str) -> str:
    """The name of an array in printed source."""
    return array.replace(".", "_")


@dataclass(frozen=True)
class Operation:
    """``function(*args)``; arguments are rows, operations, numbers."""

    function: Any
    args: tuple[Any, ...]


Expression = Row | Operation | float


@dataclass(frozen=True)
class Statement:
    """``target = value``, or ``target += value``."""

    target: Row
    value: Expression
    adds: bool = False


@dataclass(frozen=True)
class Product:
    """A matrix product of the recurrence, for several gates in one.

    Args:
        gates: whose matrices.
        target: the first of as many rows: where the product goes, or backwards the gradients that are multiplied.
    """

    gates: tuple[str, ...]
    target: Row


@dataclass(frozen=True)
class Stage:
    """A matrix product, then what is pointwise until the next.

    Args:
        gate: whose gated read the statements compute (forwards) or differentiate (backwards); ``None``: the update.
        statements: in order.
    """

    gate: str | None
    statements: tuple[Statement, ...]

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """What is read or written."""
        rows = {row for statement in self.statements for row in (*rows_of(statement.value), statement.target)}
        return tuple(sorted(rows, key=lambda row: row.name))

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that its function takes, in the order of the arguments; a state's old values need two."""
        found: set[str] = set()
        for row in self.rows:
            kind, _, name = row.array.partition(".")
            if kind == "old":
                found |= {f"initial.{name}", f"new.{name}"}
            elif not kind.startswith("scratch"):
                found.add(row.array)
        return tuple(sorted(found))


@dataclass(frozen=True)
class Schedule:
    """A cell's step, laid out.

    Arrays, each (T, B, ., N) unless said otherwise; *results* are the states and, where it is no state, the output:

    - ``drive``: by driven gate, the pre-activation but for the recurrent product; then what is saved of it; at last,
      where no gate reads a gated state, its gradient.
    - ``product``: (B, ., N), recurrent products that are not added to the drive in place, by gate of ``buffered``.
    - ``offset``: (J, N), biases of the undriven gates.
    - ``saved``: further values for the backward pass.
    - ``old.s``, ``new.r``: states before, results after; ``x``, the input; ``unit.i``: (N,), per-unit numbers.
    - ``read``: (B, N), what a gated matrix multiplies; ``reads.k``: the same, of all steps, in the backward pass.
    - ``du``: gradients of driven pre-activations, where a gate reads a gated state; ``du_alone``, of undriven ones;
      ``dx``.
    - ``carried.s``: (B, N), gradient of a state that comes from later steps; ``direct.r``: of a result itself.
    - ``dunit.i``: (B, N), sums over steps; ``of_read``: (B, N).

    Args:
        program: what is computed.
        layout: the cell's.
        in_place: whether the plain product is added to the drive itself.
        buffered: gates whose products go to ``product``.
        slots: where the values are that the backward pass takes from the forward pass.
        forward, backward: stages in order; backwards the update comes first.
    """

    program: Program
    layout: Layout
    in_place: bool
    buffered: tuple[str, ...]
    slots: frozenset[Row]
    forward: tuple[Stage, ...]
    backward: tuple[Stage, ...]

    @property
    def saved(self) -> int:
        """How many rows ``saved`` has."""
        return sum(row.array == "saved" for row in self.slots)

    @property
    def keeps_drive(self) -> bool:
        """Whether the backward pass takes anything from the rows of the drive."""
        return any(row.array == "drive" for row in self.slots)

    @property
    def gradients(self) -> str:
        """The array with the gradients of driven pre-activations."""
        return "du" if self.gated else "drive"

    @property
    def overwrites(self) -> bool:
        """Whether these gradients are written over what the forward pass kept."""
        return self.keeps_drive and self.gradients == "drive"

    @property
    def gated(self) -> tuple[str, ...]:
        """Gates whose matrix reads a gated state."""
        return tuple(self.program.reads)

    @functools.cached_property
    def forward_products(self) -> tuple[Product, ...]:
        """What is multiplied at every step: the first state by the plain gates' matrices, then each gated read."""
        found = []
        if self.layout.plain:
            place = self.layout.driven.index(self.layout.plain[0]) if self.in_place else 0
            found.append(Product(self.layout.plain, Row("drive" if self.in_place else "product", place)))
        for gate in self.gated:
            driven = gate in self.layout.driven
            place = (self.layout.driven if driven else self.buffered).index(gate)
            found.append(Product((gate,), Row("drive" if driven else "product", place)))
        return tuple(found)

    @functools.cached_property
    def backward_products(self) -> tuple[Product, ...]:
        """Backwards: runs of gates that are neighbours both among the matrices and among the gradients."""
        runs: list[Product] = []
        for gate in self.layout.stacks["weight_hh"]:
            row, last = self._gradient_row(gate), runs[-1] if runs else None
            if last is not None and not {gate, last.gates[-1]} & set(self.gated):
                if row == Row(last.target.array, (last.target.part or 0) + len(last.gates)):
                    runs[-1] = Product((*last.gates, gate), last.target)
                    continue
            runs.append(Product((gate,), row))
        return tuple(runs)

    @functools.cached_property
    def run_arrays(self) -> Mapping[str, tuple[str, ...]]:
        """By direction, the arrays that its function of all steps takes: those of its stages, and the matrices.

        Matrices are (inputs, outputs) of their products: forwards W_k^T, backwards W_k.
        """
        first = self.program.cell.states[0]
        found = {}
        for direction, stages, products in (
            ("forward", self.forward, self.forward_products),
            ("backward", self.backward, self.backward_products),
        ):
            arrays = {array for stage in stages for array in stage.arrays} | {f"initial.{first}", f"new.{first}"}
            arrays |= {product.target.array for product in products}
            arrays |= {f"matrix.{product.gates[0]}" for product in products}
            if products and direction == "backward":
                arrays.add(f"carried.{first}")
            if self.gated and direction == "backward":
                arrays.add("of_read")
            found[direction] = tuple(sorted(arrays))
        return found

    def _gradient_row(self, gate: str) -> Row:
        row = gradient_row(self.layout, gate)
        return replace(row, array=self.gradients) if row.array == "du" else row


def gradient_row(layout: Layout, gate: str) -> Row:
    """Where the gradient of a pre-activation goes."""
    if gate in layout.driven:
        return Row("du", layout.driven.index(gate))
    return Row("du_alone", layout.undriven.index(gate))


def rows_of(value: Any) -> set[Row]:
    """The rows that an expression reads."""
    if isinstance(value, Row):
        return {value}
    if isinstance(value, Operation):
        return set().union(*map(rows_of, value.args))
    return set()


def functions_of(value: Any) -> set[Any]:
    """The functions that an expression calls."""
    return {value.function}.union(*map(functions_of, value.args)) if isinstance(value, Operation) else set()
