"""What every engine assumes of a network: units that act pointwise, and random matrices."""

from __future__ import annotations

import functools

from isornn.cells import Cell, Spec
from isornn.cells.graph_checks import needs_two_axes
from isornn.cells.trace import graph_of
from isornn.theory.reasons import IDENTITY, NOT_POINTWISE, TWO_AXES, TheoryMissing


def unmet_assumption(spec: Spec) -> str | None:
    """Why no engine covers networks of ``spec``, or ``None`` where one does.

    >>> from isornn.cells import Gate, Vanilla
    >>> unmet_assumption(Spec(Vanilla(), {"h": Gate(ensemble="identity")})) == IDENTITY
    True
    """
    if not spec.cell.pointwise:
        return NOT_POINTWISE
    if (method := _of_two_axes(spec.cell)) is not None:
        return TWO_AXES.format(method)
    if any(gate.ensemble == "identity" for gate in spec.gates.values()):
        return IDENTITY
    return None


@functools.cache
def _of_two_axes(cell: Cell) -> str | None:
    return needs_two_axes(graph_of(cell))


def check_assumptions(spec: Spec, where: str | None = None) -> None:
    """Refuse what no engine covers.

    Args:
        where: what the message begins with; the cell's name by default.

    Raises:
        TheoryMissing: identity matrices, an update that is not pointwise, or a method that takes (batch, N) only.
    """
    unmet = unmet_assumption(spec)
    if unmet is not None:
        raise TheoryMissing(f"{where or spec.cell.name}: {unmet}")
