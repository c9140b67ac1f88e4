"""A report and a comparison in a notebook: the findings first, then a row a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from isornn.diagnosis import Diagnosis, Finding
from isornn.notebook import folded, table, tag
from isornn.reports import summary
from isornn.reports.findings import grouped, headline, layer_of, spoken

if TYPE_CHECKING:
    from isornn.reports.comparison import Comparison


def report_html(diagnosis: Diagnosis, findings: Sequence[Finding], notes: Sequence[str]) -> str:
    """What `isornn.reports.terminal.terminal` shows, as HTML."""
    return "".join(_report(diagnosis, findings, notes))


def _report(diagnosis: Diagnosis, findings: Sequence[Finding], notes: Sequence[str]) -> Iterator[str]:
    yield tag("h4", f"{diagnosis.model}, T = {diagnosis.length:,}: {headline(findings)}")
    yield from (tag("p", note) for note in notes)
    for (kind, remedy), same in grouped(findings).items():
        yield tag("strong", spoken(kind))
        for finding in same:
            yield tag("p", f"{layer_of(finding)}: {finding.sentence}")
            yield folded("Evidence", table(("", "value"), finding.evidence.items()))
        if remedy:
            yield tag("pre", remedy)
    yield table(summary.COLUMNS, summary.rows(diagnosis))
    yield from (tag("p", line) for line in (*summary.starts(diagnosis), *summary.unmeasured(diagnosis)))
    yield tag("small", summary.meaning(diagnosis))


def comparison_html(comparison: Comparison, columns: Sequence[str]) -> str:
    """What a printed comparison shows, as HTML."""
    lists = (
        (f"only in {comparison.names[0]}", comparison.gone),
        (f"only in {comparison.names[1]}", comparison.new),
        (f"in both, as in {comparison.names[1]}", comparison.kept),
    )
    found = [
        tag("strong", title) + table(("layer", "finding", ""), _findings(findings))
        for title, findings in lists
        if findings
    ]
    reports = (
        f"{name}: {report.diagnosis.model}, T = {report.diagnosis.length:,}; {headline(report.findings)}"
        for name, report in comparison.reports.items()
    )
    found = [*(tag("p", line) for line in reports), *found]
    rows = table(columns, comparison.rows())
    return "".join([tag("h4", comparison.headline), *found, rows, tag("small", summary.MEANING)])


def _findings(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    for finding in findings:
        yield layer_of(finding), spoken(finding.kind), finding.sentence
