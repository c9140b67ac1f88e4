"""``isornn sweep``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from isornn.cli.options import AllowImport, AsJson, whole
from isornn.cli.progress import NowAndThen, bars, working
from isornn.cli.show import check_folder, print_json, print_table, printable, say
from isornn.formatting import with_error_of

if TYPE_CHECKING:
    from isornn.training.sweep import SweptRun, Workers
    from isornn.training.sweep.execute import Watch

_BACKENDS = ("loky", "ray")


class SweepCommands(TyperGroup):
    """``isornn sweep FILE.toml`` is short for ``isornn sweep run FILE.toml``, with the same options and help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if known else ["run", *(args or ["--help"])])


sweep = typer.Typer(
    cls=SweepCommands,
    help="Many runs from one file, and their state.",
)


@sweep.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Tables base, grid and runs of configurations.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of the runs; the file's name without .toml unless given."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", parser=whole, help="Runs at a time; one a CPU unless given.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="loky: processes of this machine; ray: of a Ray cluster.")
    ] = "loky",
    address: Annotated[
        str | None,
        typer.Option("--address", help="Ray cluster; unless given, the one that Ray finds, or a new one here."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Files of the tasks that need some; or ISORNN_DATA.")
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", metavar="N", parser=whole, help="Threads of torch in each run; results depend on it."
        ),
    ] = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Run all runs of a sweep file; after an interrupt the same call resumes.

    isornn sweep FILE.toml is short for this; isornn sweep status DIR shows the state of the runs.
    """
    from isornn.cli.own_code import allowed
    from isornn.tasks.data_files import data_folder
    from isornn.training.run import check_installed
    from isornn.training.sweep import SweepError, load_sweep, named_by_hash, run_sweep, train_run

    folder = Path(file.stem) if folder is None else folder
    if folder.exists() and not folder.is_dir():
        raise SweepError("--output", str(folder), "it must be a folder")
    check_folder("--data", data)
    workers = _workers(backend, jobs, threads, address)
    allow = allowed(allow_import)
    check_installed()
    with working(f"reading the runs of {file}"):
        plan = named_by_hash(load_sweep(file), allow=allow)
    files = data_folder(data)
    work = partial(train_run, data=None if files is None else files.absolute(), allow=allow)
    with _progress() as watch:
        try:
            runs = run_sweep(plan, folder, work, workers, watch=watch, retry_failed=retry_failed)
        except KeyboardInterrupt:
            say(f"isornn: what runs had finished is kept in {folder}; the same call resumes from there")
            raise
    _print(folder, runs)
    if all(run.state == "failed" for run in runs):
        raise typer.Exit(1)


@sweep.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep, of single runs, or of one run.")],
    as_json: AsJson = False,
) -> None:
    """The state of a sweep's runs, and the best so far, during the sweep or after it."""
    from isornn.training.sweep import trainings_in

    runs = trainings_in(folder)
    if as_json:
        print_json(_answer(folder, runs))
    else:
        _print(folder, runs)


def _workers(backend: str, jobs: int | None, threads: int, address: str | None) -> Workers:
    from isornn.training.sweep import LocalWorkers, RayWorkers, SweepError, processors

    if backend not in _BACKENDS:
        raise SweepError("--backend", backend, f"it must be one of {', '.join(_BACKENDS)}")
    if backend == "ray":
        return RayWorkers(jobs, threads, address)
    if address is not None:
        raise SweepError("--address", address, "it must be left out without --backend ray")
    return LocalWorkers(processors() if jobs is None else jobs, threads)


@contextmanager
def _progress() -> Iterator[Watch]:
    """Bars on a terminal's stderr, one for the sweep and one for each run at work; elsewhere a line now and then."""
    with bars("{task.fields[what]}") as shown:
        if shown is None:
            yield _lines()
            return

        def watch(runs: list[SweptRun]) -> None:
            ended = sum(run.state in ("finished", "failed") for run in runs)
            shown.show("", ended, len(runs), what=_counted(runs))  # which is no folder's name
            for run in runs:
                if run.state == "running" and run.done is not None:
                    shown.show(run.folder.name, *run.done, what=run.folder.name)
                else:
                    shown.remove(run.folder.name)

        yield watch


