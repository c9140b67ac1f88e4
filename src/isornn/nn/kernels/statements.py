"""Expressions in a program's nodes as statements on rows: what is used more than once is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from isornn.cells.graph import Node
from isornn.nn.kernels.operations import COSTLY, ONE, PREDICATES, ZERO
from isornn.nn.kernels.schedule import Expression, Operation, Row, Statement


class Wanted(NamedTuple):
    """``target = value``, or ``target += value``, of a program's node or a number."""

    target: Row
    value: Node | float
    adds: bool = False


def statements(
    wanted: Sequence[Wanted], rows: dict[Node, Expression], slots: Mapping[Node, Row], numbers: Iterator[int]
) -> tuple[Statement, ...]:
    """A stage that computes what is wanted, in this order.

    Args:
        wanted: values and the rows that they go to.
        rows: by node, the row where it is, or the expression of rows that it comes from. What the stage computes into
            rows that later stages may read is added.
        slots: by node, the row that it is to be kept in once it is computed.
        numbers: of the scratch rows, in which are values that no other stage reads.
    """
    writer = _Writer(wanted, rows, slots, numbers)
    for one in wanted:
        writer.write(one)
    return tuple(writer.done)


class _Writer:
    """Writes one stage."""

    def __init__(
        self, wanted: Sequence[Wanted], rows: dict[Node, Expression], slots: Mapping[Node, Row], numbers: Iterator[int]
    ) -> None:
        self.rows, self.slots, self.numbers = rows, slots, numbers
        self.done: list[Statement] = []
        self.computed: dict[Node, Row] = {}
        self.targets = {one.value: one.target for one in reversed(wanted) if _is_computed(one.value) and not one.adds}
        self.uses = self._counted(wanted)

    def write(self, one: Wanted) -> None:
        if not _is_computed(one.value):
            if not one.adds:
                self.done.append(Statement(one.target, 0.0))
            return
        value = self._expression(one.value)
        if value != one.target:
            self.done.append(Statement(one.target, value, one.adds))
        if one.target == self.slots.get(one.value):
            self.rows[one.value] = one.target

    def _counted(self, wanted: Sequence[Wanted]) -> dict[Node, int]:
        """How often each node is used that has yet to be computed."""
        uses: dict[Node, int] = {}
        fresh = [one.value for one in wanted if _is_computed(one.value)]
        while fresh:
            node = fresh.pop()
            uses[node] = uses.get(node, 0) + 1
            if uses[node] == 1 and node not in self.rows:
                fresh += node.all_input_nodes
        return uses

    def _expression(self, node: Any) -> Any:
        """The row of a node, which is computed if it is to have one, else its expression."""
        if not isinstance(node, Node):
            return node
        known = self.computed.get(node) or self.rows.get(node)
        if known is not None:
            return known
        row = self.slots.get(node) or self.targets.get(node)
        if row is None and self.uses.get(node, 0) > 1 and self._worth_a_row(node):
            row = Row(f"scratch_{next(self.numbers)}")
        if row is None:
            return self._inlined(node)
        self.done.append(Statement(row, self._inlined(node)))
        self.computed[node] = row
        if row == self.slots.get(node) or row.array.startswith("new."):
            self.rows[node] = row
        return row

    def _worth_a_row(self, node: Node) -> bool:
        if node.target in PREDICATES:
            return False
        return node.target in COSTLY or any(n not in self.rows and n not in self.computed for n in node.all_input_nodes)

    def _inlined(self, node: Node) -> Expression:
        if node.target in (ONE, ZERO):
            return 1.0 if node.target is ONE else 0.0
        return Operation(node.target, tuple(self._expression(arg) for arg in node.args))


def _is_computed(value: Node | float) -> TypeGuard[Node]:
    """Whether it is more than the number 0."""
    return isinstance(value, Node) and value.target is not ZERO
