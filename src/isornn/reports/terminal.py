"""A report in the terminal: the findings first, then a row a layer."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from isornn.diagnosis import Diagnosis, Finding
from isornn.present.table import TerminalTable
from isornn.reports.findings import grouped, headline, layer_of, spoken
from isornn.reports.summary import COLUMNS, meaning, rows, starts, unmeasured


def terminal(diagnosis: Diagnosis, findings: Sequence[Finding], notes: Sequence[str]) -> Group:
    """For `rich.print`."""
    return Group(*_parts(diagnosis, findings, notes))


def as_text(shown: RenderableType) -> str:
    """What `rich.print` would show, as wide as the terminal, or 120 characters where there is none."""
    console = Console(file=io.StringIO(), width=shutil.get_terminal_size((120, 24)).columns)
    with console.capture() as captured:
        console.print(shown, crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _parts(diagnosis: Diagnosis, findings: Sequence[Finding], notes: Sequence[str]) -> Iterator[RenderableType]:
    yield Text(f"{diagnosis.model}, T = {diagnosis.length:,}: {headline(findings)}", style="bold")
    for note in notes:
        yield Text(note)
    for (kind, remedy), same in grouped(findings).items():
        yield Text(f"\n{spoken(kind)}", style="bold yellow")
        for finding in same:
            yield _indented(f"{layer_of(finding)}: {finding.sentence}", "")
            if len(same) == 1:  # of several layers the sentences' own numbers must do here
                yield _indented("; ".join(f"{name} {value}" for name, value in finding.evidence.items()), "dim")
        # From the first column on, and no line broken, so that it can be pasted.
        yield Text(remedy, style="cyan", no_wrap=True, overflow="ignore")
    yield Text()
    yield TerminalTable(COLUMNS, rows(diagnosis), show_edge=False)
    for line in (*starts(diagnosis), *unmeasured(diagnosis)):
        yield Text(line)
    yield Text(meaning(diagnosis), style="dim")


def _indented(text: str, style: str) -> RenderableType:
    return Padding(Text(text, style=style), (0, 0, 0, 2))
