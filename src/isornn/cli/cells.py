"""``isornn cells``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isornn.cli.show import print_table

if TYPE_CHECKING:
    from isornn.cells import Cell


def cells() -> None:
    """The cells: what each pre-activation reads, the states, the equations of a step, the options."""
    from isornn.cells import CELLS, FURTHER_CELLS

    rows = []
    for name, kind in (CELLS | FURTHER_CELLS).items():
        cell = kind()
        reads = "\n".join(f"{gate}: {_reads(cell, gate)}" for gate in cell.gates)
        rows.append((name, reads, ", ".join(cell.states), "\n".join(cell.equations), _options(cell)))
    columns = ("cell", "pre-activation: reads", "states", "one step", "options, default first")
    print_table("u = W state + U input + V previous input + bias", columns, rows, lines=True)


def _reads(cell: Cell, gate: str) -> str:
    reads = cell.gates[gate]
    pointwise = reads.input and cell.input_enters_pointwise
    parts = {
        "gated state" if _gated(cell, gate) else "state": reads.state,
        "input (also enters pointwise)" if pointwise else "input": reads.input,
        "previous input": reads.previous_input,
    }
    return ", ".join(part for part, read in parts.items() if read)


def _gated(cell: Cell, gate: str) -> bool:
    """Whether the recurrent matrix multiplies anything but the first state itself."""
    import torch

    from isornn.cells import Values, initial_parameters

    one = torch.ones(())
    state = Values(**dict.fromkeys(cell.states, one))
    return cell.read(gate, state, Values(**dict.fromkeys(cell.gates, one), **initial_parameters(cell))) is not one


def _options(cell: Cell) -> str:
    from dataclasses import fields

    from isornn.cells.activations import GATE_FUNCTIONS, SHAPED_TRANSITIONS, TRANSITIONS

    named = {"gate": GATE_FUNCTIONS, "nonlinearity": TRANSITIONS | SHAPED_TRANSITIONS}
    allowed = {option: ", ".join(table) for option, table in named.items()}
    return "\n".join(f"{field.name}: {allowed.get(field.name, field.default)}" for field in fields(cell))
