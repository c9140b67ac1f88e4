"""Measure a target, judge its claim, and save the record with all that is needed to repeat it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isornn.experiments.target import Bench, Measured, Progress, Scale, Target, TargetError, Verdict
from isornn.records import RecordError, read_record, versions, write_record
from isornn.tasks.data_files import data_folder
from isornn.training.record import hardware

_KIND = "isornn reproduction"


@dataclass(frozen=True)
class Reproduction:
    """The record of a reproduced target.

    Args:
        target: its name.
        scale: ``"small"``, ``"medium"`` or ``"paper"``.
        settings: what it was measured with.
        seed: of everything random.
        data: the name of what it was measured on; ``None`` where nothing but random numbers is needed.
        measured: the numbers.
        verdict: whether the claim holds.
        command: the command line that reproduces it; ``DATA`` is the folder of data, where one was used.
        seconds: that the measurement took, with the parts before interrupts; but for those that were killed.
        hardware, versions: what it ran on.
        processor_seconds: of all processes that worked for it; training runs that another target had made count too.
        date: of its end, in UTC.
        commit: of the source, ``-dirty`` if it was changed since.

        Records of earlier versions have ``None`` for the last three.
    """

    target: str
    scale: str
    settings: Mapping[str, Any]
    seed: int
    data: str | None
    measured: Measured
    verdict: Verdict
    command: str
    seconds: float
    hardware: Mapping[str, Any]
    versions: Mapping[str, str]
    processor_seconds: float | None = None
    date: str | None = None
    commit: str | None = None

    def save(self, file: Path) -> None:
        """Write as JSON, atomically."""
        write_record(file, {"record": _KIND, **vars(self), "verdict": self.verdict.to_mapping()})

    @staticmethod
    def load(file: Path) -> Reproduction:
        """What `save` wrote.

        Raises:
            RecordError: the file is missing or not a reproduction.
        """
        found = read_record(file)
        if not isinstance(found, dict) or found.pop("record", None) != _KIND:
            raise RecordError(f"{file}: not a reproduction")
        try:
            return Reproduction(**{**found, "verdict": Verdict.from_mapping(found["verdict"])})
        except (KeyError, TypeError) as error:
            raise RecordError(f"{file}: not a reproduction of this version ({error})") from None


def reproduce(
    target: Target,
    scale: Scale,
    out: Path,
    *,
    data: Path | None = None,
    seed: int = 0,
    jobs: int = 2,
    progress: Progress = lambda text, done, of: None,
) -> Reproduction:
    """Measure a target and judge its claim; the record goes to ``out/<target>.json``.

    An existing record with the same settings, seed and data is judged again and returned. Finished parts of an
    interrupted measurement are kept in ``out/runs/<target>`` and not repeated.

    Args:
        target: what to reproduce.
        scale: ``"small"``: ten minutes at most on two cores; ``"medium"``: three hours at most, sizes that can decide
            the claim; ``"paper"``: the published sizes.
        out: folder of the record, made if needed.
        data: folder of data files, for targets on real data; the package's digits stand in where it has none.
        seed: of everything random, from 0.
        jobs: how many processes train at a time; the numbers do not depend on it.
        progress: called as `Progress` has it.

    Raises:
        TargetError: the target has no such scale.
    """
    if scale not in target.settings:
        raise TargetError(f"scale: {scale!r} is not allowed; {target.id} has {', '.join(target.settings)}")
    settings, file = dict(target.settings[scale]), out / f"{target.id}.json"
    source = None if target.data is None else target.data(data)
    asked = (target.id, scale, settings, seed, source)
    known = _known(file, asked)
    if known is not None:
        return _judged_again(known, target, scale, file)
    others: list[float] = []
    with _watch(out / "runs" / f"{target.id}.interrupted.json", asked) as taken:
        bench = Bench(settings, out / "runs" / target.id, data, seed, progress, jobs, others.append)
        measured = target.measure(bench)
        seconds, processor_seconds = taken()
    found = Reproduction(
        target=target.id,
        scale=scale,
        settings=settings,
        seed=seed,
        data=source,
        measured=measured,
        verdict=target.verdict(scale, measured),
        command=_command(target, scale, data, seed),
        seconds=seconds,
        hardware=hardware(),
        versions=versions(),
        processor_seconds=processor_seconds + sum(others),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
    )
    found.save(file)
    return found


def _command(target: Target, scale: Scale, data: Path | None, seed: int) -> str:
    from_files = target.data is not None and data_folder(data) is not None
    return f"isornn reproduce {target.id} --scale {scale} --seed {seed}{' --data DATA' if from_files else ''}"


def _commit() -> str | None:
    """Of the repository that holds this file; ``None`` where none does."""
    here = Path(__file__)
    try:
        subprocess.run(
            ["git", "ls-files", "--error-unmatch", here.name], cwd=here.parent, check=True, capture_output=True
        )
        described = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
        return subprocess.run(described, cwd=here.parent, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


@contextmanager
def _watch(file: Path, asked: tuple[object, ...]) -> Iterator[Callable[[], tuple[float, float]]]:
    """Seconds that this measurement has taken, by the clock and of this processor, with those of interrupted calls,
    which ``file`` keeps until its end."""
    kept = read_record(file) if file.exists() else {}
    before = [float(kept[name]) if kept.get("of") == list(asked) else 0.0 for name in ("seconds", "processor_seconds")]
    begun = time.perf_counter(), time.process_time()

    def taken() -> tuple[float, float]:
        return before[0] + time.perf_counter() - begun[0], before[1] + time.process_time() - begun[1]

    try:
        yield taken
    except BaseException:
        seconds, processor_seconds = taken()
        write_record(file, {"of": asked, "seconds": seconds, "processor_seconds": processor_seconds})
        raise
    file.unlink(missing_ok=True)


def _known(file: Path, asked: tuple[object, ...]) -> Reproduction | None:
    """The record of the same measurement, if there is one."""
    if not file.exists():
        return None
    known = Reproduction.load(file)
    return known if (known.target, known.scale, known.settings, known.seed, known.data) == asked else None


def _judged_again(known: Reproduction, target: Target, scale: Scale, file: Path) -> Reproduction:
    """With the verdict of today's judge, on the numbers as they were measured."""
    found = replace(known, verdict=target.verdict(scale, known.measured))
    if found != known:
        found.save(file)
    return found