def _lines() -> Watch:
    """Prints the state of the runs whenever one has ended, at most every 20 seconds, and at the end."""
    said, due = "", NowAndThen()

    def watch(runs: list[SweptRun]) -> None:
        nonlocal said
        line = _counted(runs)
        ended = all(run.state in ("finished", "failed") for run in runs)
        if line != said and (due() or ended):
            said = line
            say(line)

    return watch


def _counts(runs: Sequence[SweptRun]) -> dict[str, int]:
    from isornn.training.sweep.ledger import STATES

    return {state: sum(run.state == state for run in runs) for state in STATES}


def _counted(runs: Sequence[SweptRun]) -> str:
    return ", ".join(f"{count} {state}" for state, count in _counts(runs).items())


def _loss(run: SweptRun) -> float | None:
    """The lowest loss on the validation part, where the record has one."""
    return _of_best(run, "loss")


def _of_best(run: SweptRun, name: str) -> float | None:
    best = (run.record or {}).get("best")
    value = best.get(name) if isinstance(best, dict) else None
    return value if isinstance(value, int | float) else None


def _shown_loss(run: SweptRun) -> str:
    return with_error_of(_loss(run), _of_best(run, "loss_error"))


def _best(runs: Sequence[SweptRun]) -> SweptRun | None:
    finished = [run for run in runs if run.state == "finished" and _loss(run) is not None]
    return min(finished, key=lambda run: _loss(run) or 0.0, default=None)


def _answer(folder: Path, runs: Sequence[SweptRun]) -> dict[str, Any]:
    best = _best(runs)
    return {
        "folder": str(folder),
        **_counts(runs),
        "best": None if best is None else best.folder.name,
        "runs": [
            {
                "run": run.folder.name,
                "state": run.state,
                "done": run.done,
                "takes": run.takes,
                "configuration": run.configuration,
                "record": run.record,
                "reason": run.reason,
            }
            for run in runs
        ],
    }


def _print(folder: Path, runs: Sequence[SweptRun]) -> None:
    """The runs that are begun or ended, the best first, by the fields in which the sweep's runs differ."""
    from isornn.training.sweep.ledger import STATES

    varied = _varied(runs)
    begun = [(run, fields) for run, fields in varied if run.state != "waiting" or run.done is not None]
    begun.sort(key=lambda row: (STATES.index(row[0].state), _loss(row[0]) or 0.0))
    if begun:
        columns = ("run", *begun[0][1], "state", "updates", "validation loss")
        print_table(str(folder), columns, [_row(run, fields) for run, fields in begun])
    for run in runs:
        if run.reason is not None:
            print(printable(f"{run.folder.name} failed: {run.reason}"))
    print(_counted(runs))
    best = _best(runs)
    if best is not None:
        print(f"best so far: {best.folder.name}, validation loss {_shown_loss(best)}")


def _row(run: SweptRun, fields: dict[str, str]) -> tuple[str, ...]:
    done = "-" if run.done is None else f"{run.done[0]} of {run.done[1]}"
    return (run.folder.name, *fields.values(), run.state, done, _shown_loss(run))


def _varied(runs: Sequence[SweptRun]) -> list[tuple[SweptRun, dict[str, str]]]:
    """Each run with its values of the fields in which not all are the same."""
    from isornn.training.sweep import flattened

    flat = [dict(flattened(run.configuration)) for run in runs]
    names = dict.fromkeys(name for fields in flat for name in fields)
    values = {name: [str(fields.get(name, "-")) for fields in flat] for name in names}
    varied = {name: column for name, column in values.items() if len(set(column)) > 1}
    return [(run, {name: varied[name][k] for name in varied}) for k, run in enumerate(runs)]
