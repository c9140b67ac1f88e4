"""How a cell's step is laid out: in which rows its values are, and in which stages they are computed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from isornn.cells import Cell
from isornn.cells.graph import Leaf, Node
from isornn.nn.kernels.operations import aten
from isornn.nn.kernels.program import OUTPUT, Program, program_of
from isornn.nn.kernels.saving import saved_rows
from isornn.nn.kernels.schedule import (
    Expression,
    Operation,
    Row,
    Schedule,
    Stage,
    Statement,
    gradient_row,
    rows_of,
)
from isornn.nn.kernels.statements import Wanted, statements
from isornn.nn.layout import Layout


@functools.cache
def schedule_of(cell: Cell) -> Schedule:
    """Lay out a cell's step.

    Raises:
        NotPrintable: see `program_of`.

    >>> from isornn.cells import LSTM
    >>> schedule = schedule_of(LSTM())
    >>> len(schedule.forward), len(schedule.backward)
    (1, 1)
    """
    return _Planner(program_of(cell), Layout.of(cell)).schedule()


class _Planner:
    def __init__(self, program: Program, layout: Layout) -> None:
        self.program, self.layout = program, layout
        self.in_place = _is_run(layout.plain, layout.driven)
        undriven = [gate for gate in program.reads if gate not in layout.driven]
        self.buffered = (*(() if self.in_place else layout.plain), *undriven)
        self.leaf = {leaf: node for node, leaf in program.leaves.items()}
        self.slots = saved_rows(program, layout.driven)

    def schedule(self) -> Schedule:
        slots = frozenset(self.slots.values())
        return Schedule(
            self.program, self.layout, self.in_place, self.buffered, slots, self._forward(), self._backward()
        )

    def _forward(self) -> tuple[Stage, ...]:
        program, rows, numbers = self.program, self._common() | self._pre_activations(), count(1)
        stages = [
            Stage(gate, statements([Wanted(Row("read"), read)], rows, self.slots, numbers))
            for gate, read in program.reads.items()
        ]
        wanted = [Wanted(Row(f"new.{name}"), node) for name, node in program.new.items()]
        # What is saved and was not needed yet; a pre-activation whose row holds it already is left.
        wanted += [Wanted(row, node) for node, row in self.slots.items() if rows.get(node) != row]
        return (*stages, Stage(None, statements(wanted, rows, self.slots, numbers)))

    def _pre_activations(self) -> dict[Node, Expression]:
        places = {"drive": self.layout.driven, "product": self.buffered, "offset": self.layout.undriven}
        found: dict[Node, Expression] = {}
        for node, leaf in self.program.leaves.items():
            if leaf.kind == "gate":
                terms: list[Expression] = [
                    Row(array, gates.index(leaf.name)) for array, gates in places.items() if leaf.name in gates
                ]
                found[node] = functools.reduce(_sum, terms)
        return found

    def _common(self) -> dict[Node, Expression]:
        """States before the step, input and units."""
        arrays = {"state": "old.{}", "unit": "unit.{}", "input": "x"}
        leaves = self.program.leaves.items()
        return {node: Row(arrays[leaf.kind].format(leaf.name)) for node, leaf in leaves if leaf.kind in arrays}

    def _backward(self) -> tuple[Stage, ...]:
        program, cell, numbers = self.program, self.program.cell, count(1)
        results: dict[Node, Expression] = {node: Row(f"new.{name}") for name, node in program.new.items()}
        rows = results | self._common() | self.slots
        arriving = []
        for name in program.new:
            leaf, direct = self.leaf.get(Leaf("gradient", name)), Row(f"direct.{name}")
            if leaf is None:
                continue
            rows[leaf] = direct
            if name != OUTPUT:
                rows[leaf] = total = Row(f"scratch_d_{name}")
                arriving.append(Statement(total, _sum(Row(f"carried.{name}"), direct)))
        gradients = program.update_gradients
        # What reads kept values comes before what is written over them.
        wanted = [Wanted(Row(f"carried.{name}"), gradients.get(Leaf("state", name), 0.0)) for name in cell.states]
        wanted += [Wanted(gradient_row(self.layout, g), gradients.get(Leaf("gate", g), 0.0)) for g in cell.gates]
        wanted += _of_units(gradients)
        if cell.input_enters_pointwise:
            wanted.append(Wanted(Row("dx"), gradients.get(Leaf("input", "x"), 0.0)))
        update = (*arriving, *statements(wanted, rows, {}, numbers))
        if not program.reads:
            return (Stage(None, _over_the_drive(update)),)
        stages = [Stage(None, update)]
        for gate in reversed(list(program.reads)):
            leaf = self.leaf.get(Leaf("read gradient", gate))
            if leaf is not None:
                rows[leaf] = Row("of_read")
            stages.append(Stage(gate, statements(self._of_read(gate), rows, {}, numbers)))
        return tuple(stages)

    def _of_read(self, gate: str) -> list[Wanted]:
        """What a gated read is, and what comes through it to the gradients of what it reads."""
        gradients = self.program.read_gradients[gate]
        wanted = [Wanted(Row(f"reads.{gate}"), self.program.reads[gate])]
        for source, node in gradients.items():
            if source.kind == "gate":
                wanted.append(Wanted(gradient_row(self.layout, source.name), node, adds=True))
            elif source.kind == "state":
                wanted.append(Wanted(Row(f"carried.{source.name}"), node, adds=True))
        wanted += _of_units(gradients)
        entering = gradients.get(Leaf("input", "x"))
        return wanted if entering is None else [*wanted, Wanted(Row("dx"), entering, adds=True)]


def _is_run(part: Sequence[str], whole: Sequence[str]) -> bool:
    """Whether ``whole`` has ``part`` in one piece."""
    return any(part == whole[start : start + len(part)] for start in range(len(whole) + 1))


def _sum(first: Expression, second: Expression) -> Expression:
    return Operation(aten.add.Tensor, (first, second))


def _of_units(gradients: Mapping[Leaf, Node]) -> list[Wanted]:
    """Gradients of expressions in parameters alone, which are sums over steps."""
    units = ((leaf, node) for leaf, node in gradients.items() if leaf.kind == "unit")
    return [Wanted(Row(f"dunit.{leaf.name}"), node, adds=True) for leaf, node in units]


def _over_the_drive(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """The same with ``drive`` for ``du``: at the end where a later statement reads what the row of the drive kept."""
    renamed: dict[Row, Row] = {}
    late = []
    for place, statement in enumerate(statements):
        gradient = statement.target
        if gradient.array == "du":
            over = Row("drive", gradient.part)
            renamed[gradient] = over
            if any(over in rows_of(later.value) for later in statements[place + 1 :]):
                renamed[gradient] = Row(f"scratch_d_{gradient.part}")
                late.append(Statement(over, renamed[gradient]))

    def moved(value: Any) -> Any:
        if isinstance(value, Operation):
            return Operation(value.function, tuple(map(moved, value.args)))
        return renamed.get(value, value) if isinstance(value, Row) else value

    return (*(Statement(moved(one.target), moved(one.value), one.adds) for one in statements), *late)
