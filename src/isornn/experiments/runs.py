"""Training runs of a measurement, as a sweep in its folder, which can be interrupted and resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isornn.experiments.target import Bench
from isornn.training import Configuration, RunRecord, run
from isornn.training.sweep import LocalWorkers, SweptRun, run_sweep

_WORKERS = 2


class RunFailed(RuntimeError):
    """A run ended by an error; names its folder and the reason."""


def train_all(bench: Bench, configurations: Sequence[Mapping[str, Any]]) -> list[RunRecord]:
    """Every run's record, in order, by two processes of one thread each, so that results do not depend on their number.

    Args:
        bench: of the measurement.
        configurations: as `Configuration.from_mapping` reads them.

    Raises:
        ConfigurationError: names the field.
        RunFailed: a run ended by an error. A diverged one did not: its record says so.
    """
    planned = [Configuration.from_mapping(mapping) for mapping in configurations]
    swept = run_sweep(
        {one.hash: one.to_mapping() for one in planned},
        bench.folder,
        partial(_run, bench.data),
        LocalWorkers(_WORKERS),
        watch=partial(_watch, bench),
    )
    for one in swept:
        if one.state != "finished":
            raise RunFailed(f"{one.folder}: {one.reason or one.state}")
    by_hash = {one.folder.name: RunRecord.load(one.folder / "record.json") for one in swept}
    return [by_hash[one.hash] for one in planned]


def _run(data: Path | None, fields: Mapping[str, Any], folder: Path, progress: Any) -> dict[str, Any]:
    return run(Configuration.from_mapping(fields), folder, data=data, progress=progress).to_mapping()


def _watch(bench: Bench, runs: Sequence[SweptRun]) -> None:
    done = sum(one.state in ("finished", "failed") for one in runs)
    bench.progress("training", done, len(runs))
