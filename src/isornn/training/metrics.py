"""Metrics as JSON lines, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isornn.training.checkpoint import CheckpointError

Metrics = Mapping[str, float]


class MetricsLog:
    """``metrics.jsonl``, a row per validation, and TensorBoard's event files beside it.

    Args:
        folder: where they go.
        position: how many bytes of ``metrics.jsonl`` count; what an interrupted run wrote behind them goes.
        update: how many updates those rows cover.

    Raises:
        CheckpointError: there are fewer bytes than ``position``.
    """

    def __init__(self, folder: Path, position: int, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._file = (folder / "metrics.jsonl").open("ab")
        if self._file.seek(0, os.SEEK_END) < position:
            self._file.close()
            raise CheckpointError(f"{self._file.name}: shorter than the {position} bytes that the checkpoint speaks of")
        self._file.truncate(position)
        self.position = position
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=update + 1)

    def write(self, update: int, **parts: Metrics) -> None:
        """A row ``{"update": ..., "training": {...}, "validation": {...}}``."""
        row = json.dumps({"update": update, **parts}, allow_nan=False).encode() + b"\n"
        self._file.write(row)
        self._file.flush()
        self.position += len(row)
        for part, metrics in parts.items():
            for name, value in metrics.items():
                self._board.add_scalar(f"{part}/{name}", value, update)
        self._board.flush()

    def close(self) -> None:
        """Both files."""
        self._file.close()
        self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl``, for curves over updates."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
