"""Two reports side by side: two models, or two moments of one training."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from isornn.diagnosis import Finding, LayerDiagnosis
from isornn.extras import require
from isornn.present.table import TerminalTable
from isornn.reports import summary
from isornn.reports.findings import headline, layer_of, spoken
from isornn.reports.in_notebooks import comparison_html
from isornn.reports.report import Report
from isornn.reports.terminal import as_text

# A file has no answers of the theory.
_MEASURED = [place for place, column in enumerate(summary.COLUMNS) if place and column != "reach in theory"]
_TITLE = "Gradient, nearby states, time constants, Lyapunov exponents"
COLUMNS = ("layer", "report", *(summary.COLUMNS[place] for place in _MEASURED))


class Comparison:
    """The findings that two reports share or do not, and the measurements of each layer that both have, by name.

    Args:
        reports: two, by the names that they go by, the earlier first.

    Raises:
        ValueError: not two reports.

    >>> import torch
    >>> from torch import nn
    >>> from isornn import diagnose
    >>> _ = torch.manual_seed(0)
    >>> model, x = nn.GRU(2, 32), torch.randn(60, 4, 2)
    >>> before = diagnose(model, x)
    >>> _ = before.fix_(torch.Generator().manual_seed(0))
    >>> Comparison({"before": before, "after": diagnose(model, x)}).headline
    'before and after: 1 finding gone'
    """

    def __init__(self, reports: dict[str, Report]) -> None:
        if len(reports) != 2:
            raise ValueError(f"reports: {len(reports)} are not allowed; there are two, by different names")
        self.reports, self.names = dict(reports), tuple(reports)
        first, second = ({_place(finding): finding for finding in one.findings} for one in reports.values())
        self.gone: Sequence[Finding] = [first[place] for place in first if place not in second]
        """Findings of the first report only."""
        self.new: Sequence[Finding] = [second[place] for place in second if place not in first]
        """Findings of the second only."""
        self.kept: Sequence[Finding] = [second[place] for place in second if place in first]
        """Findings of both, as the second has them."""

    @property
    def headline(self) -> str:
        """The result in a line."""
        counts = [
            f"{len(found)} finding{'' if len(found) == 1 else 's'} {what}"
            for found, what in ((self.gone, "gone"), (self.new, "new"), (self.kept, "in both"))
            if found
        ]
        return f"{self.names[0]} and {self.names[1]}: {', '.join(counts) or 'no findings in either'}"

    def layers(self) -> dict[str, dict[str, LayerDiagnosis]]:
        """By the layer's name, in the order of the first report: what each report that has it measured."""
        found: dict[str, dict[str, LayerDiagnosis]] = {}
        for name, report in self.reports.items():
            for layer in report.diagnosis.layers:
                found.setdefault(layer.info.name, {})[name] = layer
        return found

    def rows(self) -> list[tuple[str, ...]]:
        """Under `COLUMNS`: for each layer a row of each report that has it."""
        return [
            (layer, name, *(cells[place] for place in _MEASURED))
            for layer, by_report in self.layers().items()
            for name, measured in by_report.items()
            for cells in [summary.row(measured)]
        ]

    def to_html(self, file: str | PathLike[str]) -> None:
        """Write one page with the figures of both, which opens without a network.

        Raises:
            ModuleNotFoundError: plotly is not installed; names the extra that has it.
            OSError: the folder is missing or cannot be written to.
        """
        require("report")
        from isornn.reports.overview import overview_caption, together
        from isornn.reports.page import rendered, write
        from isornn.reports.panel import ReportPanel

        panels = [
            ReportPanel(_TITLE, together(by_report), overview_caption(by_report.values()))
            for by_report in self.layers().values()
        ]
        text = rendered(
            "comparison.html",
            panels,
            comparison=self,
            columns=COLUMNS,
            headline=headline,
            meaning=summary.MEANING,
            panels=list(zip(self.layers(), range(len(panels)), panels, strict=True)),
        )
        write(Path(file), text)

    def to_json(self) -> dict[str, Any]:
        """One JSON object: the findings gone, new and in both, and the two reports by name."""
        return {
            **{name: [one.to_json() for one in getattr(self, name)] for name in ("gone", "new", "kept")},
            "reports": {name: report.to_json() for name, report in self.reports.items()},
        }

    def __rich__(self) -> Group:
        table = TerminalTable(COLUMNS, self.rows(), show_edge=False)
        lists = [
            (f"\nonly in {self.names[0]}", self.gone),
            (f"\nonly in {self.names[1]}", self.new),
            (f"\nin both, as in {self.names[1]}", self.kept),
        ]
        lines = [
            line
            for title, found in lists
            if found
            for line in (Text(title, style="bold yellow"), *(Text(f"  {_line(finding)}") for finding in found))
        ]
        each = [
            Text(f"{name}: {report.diagnosis.model}, T = {report.diagnosis.length:,}; {headline(report.findings)}")
            for name, report in self.reports.items()
        ]
        meaning = Text(summary.MEANING, style="dim")
        return Group(Text(self.headline, style="bold"), *each, *lines, Text(), table, meaning)

    def _repr_html_(self) -> str:
        return comparison_html(self, COLUMNS)

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __repr__(self) -> str:
        return f"<Comparison of {self.headline}>"


def _place(finding: Finding) -> tuple[str | None, str]:
    return finding.layer, finding.kind


def _line(finding: Finding) -> str:
    return f"{layer_of(finding)}, {spoken(finding.kind)}: {finding.sentence}"
