"""``isornn cells``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.show import print_table

if TYPE_CHECKING:
    from isornn.cells import Cell, ParameterLaw
    from isornn.cells.graph import CellGraph, Leaf

_COLUMNS = (
    "cell",
    "pre-activation: reads",
    "states, * carried",
    "one step",
    "typing, engine, kernel",
    "options, default first",
)
_SIGNS = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}


def cells(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="One cell in detail; your own by package.module:Class. With options, as scrn(alpha=0.5).",
        ),
    ] = None,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Print the generated CPU kernel of NAME as source, or why there is none.")
    ] = False,
) -> None:
    """The cells: what each pre-activation reads, the states, the equations of a step, the options."""
    from isornn.cells import SpecError

    if name is None and kernel:
        raise SpecError("--kernel", True, "it is for one cell, as isornn cells lstm --kernel")
    if name is None:
        _list()
    elif kernel:
        _print_kernel(name)
    else:
        _print(name)


def _list() -> None:
    from isornn.cells import CELLS, FURTHER_CELLS

    rows = []
    for name, kind in (CELLS | FURTHER_CELLS).items():
        cell = kind()
        reads = "\n".join(f"{gate}: {_reads(cell, gate)}" for gate in cell.gates)
        typing, engine = _typing_and_engine(cell)
        kind_of_cell = f"{typing} typed\n{engine}\n{_kernel(cell).partition(':')[0]}"
        rows.append((name, reads, _states(cell), "\n".join(cell.equations), kind_of_cell, _options(cell)))
    print_table("u = W state + U input + V previous input + bias", _COLUMNS, rows, lines=True)


def overview() -> str:
    """The catalogue as text: states, typing, engine and kernel; what the gates read; the equations."""
    from isornn.cells import CELLS, FURTHER_CELLS

    lines = []
    for name, kind in (CELLS | FURTHER_CELLS).items():
        cell = kind()
        typing, engine = _typing_and_engine(cell)
        lines.append(f"{name}: states {_states(cell)}; {typing} typed; {engine}; {_kernel(cell).partition(':')[0]}")
        lines.append("    " + "; ".join(f"{gate}: {_reads(cell, gate)}" for gate in cell.gates))
        lines.append("    " + "; ".join(cell.equations))
    return "\n".join(lines)


def _states(cell: Cell) -> str:
    """The states; those whose new value reads the old one unit by unit have a star."""
    from isornn.cells import typing_of

    carried = typing_of(cell).carried
    return ", ".join(f"{state}*" if state in carried else state for state in cell.states)


def _typing_and_engine(cell: Cell) -> tuple[str, str]:
    from isornn.cells import typing_of

    return typing_of(cell).verdict, _engine(cell).partition(",")[0]


def _print(name: str) -> None:
    from isornn.cells import full_name, typing_of
    from isornn.cells.trace import graph_of
    from isornn.cli.own_code import typed_cell

    cell = typed_cell(name)
    graph = graph_of(cell)
    rows = [
        ("states", ", ".join(cell.states)),
        *(("equation", equation) for equation in cell.equations),
        *((f"gate {gate} reads", ", ".join(_matrices(graph, gate))) for gate in cell.gates),
        *((f"parameter {own}, one per unit", _start(value)) for own, value in cell.parameters.items()),
        *((f"new {state}", text) for state, text in _spelled(graph, graph.update).items()),
        *(("output, of the new states", text) for text in _spelled(graph, {"": graph.output}).values()),
        *((f"{method} is not traced", reason) for method, reason in graph.untraced.items()),
        ("typing", str(typing_of(cell))),
        ("engine of the theory", _engine(cell)),
        ("layers run", _kernel(cell)),
        *(("option, default first", line) for line in _options(cell).splitlines()),
    ]
    print_table(full_name(cell), (type(cell).__name__, "sigma is the logistic function"), rows)


def _kernel(cell: Cell) -> str:
    """Whether layers run the cell in generated code, or why not."""
    from isornn.nn.kernels import why_no_kernel

    reason = why_no_kernel(cell)
    return "generated kernel" if reason is None else f"no kernel: {reason}"


def _print_kernel(name: str) -> None:
    """The generated source as it is, without a table."""
    from isornn.cli.own_code import typed_cell
    from isornn.nn.kernels import why_no_kernel
    from isornn.nn.kernels.numba_source import source_of
    from isornn.nn.kernels.planning import schedule_of

    cell = typed_cell(name)
    reason = why_no_kernel(cell)
    print(source_of(schedule_of(cell)).rstrip() if reason is None else f"no kernel: {reason}")


def _start(value: float | ParameterLaw) -> str:
    return f"starts at {value:g}" if isinstance(value, (int, float)) else "starts differently in every unit"


def _reads(cell: Cell, gate: str) -> str:
    from isornn.cells.trace import graph_of

    gated = gate in graph_of(cell).gated_reads
    reads = cell.gates[gate]
    pointwise = reads.input and cell.input_enters_pointwise
    parts = {
        "gated state" if gated else "state": reads.state,
        "input (also enters pointwise)" if pointwise else "input": reads.input,
        "previous input": reads.previous_input,
    }
    return ", ".join(part for part, read in parts.items() if read)


def _matrices(graph: CellGraph, gate: str) -> Iterator[str]:
    """The products that the pre-activation adds."""
    reads = graph.cell.gates[gate]
    if reads.state:
        what = _spelled(graph, graph.reads).get(gate, "what read returns")
        yield f"W {what}" if what.isidentifier() else f"W ({what})"
    if reads.input:
        yield "U x_t"
    if reads.previous_input:
        yield "V x_(t-1)"
    yield "b"


def _spelled(graph: CellGraph, wanted: Mapping[str, Any]) -> dict[str, str]:
    """Expressions of the graph as text; those that were not traced are left out."""
    traced = {name: value for name, value in wanted.items() if value is not None}
    spell = graph.interpret(_leaf, _operation, traced.values())
    return {name: _term(spell(value)).text for name, value in traced.items()}


@dataclass(frozen=True)
class _Term:
    """An expression, and how strongly its outermost operation binds: 1 a sum, 2 a product, 3 anything in brackets."""

    text: str
    binding: int = 3

    def within(self, binding: int) -> str:
        return self.text if self.binding >= binding else f"({self.text})"


def _leaf(leaf: Leaf) -> _Term:
    named = {"gate": f"u_{leaf.name}", "new state": f"{leaf.name}'", "input": "x_t"}
    return _Term(named.get(leaf.kind, leaf.name))


def _operation(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Term:
    terms = [_term(value) for value in args]
    if name in _SIGNS and len(terms) == 2 and not kwargs:
        sign, binding = _SIGNS[name]
        left, right = terms[0].within(binding), terms[1].within(binding + (name in ("sub", "div")))
        return _Term(f"{left} {sign} {right}" if binding == 1 else f"{left}{sign}{right}", binding)
    if name == "neg":
        return _Term(f"-{terms[0].within(2)}", 1)
    given = [*(term.text for term in terms), *(f"{key}={_term(value).text}" for key, value in kwargs.items())]
    return _Term(f"{'sigma' if name == 'sigmoid' else name}({', '.join(given)})")


def _term(value: Any) -> _Term:
    if isinstance(value, _Term):
        return value
    return _Term(f"{value:g}" if isinstance(value, float) else str(value))


def _engine(cell: Cell) -> str:
    """Which engine `isornn.analyze` takes, and why not the other."""
    from isornn.theory.quadrature.affine import affine_refusal

    if not cell.pointwise:
        return "none: the update acts on several units together"
    reason = affine_refusal(cell)
    return "quadrature" if reason is None else f"population, as {reason}"


def _options(cell: Cell) -> str:
    from isornn.cells.activations import GATE_FUNCTIONS, SHAPED_TRANSITIONS, TRANSITIONS

    named = {"gate": GATE_FUNCTIONS, "nonlinearity": TRANSITIONS | SHAPED_TRANSITIONS}
    allowed = {option: ", ".join(table) for option, table in named.items()}
    rows = []
    for field in fields(cell):
        words = field.default in named.get(field.name, ())  # a cell of the user's own may mean something else by it
        default = "must be given" if field.default is MISSING else str(field.default)
        given = getattr(cell, field.name)
        other = "" if given == field.default or words else f"; here {given}"
        rows.append(f"{field.name}: {allowed[field.name] if words else default}{other}")
    return "\n".join(rows)
