"""What every engine assumes of a network: units that act pointwise, and random matrices."""

from __future__ import annotations

from isornn.cells import Spec
from isornn.theory.records import IDENTITY, NOT_POINTWISE, TheoryMissing


def unmet_assumption(spec: Spec) -> str | None:
    """Why no engine covers networks of ``spec``, or ``None`` where one does.

    >>> from isornn.cells import Gate, Vanilla
    >>> unmet_assumption(Spec(Vanilla(), {"h": Gate(ensemble="identity")})) == IDENTITY
    True
    """
    if not spec.cell.pointwise:
        return NOT_POINTWISE
    if any(gate.ensemble == "identity" for gate in spec.gates.values()):
        return IDENTITY
    return None


def check_assumptions(spec: Spec, where: str | None = None) -> None:
    """Refuse what no engine covers.

    Args:
        where: what the message begins with; the cell's name by default.

    Raises:
        TheoryMissing: identity matrices, or an update that is not pointwise.
    """
    unmet = unmet_assumption(spec)
    if unmet is not None:
        raise TheoryMissing(f"{where or spec.cell.name}: {unmet}")
