"""A report in the terminal: the verdicts first, then a row a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from isornn.diagnosis import Diagnosis, Verdict
from isornn.reports.summary import COLUMNS, MEANING, rows
from isornn.reports.verdicts import grouped, headline, place_of, spoken


def terminal(diagnosis: Diagnosis, verdicts: Sequence[Verdict], notes: Sequence[str]) -> Group:
    """For `rich.print`."""
    return Group(*_parts(diagnosis, verdicts, notes))


def _parts(diagnosis: Diagnosis, verdicts: Sequence[Verdict], notes: Sequence[str]) -> Iterator[RenderableType]:
    yield Text(f"{diagnosis.model}, T = {diagnosis.length:,}: {headline(verdicts)}", style="bold")
    for note in notes:
        yield Text(note)
    for (illness, remedy), same in grouped(verdicts).items():
        yield Text(f"\n{spoken(illness)}", style="bold yellow")
        for verdict in same:
            yield _indented(f"{place_of(verdict)}: {verdict.sentence}", "")
            if len(same) == 1:  # of several layers the sentences' own numbers must do here
                yield _indented("; ".join(f"{name} {value}" for name, value in verdict.evidence.items()), "dim")
        yield Text(remedy, style="cyan")  # from the first column on, so that it can be pasted
    yield Text()
    table = Table(show_edge=False)
    for place, column in enumerate(COLUMNS):
        table.add_column(Text(column), overflow="fold", no_wrap=place == 0)
    for row in rows(diagnosis):
        table.add_row(*map(Text, row))
    yield table
    for module in diagnosis.unmeasured:
        yield Text(f"{module.module or module.kind} ({module.kind}): not measured, {module.reason}")
    yield Text(MEANING, style="dim")


def _indented(text: str, style: str) -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2))
