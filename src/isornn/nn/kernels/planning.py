"""How a cell's step is laid out: which values are saved, where the rest lives, and in which stages all is computed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from isornn.cells import Cell
from isornn.cells.graph import Leaf, Node, needed
from isornn.nn.kernels.program import COSTLY, ONE, OUTPUT, PREDICATES, VECTORISED, ZERO, Program, aten, program_of
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
from isornn.nn.layout import Layout

Wanted = tuple[Any, Row, bool]


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
        places = [layout.driven.index(gate) for gate in layout.plain if gate in layout.driven]
        consecutive = places == list(range(places[0], places[0] + len(places))) if places else True
        self.in_place = consecutive and len(places) == len(layout.plain)
        undriven = [gate for gate in program.reads if gate not in layout.driven]
        self.buffered = (*(() if self.in_place else layout.plain), *undriven)
        self.leaf = {leaf: node for node, leaf in program.leaves.items()}
        self.kept = self._kept_values()

    def schedule(self) -> Schedule:
        slots = self._slots()
        return Schedule(
            self.program,
            self.layout,
            self.in_place,
            self.buffered,
            frozenset(slots.values()),
            self._forward(slots),
            self._backward(slots),
        )

    # -- what is saved ------------------------------------------------------------------------------------------------

    def _kept_values(self) -> list[Node]:
        """What the backward pass cannot compute cheaply from states, results, input and units, in order."""
        program, kept, seen = self.program, set(), set()
        leaves, results = program.leaves, set(program.new.values())
        gradients = [*program.update_gradients.values()]
        gradients += [node for found in program.read_gradients.values() for node in found.values()]
        fresh = [*gradients, *program.reads.values()]
        while fresh:
            node = fresh.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in leaves:
                if leaves[node].kind == "gate":
                    kept.add(node)
            elif node in results and node not in gradients:
                continue
            elif node.target in COSTLY and not self._of_gradients(node) and self._rests_on_a_gate(node):
                kept.add(node)
            else:
                fresh += node.all_input_nodes
        return [node for node in self.order if node in kept]

    @functools.cached_property
    def order(self) -> list[Node]:
        return list(next(iter(self.program.leaves)).graph.nodes)

    @functools.cached_property
    def _gradient_nodes(self) -> set[Node]:
        found: set[Node] = set()
        for node in self.order:
            leaf = self.program.leaves.get(node)
            if (leaf is not None and "gradient" in leaf.kind) or any(n in found for n in node.all_input_nodes):
                found.add(node)
        return found

    def _of_gradients(self, node: Node) -> bool:
        return node in self._gradient_nodes

    def _rests_on_a_gate(self, node: Node) -> bool:
        """Whether it takes a pre-activation to compute it, results being known."""
        results = set(self.program.new.values())
        fresh, seen = list(node.all_input_nodes), set()
        while fresh:
            one = fresh.pop()
            if one in results or one in seen:
                continue
            seen.add(one)
            leaf = self.program.leaves.get(one)
            if leaf is not None and leaf.kind == "gate":
                return True
            fresh += one.all_input_nodes
        return False

    def _slots(self) -> dict[Node, Row]:
        """Where each saved value goes: over a pre-activation that is used for nothing else, or to a row of its own."""
        driven = self.layout.driven
        rows: dict[Node, Row] = {}
        for node in self.kept:
            leaf = self.program.leaves.get(node)
            if leaf is not None and leaf.name in driven:
                rows[node] = Row("drive", driven.index(leaf.name))
        free = [row for place in range(len(driven)) if (row := Row("drive", place)) not in rows.values()]
        for node in self.kept:
            if node not in rows:
                slot = next((row for row in free if self._ends_in(row, node)), None)
                if slot is not None:
                    rows[node] = slot
                    free.remove(slot)
        others = [node for node in self.kept if node not in rows and not self._recomputed(node, rows)]
        rows |= {node: Row("saved", place) for place, node in enumerate(others)}
        return rows

    def _recomputed(self, value: Node, rows: Mapping[Node, Row]) -> bool:
        """Whether the backward pass computes it anew from what the rows of the drive keep.

        Where a sequence is larger than the caches, a row that is written and read again costs more than a function that
        is vectorised: minLSTM's forward loop, 32 sequences of 400 steps of 256 units, takes 34 ms with and 14 without.
        """
        if value.target not in VECTORISED:
            return False
        fresh, results = list(value.all_input_nodes), set(self.program.new.values())
        while fresh:
            node = fresh.pop()
            leaf = self.program.leaves.get(node)
            if node in rows or node in results:
                continue
            if (leaf is not None and leaf.kind == "gate") or (node.target in COSTLY - VECTORISED):
                return False
            fresh += node.all_input_nodes
        return True

    def _ends_in(self, slot: Row, value: Node) -> bool:
        """Whether the forward pass uses the pre-activation in this row of the drive on its way to ``value`` only.

        It also computes what is kept for the backward pass: of ``erf u`` that is ``exp(-u^2)``.
        """
        node = self.leaf.get(Leaf("gate", self.layout.driven[slot.part or 0]))
        while node is not None and node is not value:
            users = [user for user in node.users if user in self._forward_nodes]
            node = users[0] if len(users) == 1 else None
        return node is value

    @functools.cached_property
    def _forward_nodes(self) -> set[Node]:
        return needed([*self.program.new.values(), *self.program.reads.values(), *self.kept])

    # -- stages -------------------------------------------------------------------------------------------------------

    def _forward(self, slots: Mapping[Node, Row]) -> tuple[Stage, ...]:
        rows = self._common() | self._pre_activations()
        writer = _Writer(rows, slots)
        stages = []
        for gate, read in self.program.reads.items():
            stages.append(Stage(gate, writer.statements([(read, Row("read"), False)])))
        wanted = [(node, Row(f"new.{name}"), False) for name, node in self.program.new.items()]
        # What is saved and was not needed yet; a pre-activation whose row holds it already is left.
        wanted += [(node, row, False) for node, row in slots.items() if rows.get(node) != row]
        stages.append(Stage(None, writer.statements(wanted)))
        return tuple(stages)

    def _pre_activations(self) -> dict[Node, Expression]:
        found: dict[Node, Expression] = {}
        for node, leaf in self.program.leaves.items():
            if leaf.kind == "gate":
                gate, terms = leaf.name, list[Expression]()
                if gate in self.layout.driven:
                    terms.append(Row("drive", self.layout.driven.index(gate)))
                if gate in self.buffered:
                    terms.append(Row("product", self.buffered.index(gate)))
                if gate in self.layout.undriven:
                    terms.append(Row("offset", self.layout.undriven.index(gate)))
                found[node] = functools.reduce(lambda a, b: Operation(aten.add.Tensor, (a, b)), terms)
        return found

    def _common(self) -> dict[Node, Expression]:
        """States before the step, input and units."""
        rows = {"state": "old.", "unit": "unit."}
        found: dict[Node, Expression] = {}
        for node, leaf in self.program.leaves.items():
            if leaf.kind in rows:
                found[node] = Row(rows[leaf.kind] + leaf.name)
            elif leaf.kind == "input":
                found[node] = Row("x")
        return found

    def _backward(self, slots: Mapping[Node, Row]) -> tuple[Stage, ...]:
        program, cell = self.program, self.program.cell
        rows: dict[Node, Expression] = self._common() | dict(slots)
        for name, node in program.new.items():
            if node not in rows:
                rows[node] = Row(f"new.{name}")
        arriving = []
        for name in program.new:
            direct = Row(f"direct.{name}")
            leaf = self.leaf.get(Leaf("gradient", name))
            if leaf is None:
                continue
            if name == OUTPUT:
                rows[leaf] = direct
            else:
                total = Row(f"scratch_d_{name}")
                arriving.append(Statement(total, Operation(aten.add.Tensor, (Row(f"carried.{name}"), direct))))
                rows[leaf] = total
        writer = _Writer(rows, {})
        gradients = program.update_gradients
        # What reads kept values comes before what is written over them.
        wanted = [(gradients.get(Leaf("state", name), 0.0), Row(f"carried.{name}"), False) for name in cell.states]
        wanted += [(gradients.get(Leaf("gate", g), 0.0), gradient_row(self.layout, g), False) for g in cell.gates]
        wanted += self._other_gradients(gradients)
        statements = (*arriving, *writer.statements(wanted))
        if not program.reads:
            return (Stage(None, _over_the_drive(statements)),)
        stages = [Stage(None, statements)]
        for gate in reversed(list(program.reads)):
            leaf = self.leaf.get(Leaf("read gradient", gate))
            if leaf is not None:
                writer.rows[leaf] = Row("of_read")
            gradients = program.read_gradients[gate]
            wanted = [(program.reads[gate], Row(f"reads.{gate}"), False)]
            for source, node in gradients.items():
                if source.kind == "gate":
                    wanted.append((node, gradient_row(self.layout, source.name), True))
                elif source.kind == "state":
                    wanted.append((node, Row(f"carried.{source.name}"), True))
            wanted += self._other_gradients(gradients, always=False)
            stages.append(Stage(gate, writer.statements(wanted)))
        return tuple(stages)

    def _other_gradients(self, gradients: Mapping[Leaf, Node], always: bool = True) -> list[Wanted]:
        found: list[Wanted] = []
        for leaf, node in gradients.items():
            if leaf.kind == "unit":
                found.append((node, Row(f"dunit.{leaf.name}"), True))
        if self.program.cell.input_enters_pointwise:
            entering = gradients.get(Leaf("input", "x"))
            if entering is not None or always:
                found.append((entering or 0.0, Row("dx"), not always))
        return found


class _Writer:
    """Turns wanted values into statements; what one stage has computed the next may use, scratch rows excepted.

    Args:
        rows: by node, the row where it is, or the expression of rows that it comes from.
        slots: by node, the row that it is to be kept in once it is computed.
    """

    def __init__(self, rows: dict[Node, Expression], slots: Mapping[Node, Row]) -> None:
        self.rows, self.slots = rows, slots
        self._scratch = 0
        self._start([])

    def _start(self, wanted: Sequence[Wanted]) -> None:
        self._done: list[Statement] = []
        self._local: dict[Node, Row] = {}
        self._targets = {node: row for node, row, adds in reversed(wanted) if _is_computed(node) and not adds}
        self._uses = self._counted(wanted)

    def statements(self, wanted: Sequence[Wanted]) -> tuple[Statement, ...]:
        """Statements that compute each ``(value, row, whether to add)``, in this order."""
        self._start(wanted)
        for node, row, adds in wanted:
            if not _is_computed(node):
                if not adds:
                    self._done.append(Statement(row, 0.0))
                continue
            value = self._expression(node)
            if value != row:
                self._done.append(Statement(row, value, adds))
            if row == self.slots.get(node):
                self.rows[node] = row
        return tuple(self._done)

    def _counted(self, wanted: Sequence[Wanted]) -> dict[Node, int]:
        """How often each node is used that has yet to be computed."""
        uses: dict[Node, int] = {}
        fresh = [node for node, _, _ in wanted if _is_computed(node)]
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
        known = self._local.get(node) or self.rows.get(node)
        if known is not None:
            return known
        row = self.slots.get(node) or self._targets.get(node)
        if row is None and self._uses.get(node, 0) > 1 and self._worth_a_row(node):
            row = self._fresh()
        if row is None:
            return self._inlined(node)
        self._done.append(Statement(row, self._inlined(node)))
        self._local[node] = row
        if row == self.slots.get(node) or row.array.startswith("new."):
            self.rows[node] = row
        return row

    def _worth_a_row(self, node: Node) -> bool:
        if node.target in PREDICATES:
            return False
        return node.target in COSTLY or any(n not in self.rows and n not in self._local for n in node.all_input_nodes)

    def _inlined(self, node: Node) -> Expression:
        if node.target in (ONE, ZERO):
            return 1.0 if node.target is ONE else 0.0
        return Operation(node.target, tuple(self._expression(arg) for arg in node.args))

    def _fresh(self) -> Row:
        self._scratch += 1
        return Row(f"scratch_{self._scratch}")


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


def _is_computed(value: Node | float) -> bool:
    return isinstance(value, Node) and value.target is not ZERO
