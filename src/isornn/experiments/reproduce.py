"""Measure a target, judge its claim, and save the record with all that is needed to repeat it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
        scale: ``"small"`` or ``"paper"``.
        settings: what it was measured with.
        seed: of everything random.
        data: the name of what it was measured on; ``None`` where nothing but random numbers is needed.
        measured: the numbers.
        verdict: whether the claim holds.
        command: the command line that reproduces it; ``DATA`` is the folder of data, where one was used.
        seconds: that the measurement took, with the parts before interrupts; but for those that were killed.
        hardware, versions: what it ran on.
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

    def save(self, file: Path) -> None:
        """Write as JSON, atomically."""
        write_record(file, {"record": _KIND, **vars(self), "verdict": vars(self.verdict)})

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
            return Reproduction(**{**found, "verdict": Verdict(**found["verdict"])})
        except (KeyError, TypeError) as error:
            raise RecordError(f"{file}: not a reproduction of this version ({error})") from None


def reproduce(
    target: Target,
    scale: Scale,
    out: Path,
    *,
    data: Path | None = None,
    seed: int = 0,
    progress: Progress = lambda text, done, of: None,
) -> Reproduction:
    """Measure a target and judge its claim; the record goes to ``out/<target>.json``.

    An existing record with the same settings, seed and data is returned. Finished parts of an interrupted measurement
    are kept in ``out/runs/<target>`` and not repeated.

    Args:
        target: what to reproduce.
        scale: ``"small"``: ten minutes at most on two cores; ``"paper"``: the published sizes.
        out: folder of the record, made if needed.
        data: folder of data files, for targets on real data; the package's digits stand in where it has none.
        seed: of everything random, from 0.
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
        return known
    with _watch(out / "runs" / f"{target.id}.interrupted.json", asked) as seconds:
        measured = target.measure(Bench(settings, out / "runs" / target.id, data, seed, progress))
    found = Reproduction(
        target=target.id,
        scale=scale,
        settings=settings,
        seed=seed,
        data=source,
        measured=measured,
        verdict=target.judge(measured),
        command=_command(target, scale, data, seed),
        seconds=seconds(),
        hardware=hardware(),
        versions=versions(),
    )
    found.save(file)
    return found


def _command(target: Target, scale: Scale, data: Path | None, seed: int) -> str:
    from_files = target.data is not None and data_folder(data) is not None
    return f"isornn reproduce {target.id} --scale {scale} --seed {seed}{' --data DATA' if from_files else ''}"


@contextmanager
def _watch(file: Path, asked: tuple[object, ...]) -> Iterator[Callable[[], float]]:
    """Seconds that this measurement has taken, with those of interrupted calls, which ``file`` keeps until its end."""
    kept = read_record(file) if file.exists() else {}
    before = float(kept["seconds"]) if kept.get("of") == list(asked) else 0.0
    begun = time.perf_counter()

    def seconds() -> float:
        return before + time.perf_counter() - begun

    try:
        yield seconds
    except BaseException:
        write_record(file, {"of": asked, "seconds": seconds()})
        raise
    file.unlink(missing_ok=True)


def _known(file: Path, asked: tuple[object, ...]) -> Reproduction | None:
    """The record of the same measurement, if there is one."""
    if not file.exists():
        return None
    known = Reproduction.load(file)
    return known if (known.target, known.scale, known.settings, known.seed, known.data) == asked else None
