"""Settings and results of a demo run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isornn.records import RecordError, read_record, write_record

_KIND = "isornn demo"


@dataclass(frozen=True)
class DemoSettings:
    """All that a run depends on apart from the start.

    Args:
        length: T, the image at t = 1 and noise up to T.
        updates: K.
        seed: of weights, images and noise.
        data: name of the data; source: where it is from.
        hidden, batch_size, learning_rate, test_draws: units, sequences per update, Adam's rate, and how often
            the test digits are evaluated, each time with other noise.
    """

    length: int
    updates: int
    seed: int
    data: str
    source: str
    hidden: int = 128
    batch_size: int = 64
    learning_rate: float = 3e-3
    test_draws: int = 3


@dataclass(frozen=True)
class DemoRun:
    """One start, trained.

    Args:
        start: its name.
        losses: cross entropy before each update.
        accuracies: share of test digits classified correctly, one for each draw of noise.
        seconds: training and testing.
        initial: digest of all weights before training, by which an outdated run is detected.
        accuracy_error: standard error over digits of one draw's accuracy, the mean over draws: as these share the
            digits, the most that the mean accuracy's is; ``None`` in records of earlier versions.
    """

    start: str
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    seconds: float
    initial: str
    accuracy_error: float | None = None

    @property
    def accuracy(self) -> float:
        """Mean over the draws of noise.

        >>> DemoRun("torch", (2.3,), (0.25, 0.75), 1.0, "").accuracy
        0.5
        """
        return sum(self.accuracies) / len(self.accuracies)


@dataclass(frozen=True)
class DemoResult:
    """The runs, in order of start, with what one needs to run them again.

    Args:
        settings: what all runs share.
        runs: one per start.
        predicted: by start, the theory's reach in steps before training; ``None`` or absent where it has none.
        command: what was called.
        versions: of Python and packages.
        device: what it ran on.
    """

    settings: DemoSettings
    runs: tuple[DemoRun, ...]
    predicted: Mapping[str, float | None]
    command: str
    versions: Mapping[str, str]
    device: str

    @property
    def seconds(self) -> float:
        """Of all runs, including those reused from an earlier call."""
        return sum(run.seconds for run in self.runs)

    def save(self, file: Path) -> None:
        """Write as JSON, atomically; an infinite reach is written as null."""
        finite = {
            name: None if reach is None or not math.isfinite(reach) else reach for name, reach in self.predicted.items()
        }
        runs = [{**asdict(run), "accuracy": run.accuracy} for run in self.runs]
        write_record(file, {"record": _KIND, **asdict(self), "predicted": finite, "runs": runs})

    @staticmethod
    def load(file: Path) -> DemoResult:
        """What `save` wrote.

        Raises:
            RecordError: the file is missing or not the record of a demo.
        """
        data = read_record(file)
        if not isinstance(data, dict) or data.get("record") != _KIND:
            raise RecordError(f"{file}: not the record of a demo")
        try:
            return DemoResult(
                settings=DemoSettings(**data["settings"]),
                runs=tuple(_run(run) for run in data["runs"]),
                predicted=data["predicted"],
                command=data["command"],
                versions=data["versions"],
                device=data["device"],
            )
        except (KeyError, TypeError) as error:
            raise RecordError(f"{file}: not the record of a demo of this version ({error})") from None


def _run(data: dict[str, Any]) -> DemoRun:
    return DemoRun(
        start=data["start"],
        losses=tuple(data["losses"]),
        accuracies=tuple(data["accuracies"]),
        seconds=data["seconds"],
        initial=data["initial"],
        accuracy_error=data.get("accuracy_error"),
    )
