"""Findings as they are headed and grouped."""

from __future__ import annotations

from collections.abc import Sequence

from isornn.diagnosis import CANNOT_TELL, Finding
from isornn.diagnosis.fixes import Fix


def headline(findings: Sequence[Finding]) -> str:
    """The result in a line.

    >>> headline([])
    'no findings'
    >>> cannot_tell, vanishing = (Finding(kind, "l0", "...", {}) for kind in (CANNOT_TELL, "vanishing"))
    >>> headline([cannot_tell]), headline([vanishing, cannot_tell, vanishing])
    ('no findings; 1 not measured far enough', '2 findings; 1 not measured far enough')
    """
    open_ = sum(finding.kind == CANNOT_TELL for finding in findings)
    found = len(findings) - open_
    parts = ["no findings"] if not found else [f"{found} finding" + ("s" if found > 1 else "")]
    return "; ".join(parts + ([f"{open_} not measured far enough"] if open_ else []))


def spoken(kind: str) -> str:
    """The kind as people say it.

    >>> spoken("default_start")
    'default start'
    """
    return kind.replace("_", " ")


def layer_of(finding: Finding) -> str:
    """Where it is."""
    return "the whole model" if finding.layer is None else finding.layer


def grouped(findings: Sequence[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """By kind and remedy; remedies of one kind that are calls on several layers are joined to one text.

    >>> from isornn.diagnosis import redraw_
    >>> two = [Finding("vanishing", name, "", {}, Fix(redraw_, name, (60,))) for name in ("LSTM l0", "LSTM l1")]
    >>> ((kind, remedy),) = grouped(two)
    >>> print(remedy)
    import isornn
    <BLANKLINE>
    isornn.diagnosis.redraw_(model, 'LSTM l0', 60)
    isornn.diagnosis.redraw_(model, 'LSTM l1', 60)
    """
    calls: dict[str, list[str]] = {}
    for finding in findings:
        if isinstance(finding.fix, Fix):
            calls.setdefault(finding.kind, []).append(finding.remedy)
    found: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        remedy = finding.remedy
        if isinstance(finding.fix, Fix):
            first, *others = calls[finding.kind]
            remedy = "\n".join([first, *(other.partition("\n\n")[2] for other in others)])
        found.setdefault((finding.kind, remedy), []).append(finding)
    return found
