"""``isornn reproduce``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import AsJson, whole
from isornn.cli.progress import NowAndThen, bars
from isornn.cli.show import check_folder, print_json, print_table, say
from isornn.extras import require

if TYPE_CHECKING:
    from isornn.experiments.reproduce import Reproduction
    from isornn.experiments.target import Progress, Scale, Target

_SECONDS_BETWEEN_LINES = 60.0


def reproduce(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A target; all; list: what there is; report: the records, in Markdown."),
    ] = "list",
    scale: Annotated[
        str,
        typer.Option(
            "--scale",
            metavar="SCALE",
            help="small (ten minutes on two cores), medium (three hours at most, can decide) or paper.",
        ),
    ] = "small",
    seed: Annotated[int, typer.Option("--seed", metavar="S", parser=whole, help="Seed of all random numbers.")] = 0,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Records and figures go to DIR/SCALE.")
    ] = Path("results"),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Data files; else ISORNN_DATA's, else the package's digits."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", parser=whole, help="Processes that train.")] = 2,
    json: AsJson = False,
) -> None:
    """Reproduce a figure, table or statement of the papers, and report whether its claim holds."""
    from isornn.experiments.target import SCALES, TargetError, target_ids, target_named
    from isornn.tasks.data_files import data_folder

    require("train")
    if scale not in SCALES:
        raise TargetError(f"scale: {scale!r} is not allowed; it must be one of {', '.join(SCALES)}")
    if not 0 <= seed < 2**63:
        raise TargetError(f"seed: {seed} is not allowed; it must be at least 0 and below 2**63")
    if jobs < 1:
        raise TargetError(f"jobs: {jobs} is not allowed; it must be at least 1")
    if target == "list":
        _list([target_named(name) for name in target_ids()], json)
        return
    if target == "report":
        print(_report(output))
        return
    check_folder("--data", data)
    data_folder(data)  # that of ISORNN_DATA, where none is given
    chosen = [target_named(name) for name in (target_ids() if target == "all" else [target])]
    folder = output / scale
    if target == "all":
        found = _all([one for one in chosen if scale in one.settings], scale, seed, folder, data, jobs)
    else:
        found = [_reproduced(one, scale, seed, folder, data, jobs) for one in chosen]
    if json:
        print_json({"reproductions": [vars(one) | {"verdict": one.verdict.to_mapping()} for one in found]})
    else:
        rows = [(one.target, one.verdict.answer, one.verdict.why, f"{one.seconds:.0f}") for one in found]
        print_table(f"Reproductions at scale {scale}", ("target", "verdict", "why", "seconds"), rows, lines=True)
        print(f"records and figures: {folder}")


def _report(results: Path) -> str:
    from isornn.experiments.report import report
    from isornn.experiments.target import SCALES, TargetError

    if not any(file for scale in SCALES for file in results.glob(f"{scale}/*.json")):
        where = f"it must be a folder with records in {', '.join(SCALES[:-1])} or {SCALES[-1]}"
        raise TargetError(f"--output: {str(results)!r} is not allowed; {where}")
    return report(results)


def _list(targets: list[Target], json: bool) -> None:
    if json:
        listed = [
            {
                "id": one.id,
                "source": one.source,
                "claim": one.claim,
                "published": one.published,
                "scales": [*one.settings],
            }
            for one in targets
        ]
        print_json({"targets": listed})
        return
    rows = [(one.id, one.source, one.claim, ", ".join(one.settings)) for one in targets]
    print_table("Targets", ("target", "source", "claim", "scales"), rows, lines=True)


def _all(
    targets: list[Target], scale: Scale, seed: int, folder: Path, data: Path | None, jobs: int
) -> list[Reproduction]:
    """Reproduce the targets whose data are available; print the reason for the others."""
    from isornn.tasks import DataError

    found = []
    for target in targets:
        try:
            found.append(_reproduced(target, scale, seed, folder, data, jobs))
        except DataError as error:
            say(f"{target.id}: not measured: {error}")
    return found


def _reproduced(target: Target, scale: Scale, seed: int, folder: Path, data: Path | None, jobs: int) -> Reproduction:
    from isornn.experiments.reproduce import reproduce as measure
    from isornn.present import draw_panels

    with _progress(target.id) as progress:
        found = measure(target, scale, folder, data=data, seed=seed, jobs=jobs, progress=progress)
    draw_panels(f"{target.id}: {target.source}", target.panels(found.measured), folder / f"{target.id}.png")
    return found


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    with bars("{task.description}: {task.fields[what]}") as shown:
        yield (_lines(name) if shown is None else lambda what, done, of: shown.show(name, done, of, what=what))


def _lines(name: str) -> Progress:
    """A line a minute, for a log."""
    due = NowAndThen(_SECONDS_BETWEEN_LINES, at_once=True)

    def progress(what: str, done: int, of: int) -> None:
        if due():
            say(f"{name}: {what}, {done} of {of}")

    return progress
