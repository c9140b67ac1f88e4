"""Metrics as JSON lines, and the same numbers for TensorBoard."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isornn.files import read_bytes
from isornn.training.checkpoint import CheckpointError, load_checkpoint

CHECKPOINT, METRICS = "checkpoint.pt", "metrics.jsonl"
Metrics = Mapping[str, float]


class MetricsLog:
    """``metrics.jsonl``, a row per validation, and TensorBoard's event files beside it.

    Args:
        folder: where they go.
        position: how many bytes of ``metrics.jsonl`` count; what an interrupted run wrote behind them goes.
        checksum: their SHA-256.
        update: how many updates those rows cover.

    Raises:
        CheckpointError: there are fewer bytes than ``position``, or others than were written.
    """

    def __init__(self, folder: Path, position: int, checksum: str, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        file = folder / METRICS
        kept = _checked(file, position, checksum) if file.exists() or position else b""
        self._hash, self.position = hashlib.sha256(kept), position
        self._file = file.open("ab")
        self._file.truncate(position)
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=update + 1)

    def write(self, update: int, **parts: Metrics) -> None:
        """A row ``{"update": ..., "training": {...}, "validation": {...}}``."""
        row = json.dumps({"update": update, **parts}, allow_nan=False).encode() + b"\n"
        self._file.write(row)
        self._file.flush()
        self.position += len(row)
        self._hash.update(row)
        for part, metrics in parts.items():
            for name, value in metrics.items():
                self._board.add_scalar(f"{part}/{name}", value, update)
        self._board.flush()

    @property
    def checksum(self) -> str:
        """SHA-256 of all rows."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Both files."""
        self._file.close()
        self._board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's ``metrics.jsonl`` up to its last checkpoint, for curves over updates.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or the rows are not those that it knows of.
    """
    if not (folder / CHECKPOINT).exists() and (folder / METRICS).stat().st_size == 0:  # it diverged before
        return []
    journal = load_checkpoint(folder / CHECKPOINT)["journal"]
    rows = _checked(folder / METRICS, journal["metrics_bytes"], journal["metrics_sha256"])
    return [json.loads(line) for line in rows.splitlines()]


def _checked(file: Path, position: int, checksum: str) -> bytes:
    """The first ``position`` bytes."""
    try:
        data = read_bytes(file)[:position]
    except OSError as error:
        raise CheckpointError(f"{file}: not readable ({error.strerror})") from None
    if len(data) < position:
        raise CheckpointError(f"{file}: shorter than the {position} bytes that the checkpoint speaks of")
    if hashlib.sha256(data).hexdigest() != checksum:
        raise CheckpointError(f"{file}: changed, its checksum is not the one in the checkpoint")
    return data
