"""All that a run needs to go on to the bit: what is trained, what draws, and how far its files and data have come."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isornn.cells.errors import brief
from isornn.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from isornn.training.data_mark import DataMark
from isornn.training.loop import State

NOTHING = hashlib.sha256().hexdigest()


@dataclass
class Journal:
    """The results of a run so far.

    Args:
        metrics_bytes, metrics_sha256: length and checksum of ``metrics.jsonl``.
        best_update, best, last: as in `RunRecord`.
        best_weights: the model's then. They lie in a file of their own too, which a kill may leave ahead of the
            checkpoint.
        seconds: spent until now, earlier parts together.
    """

    metrics_bytes: int = 0
    metrics_sha256: str = NOTHING
    best_update: int | None = None
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] | None = None
    best_weights: Mapping[str, Tensor] | None = None
    seconds: float = 0.0


def save_state(file: Path, run: str, data: DataMark, state: State, plateau: Any, journal: Journal) -> None:
    """Write a checkpoint; the data's position is the number of updates, for batch k belongs to update k + 1.

    Args:
        run: the configuration's `course`.
        data: what the run is trained on.
        plateau: the schedule that counts validations, if there is one.
    """
    save_checkpoint(
        file,
        {
            "run": run,
            "data": data.described,
            "mark": list(data.numbers),
            "update": state.update,
            "model": state.model.state_dict(),
            "carried": getattr(state.model, "carried", None),
            "optimizer": state.optimizer.state_dict(),
            "schedules": [None if each is None else each.state_dict() for each in (state.scheduler, plateau)],
            "generators": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "journal": vars(journal),
        },
    )


def load_state(file: Path, run: str, data: DataMark, state: State, plateau: Any, device: torch.device) -> Journal:
    """Put ``state``, ``plateau`` and torch's generators where `save_state` found them.

    Raises:
        CheckpointError: the file is damaged, another run's or of other data, or does not hold what `save_state` writes.
    """
    kept = load_checkpoint(file)
    if kept.get("run") != run:
        raise CheckpointError(f"{file}: is of the run {kept.get('run')}, not of {run}")
    if kept.get("data", data.described) != data.described:  # earlier versions did not say
        begun = brief(kept["data"])
        raise CheckpointError(f"{file}: the run was begun on {begun}, not on {data.described!r}; name another folder")
    if "mark" in kept and not data.agrees_with(kept["mark"]):
        raise CheckpointError(f"{file}: the run was begun on other items of {data.described!r}; name another folder")
    try:
        return _put(kept, state, plateau, device)
    except Exception as error:  # a file that somebody made to fit its checksum may hold anything
        reason = str(error) if isinstance(error, _Unlike) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{file}: holds something else than this run's state ({reason})") from None


class _Unlike(ValueError):
    """A value of a checkpoint that is not of the kind of the one whose place it takes."""


def _put(kept: Mapping[str, Any], state: State, plateau: Any, device: torch.device) -> Journal:
    schedules = [state.scheduler, plateau]
    _check_like("update", kept["update"], 0)
    _check_like("model", kept["model"], state.model.state_dict())
    _check_like("optimizer", _without_moments(kept["optimizer"]), _without_moments(state.optimizer.state_dict()))
    _check_like("schedules", kept["schedules"], [None if each is None else each.state_dict() for each in schedules])
    journal = _journal(kept["journal"], state)
    state.update = kept["update"]
    state.model.load_state_dict(kept["model"])
    state.optimizer.load_state_dict(kept["optimizer"])
    for parameter, moments in state.optimizer.state.items():
        for name, moment in moments.items():
            if isinstance(moment, Tensor) and moment.shape not in (parameter.shape, torch.Size([])):
                raise _Unlike(f"optimizer.{name}: its shape is {tuple(moment.shape)}")
    for schedule, known in zip(schedules, kept["schedules"], strict=True):
        if schedule is not None:
            schedule.load_state_dict(known)
    if kept["carried"] is not None:
        state.model.carried = _moved(kept["carried"], device)
    first, *others = kept["generators"]
    torch.set_rng_state(first)
    if others and len(others) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(others)
    return journal


def _journal(kept: Mapping[str, Any], state: State) -> Journal:
    names = [field.name for field in fields(Journal)]
    if sorted(kept) != sorted(names):
        raise _Unlike(f"journal: it has {', '.join(names)}")
    journal = Journal(**kept)
    for name in ("metrics_bytes", "metrics_sha256", "seconds"):
        _check_like(f"journal.{name}", kept[name], getattr(Journal, name))
    for name in ("best", "last"):
        if kept[name] is not None:
            _check_like(f"journal.{name}", kept[name], dict.fromkeys(kept[name], 0.0))
    if journal.best_weights is not None:
        _check_like("journal.best_weights", journal.best_weights, state.model.state_dict())
    return journal


def _without_moments(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimiser has from its start."""
    return {name: value for name, value in optimizer.items() if name != "state"}


def _check_like(where: str, kept: Any, ours: Any) -> None:
    """Refuse other keys, lengths, shapes and types than ``ours`` has, and numbers that are NaN or below 0."""
    if isinstance(ours, Mapping):
        like = isinstance(kept, Mapping) and kept.keys() == ours.keys()
    elif isinstance(ours, list | tuple):
        like = isinstance(kept, list | tuple) and len(kept) == len(ours)
    elif isinstance(ours, Tensor):
        like = isinstance(kept, Tensor) and kept.shape == ours.shape and kept.dtype == ours.dtype
    elif isinstance(ours, int | float) and not isinstance(ours, bool):
        like = isinstance(kept, int | float) and not isinstance(kept, bool) and kept >= 0
    else:
        like = type(kept) is type(ours)
    if not like:
        raise _Unlike(f"{where}: {brief(kept)}")
    if isinstance(ours, Mapping):
        for name, value in ours.items():
            _check_like(f"{where}.{name}", kept[name], value)
    elif isinstance(ours, list | tuple):
        for place, value in enumerate(ours):
            _check_like(f"{where}[{place}]", kept[place], value)


def _moved(state: Any, device: torch.device) -> Any:
    return state.to(device) if isinstance(state, Tensor) else tuple(part.to(device) for part in state)
