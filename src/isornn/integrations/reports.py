"""Reports of one module at several moments of its training, on one batch."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from isornn.cells.arguments import whole_number
from isornn.diagnosis.target import Target
from isornn.files import replacing
from isornn.reports import Report, diagnose

_LOGGER = logging.getLogger(__name__)


class Reporting:
    """What the callbacks called ``Diagnose`` share: their arguments, and the reports of the last training.

    Args:
        folder: of the reports; ``None`` for the trainer's own.
        every: updates between reports during the training; ``None`` for none.
        length: T that gradients must cross, as `isornn.diagnose`.
    """

    def __init__(
        self, folder: str | PathLike[str] | None = None, *, every: int | None = None, length: int | None = None
    ) -> None:
        if every is not None:
            every = whole_number("every", every, what="whole number of updates")
        self._folder, self._every, self._length = folder, every, length
        self._run: Callable[[Any], Any] | None = None
        self._reports: TrainingReports | None = None

    @property
    def reports(self) -> dict[int, Report]:
        """By the number of updates made before each, of the last training."""
        return {} if self._reports is None else self._reports.by_step

    def _begin(self, own: Path) -> None:
        folder = own / "isornn" if self._folder is None else Path(self._folder)
        self._run, self._reports = None, TrainingReports(folder, self._length)

    def _is_due(self, step: int) -> bool:
        return self._every is not None and step % self._every == 0


class TrainingReports:
    """Writes ``step-000500.json`` and, where plotly and jinja2 are there, ``step-000500.html`` into a folder.

    Args:
        folder: is made when the first report is written.
        length: as `isornn.diagnose`.
    """

    def __init__(self, folder: Path, length: int | None) -> None:
        self.folder, self._length = folder, length
        self.by_step: dict[int, Report] = {}
        self.tried: set[int] = set()
        """Updates after which the model was diagnosed, or could not be."""

    def add(self, step: int, model: nn.Module, batch: Any, target: Target | None, *, write: bool) -> dict[str, float]:
        """Diagnose the model as it is after so many updates.

        A model that cannot be measured and a file that cannot be written are no reason to end its training: that is
        logged as a warning.

        Args:
            write: files too; of several processes one does.

        Returns:
            For loggers: the number of findings, of each kind, and xi of each layer where it is finite.
        """
        self.tried.add(step)
        try:
            report = diagnose(model, batch, self._length, target, progress=lambda _: None)
        except Exception as error:  # as a model's own code may raise any in eval mode
            _LOGGER.warning("isornn: step %d: no diagnosis: %s: %s", step, type(error).__name__, error)
            return {}
        self.by_step[step] = report
        try:
            if write:
                self._write(report, self.folder / f"step-{step:06d}")
        except OSError as error:
            _LOGGER.warning("isornn: step %d: the report is not written: %s", step, error)
        return _numbers(report)

    def _write(self, report: Report, file: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(file.with_suffix(".json")) as part:
            part.write_text(json.dumps(report.to_json()))
        if all(importlib.util.find_spec(name) for name in ("plotly", "jinja2")):
            report.to_html(file.with_suffix(".html"))


def _numbers(report: Report) -> dict[str, float]:
    numbers = {"diagnosis/findings": float(len(report.findings))}
    for finding in report.findings:
        numbers[f"diagnosis/{finding.layer or 'model'}/{finding.kind}"] = 1.0
    for layer in report.diagnosis.layers:
        xi = layer.backward.xi.number()
        if xi is not None:
            numbers[f"diagnosis/{layer.info.name}/xi"] = xi
    return numbers
