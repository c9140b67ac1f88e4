"""A run for sweeps that takes seconds instead of hours: it counts, with a checkpoint after each count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isornn.files import replacing


class Killed(BaseException):
    """What a kill looks like to the process that lives on."""


def count(configuration: dict[str, Any], folder: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """From the checkpoint to ``to``, a ``pause`` before each step; notes its process and every step that it takes.

    ``fails_at`` and ``killed_at`` are steps before which it raises an error or `Killed`.
    """
    (folder / "process").write_text(str(os.getpid()))
    for step in range(done(folder), configuration["to"]):
        time.sleep(configuration.get("pause", 0))
        if step == configuration.get("fails_at"):
            raise ArithmeticError(f"step {step}")
        if step == configuration.get("killed_at"):
            raise Killed
        with (folder / "steps").open("a") as log:
            log.write(f"{step}\n")
        with replacing(folder / "checkpoint") as new:
            new.write_text(str(step + 1))
        progress(step + 1, configuration["to"])
    return {"reached": configuration["to"]}


def done(folder: Path) -> int:
    """The steps that the checkpoint knows of."""
    file = folder / "checkpoint"
    return int(file.read_text()) if file.exists() else 0


def steps(folder: Path) -> list[int]:
    """All steps that were taken, repeated ones too."""
    return [int(line) for line in (folder / "steps").read_text().split()]
