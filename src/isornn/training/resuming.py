"""All that a run needs to go on to the bit: what is trained, what draws, and how far its files and data have come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isornn.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from isornn.training.loop import State


@dataclass
class Journal:
    """What a run has told so far.

    Args:
        metrics_bytes: length of ``metrics.jsonl``.
        best_update, best, last: as in `RunRecord`.
        best_weights: the model's then. They lie in a file of their own too, which a kill may leave ahead of the
            checkpoint.
        seconds: spent until now, earlier parts together.
    """

    metrics_bytes: int = 0
    best_update: int | None = None
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] | None = None
    best_weights: Mapping[str, Tensor] | None = None
    seconds: float = 0.0


def save_state(file: Path, run: str, state: State, plateau: Any, journal: Journal) -> None:
    """Write a checkpoint; the data's position is the number of updates, for batch k belongs to update k + 1.

    Args:
        run: the configuration's hash.
        plateau: the schedule that counts validations, if there is one.
    """
    save_checkpoint(
        file,
        {
            "run": run,
            "update": state.update,
            "model": state.model.state_dict(),
            "carried": getattr(state.model, "carried", None),
            "optimizer": state.optimizer.state_dict(),
            "schedules": [None if each is None else each.state_dict() for each in (state.scheduler, plateau)],
            "generators": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "journal": vars(journal),
        },
    )


def load_state(file: Path, run: str, state: State, plateau: Any, device: torch.device) -> Journal:
    """Put ``state``, ``plateau`` and torch's generators where `save_state` found them.

    Raises:
        CheckpointError: the file is damaged, or another run's.
    """
    kept = load_checkpoint(file)
    if kept.get("run") != run:
        raise CheckpointError(f"{file}: is of the run {kept.get('run')}, not of {run}")
    state.update = kept["update"]
    state.model.load_state_dict(kept["model"])
    state.optimizer.load_state_dict(kept["optimizer"])
    for schedule, known in zip((state.scheduler, plateau), kept["schedules"], strict=True):
        if schedule is not None:
            schedule.load_state_dict(known)
    if kept["carried"] is not None:
        state.model.carried = _moved(kept["carried"], device)
    first, *others = kept["generators"]
    torch.set_rng_state(first)
    if others and len(others) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(others)
    return Journal(**kept["journal"])


def _moved(state: Any, device: torch.device) -> Any:
    return state.to(device) if isinstance(state, Tensor) else tuple(part.to(device) for part in state)
