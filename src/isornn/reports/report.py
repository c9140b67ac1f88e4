"""A diagnosis as a report: in the terminal, as figures, as a page, as JSON."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, Group
from torch import nn

from isornn.cells.errors import brief
from isornn.diagnosis import Diagnosis, Finding, findings, measure
from isornn.diagnosis.apply_fixes import applied
from isornn.diagnosis.measurement import Progress
from isornn.diagnosis.reading import diagnosis_from_json, findings_from_json
from isornn.diagnosis.target import Target
from isornn.extras import require
from isornn.records import RecordError, read_record
from isornn.reports.findings import headline
from isornn.reports.in_notebooks import report_html
from isornn.reports.terminal import as_text, terminal

if TYPE_CHECKING:
    import plotly.graph_objects as go


OUTDATED = "fix_ has changed the model since: these are the findings and measurements from before; diagnose it again."


class Report:
    """What is wrong with a model's recurrent layers, and the measurements that say so.

    It holds a weak reference to its model: a report does not keep a model in memory. It does keep the batch, for
    `fix_`; a pickled copy has neither.
    Printed, it is a short table, the findings first.

    Args:
        diagnosis: the measurements.
        findings: the gravest first.
        model, batch: what `fix_` changes, and what it was measured on.
        notes: sentences about how it was measured, printed first.

    >>> import torch
    >>> from isornn import diagnose
    >>> report = diagnose(torch.nn.LSTM(1, 8), torch.randn(100, 4, 1))
    >>> [finding.kind for finding in report.findings]
    ['default_start']
    """

    def __init__(
        self,
        diagnosis: Diagnosis,
        findings: Sequence[Finding],
        model: nn.Module | None = None,
        notes: Sequence[str] = (),
        batch: Any = None,
    ) -> None:
        self.diagnosis, self.findings, self.notes = diagnosis, tuple(findings), tuple(notes)
        self._model, self._batch = None if model is None else weakref.ref(model), batch

    def fix_(self, generator: torch.Generator | None = None) -> list[str]:
        """Apply the findings' fixes to the model, in place; nothing else changes it.

        The report stays that of the model as it was, and has a note that says so where a layer was changed.

        Args:
            generator: of the new weights.

        Returns:
            What was done, line by line.

        Raises:
            ValueError: the model is no longer there.
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise ValueError("model: it no longer exists; a report keeps no reference to it, so keep one")
        outcomes = applied(model, self.findings, self._batch, generator)
        if OUTDATED not in self.notes and any(outcome.changed for outcome in outcomes):
            self.notes = (*self.notes, OUTDATED)
        return [outcome.sentence for outcome in outcomes]

    def figure(self) -> go.Figure:
        """All layers in one plotly figure: gradients, nearby states, time constants, Lyapunov exponents.

        Raises:
            ModuleNotFoundError: plotly is not installed; names the extra that has it.
        """
        require("report")
        from isornn.reports.overview import overview

        return overview(self.diagnosis)

    def to_html(self, file: str | PathLike[str]) -> None:
        """Write one page that holds all, figures with numbers too, and opens without a network.

        Raises:
            ModuleNotFoundError: plotly is not installed; names the extra that has it.
            OSError: the folder is missing or cannot be written to.
        """
        require("report")
        from isornn.reports.page import page, write

        write(Path(file), page(self.diagnosis, self.findings, self.notes))

    def to_json(self) -> dict[str, Any]:
        """One JSON object without NaN or infinity: the findings, the notes, then all that was measured."""
        return {
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
            **self.diagnosis.to_json(),
        }

    @staticmethod
    def read(file: str | PathLike[str]) -> Report:
        """A report from the file that `to_json` was written to: without its model, and without the theory's answers.

        Raises:
            RecordError: the file is missing, is no JSON, or names the first field that is missing or of another type.
        """
        value = read_record(Path(file))
        if not isinstance(value, dict):
            raise RecordError(
                f"{file}: {brief(value)} is not allowed; it must be the report of `isornn diagnose --json`"
            )
        try:
            notes = value.get("notes", [])
            if not isinstance(notes, list):
                raise RecordError(f"notes: {brief(notes)} is not allowed; it must be a list")
            return Report(
                diagnosis_from_json(value),
                findings_from_json(value.get("findings")),
                notes=[str(note) for note in notes],
            )
        except RecordError as error:
            raise RecordError(f"{file}: {error}") from None

    def __rich__(self) -> Group:
        return terminal(self.diagnosis, self.findings, self.notes)

    def _repr_html_(self) -> str:
        return report_html(self.diagnosis, self.findings, self.notes)

    def __str__(self) -> str:
        return as_text(self.__rich__())

    def __repr__(self) -> str:
        return f"<Report of {self.diagnosis.model}, T = {self.diagnosis.length}: {headline(self.findings)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Report, (self.diagnosis, self.findings, None, self.notes)


def diagnose(
    model: nn.Module,
    batch: Any,
    length: int | None = None,
    target: Target | None = None,
    *,
    theory: bool = False,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Report:
    """How far gradients come in a model on the user's data, what is wrong with it, and the Python that fixes it.

    Measured by `isornn.diagnosis.measure`, which leaves the model bit by bit as it was; `isornn.diagnosis.findings`
    checks the measurements.

    Args:
        model, batch, length, target, theory, generator, progress: as `isornn.diagnosis.measure` has them; by
            default progress is a line on stderr, where that is a terminal.

    Raises:
        ModuleError, ReplayError, ValueError: as there.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.GRU(8, 16, batch_first=True))
    >>> report = diagnose(model, torch.randn(4, 50, 2))
    >>> report.to_json()["layers"][0]["info"]["name"]
    '1 l0'
    >>> print(report)
    Sequential, T = 50: ...
    """
    with ExitStack() as shown:
        console = Console(stderr=True)
        if progress is None and console.is_terminal:
            progress = shown.enter_context(console.status("diagnosing")).update
        found = measure(model, batch, length, target, theory=theory, generator=generator, progress=progress)
    return Report(found, findings(found), model, batch=batch)
