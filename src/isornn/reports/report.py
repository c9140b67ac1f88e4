"""Diagnose a model: measured, judged, and said to people."""

from __future__ import annotations

import io
import shutil
import weakref
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console, Group
from torch import nn

from isornn.diagnosis import Diagnosis, Verdict, fix_, measure, verdicts
from isornn.diagnosis.losses import Target
from isornn.reports.terminal import terminal
from isornn.reports.verdicts import headline

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Report:
    """What is wrong with a model's recurrent layers, and the measurements that say so.

    It knows its model weakly: a report that is kept keeps no model in memory, and a copy that was pickled has none.
    Printed, it is a short table, the verdicts first.

    Args:
        diagnosis: the measurements.
        verdicts: the gravest first.
        model: what `fix_` mends.
        notes: sentences about how it was measured, which stand above all else.
    """

    def __init__(
        self,
        diagnosis: Diagnosis,
        verdicts: Sequence[Verdict],
        model: nn.Module | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.diagnosis, self.verdicts, self.notes = diagnosis, tuple(verdicts), tuple(notes)
        self._model = None if model is None else weakref.ref(model)

    def fix_(self, generator: torch.Generator | None = None) -> list[str]:
        """Mend the model in place as the verdicts' remedies say; nothing else changes it.

        Args:
            generator: of the new weights.

        Returns:
            What was done, line by line.

        Raises:
            ValueError: the model is no longer there.
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise ValueError("model: it is gone; a report does not keep it, so keep it beside the report")
        return fix_(model, self.verdicts, self.diagnosis.length, generator)

    def figure(self) -> go.Figure:
        """All layers in one plotly figure: gradients, nearby states, time constants, Lyapunov exponents.

        Raises:
            ModuleNotFoundError: plotly is not installed; names the extra that has it.
        """
        _needs_plotly()
        from isornn.reports.overview import overview

        return overview(self.diagnosis)

    def to_html(self, file: str | PathLike[str]) -> None:
        """Write one page that holds all, figures with numbers too, and opens without a network.

        Raises:
            ModuleNotFoundError: plotly is not installed; names the extra that has it.
            OSError: the folder is missing or cannot be written to.
        """
        _needs_plotly()
        from isornn.reports.page import write_page

        write_page(Path(file), self.diagnosis, self.verdicts, self.notes)

    def to_json(self) -> dict[str, Any]:
        """One JSON object without NaN or infinity: the verdicts, the notes, then all that was measured."""
        return {
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "notes": list(self.notes),
            **self.diagnosis.to_json(),
        }

    def __rich__(self) -> Group:
        return terminal(self.diagnosis, self.verdicts, self.notes)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=shutil.get_terminal_size((120, 24)).columns)
        with console.capture() as shown:
            console.print(self)
        return "\n".join(line.rstrip() for line in shown.get().splitlines())

    def __repr__(self) -> str:
        return f"<Report of {self.diagnosis.model}, T = {self.diagnosis.length}: {headline(self.verdicts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Report, (self.diagnosis, self.verdicts, None, self.notes)


def diagnose(
    model: nn.Module,
    batch: Any,
    length: int | None = None,
    target: Target | None = None,
    *,
    theory: bool = True,
    generator: torch.Generator | None = None,
) -> Report:
    """How far a model sees on the user's data, what is wrong with it, and the line of Python that mends it.

    Measured by `isornn.diagnosis.measure`, which leaves the model bit by bit as it was, and judged by
    `isornn.diagnosis.verdicts`.

    Args:
        model, batch, length, target, theory, generator: as `isornn.diagnosis.measure` has them.

    Raises:
        ModuleError, ReplayError, ValueError: as there.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.GRU(8, 16, batch_first=True))
    >>> report = diagnose(model, torch.randn(4, 50, 2), theory=False)
    >>> report.to_json()["layers"][0]["place"]["name"]
    '1 l0'
    >>> print(report)
    Sequential, T = 50: ...
    """
    found = measure(model, batch, length, target, theory=theory, generator=generator)
    return Report(found, verdicts(found), model)


def _needs_plotly() -> None:
    try:
        import plotly  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError("plotly is not installed: pip install 'isornn[report]'", name="plotly") from None
