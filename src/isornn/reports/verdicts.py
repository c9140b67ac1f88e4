"""Verdicts as they are headed."""

from __future__ import annotations

from collections.abc import Sequence

from isornn.diagnosis import CANNOT_TELL, Verdict


def headline(verdicts: Sequence[Verdict]) -> str:
    """What came out, in a line.

    >>> headline([])
    'nothing found wrong'
    """
    open_ = sum(verdict.illness == CANNOT_TELL for verdict in verdicts)
    found = len(verdicts) - open_
    told = ["nothing found wrong"] if not found else [f"{found} verdict" + ("s" if found > 1 else "")]
    return "; ".join(told + ([f"{open_} cannot be told"] if open_ else []))


def spoken(illness: str) -> str:
    """The illness as people say it.

    >>> spoken("default_start")
    'default start'
    """
    return illness.replace("_", " ")


def place_of(verdict: Verdict) -> str:
    """Where it is."""
    return "the whole model" if verdict.place is None else verdict.place


def grouped(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """By illness and remedy: layers of one module have much in common."""
    found: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        found.setdefault((verdict.illness, verdict.remedy), []).append(verdict)
    return found
