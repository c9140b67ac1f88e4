"""What came of a run, and all that one needs to know to trust it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isornn.cells.errors import brief
from isornn.modes import processor
from isornn.records import RecordError, read_table, write_record
from isornn.training.configuration import Configuration

_KIND = "isornn run"
Metrics = Mapping[str, float]
_METRICS = ("best", "last", "test")
_TYPES: dict[str, Any] = {
    "data": str,
    "length": int,
    "baseline": int | float | None,
    "parameters": int,
    "best_update": int | None,
    **dict.fromkeys(_METRICS, dict | None),
    "diverged": str | None,
    "seconds": int | float,
    "device": str,
    "hardware": dict,
    "versions": dict,
}


@dataclass(frozen=True)
class RunRecord:
    """One run, finished or diverged.

    Args:
        configuration: what was run.
        data: name and source of the task's data.
        length: T, the steps to bridge.
        baseline: the loss of the best answer without memory, where it is known in closed form.
        parameters: how many numbers were trained.
        best_update: the update with the lowest validation loss; ``None`` if there was no validation.
        best, last: the validation's metrics then, and at the end.
        test: the metrics of the best weights on the test part.
        diverged: why training could not go on, in words; ``None`` if it ended well.
        seconds: of all of it, resumed parts together.
        device, hardware, versions: what it ran on, and what it did with denormal numbers.

    >>> import tempfile
    >>> from isornn.training.run import run
    >>> given = {"task": {"name": "adding", "length": 5}, "model": {"name": "lstm", "hidden": 4}, "updates": 2}
    >>> configuration = Configuration.from_mapping({**given, "optimiser": {"name": "adam", "rate": 1e-3}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = run(configuration, Path(folder))
    ...     RunRecord.load(Path(folder) / "record.json").length
    5
    """

    configuration: Configuration
    data: str
    length: int
    baseline: float | None
    parameters: int
    best_update: int | None
    best: Metrics | None
    last: Metrics | None
    test: Metrics | None
    diverged: str | None
    seconds: float
    device: str
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]

    def to_mapping(self) -> dict[str, Any]:
        """All of it, and the configuration's hash, as JSON has it."""
        record = {**vars(self), "configuration": self.configuration.to_mapping()}
        return {"record": _KIND, "hash": self.configuration.hash, **record}

    def save(self, file: Path) -> None:
        """Write as JSON, atomically."""
        write_record(file, self.to_mapping())

    @staticmethod
    def load(file: Path) -> RunRecord:
        """What `save` wrote.

        Raises:
            RecordError: the file is missing or not the record of a run.
        """
        data = read_table(file, _TYPES)
        if data.pop("record", None) != _KIND:
            raise RecordError(f"{file}: not the record of a run")
        for part in _METRICS:
            for name, value in (data.get(part) or {}).items():
                if not isinstance(value, int | float):
                    raise RecordError(f"{file}: {part}.{name}: {brief(value)} is not allowed; it must be a number")
        try:
            del data["hash"]
            return RunRecord(**{**data, "configuration": Configuration.from_mapping(data["configuration"])})
        except (KeyError, TypeError, ValueError) as error:
            raise RecordError(f"{file}: not the record of a run of this version ({error})") from None


def hardware() -> dict[str, Any]:
    """Processor, number of its cores and of torch's threads, and GPUs."""
    return {
        "machine": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }
