"""``isornn train``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.options import AllowImport, whole
from isornn.cli.progress import bars, is_tenth
from isornn.cli.show import check_folder, print_table, say
from isornn.files import parse_toml, read_toml
from isornn.formatting import with_error_of

if TYPE_CHECKING:
    from isornn.training import Configuration, RunRecord, State
    from isornn.training.configuration import Choice
    from isornn.training.run import Device

_SET = "it must be FIELD=VALUE, as optimiser.rate=1e-3"


def train(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The run's configuration.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of this run alone; runs/HASH unless given."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="The task's files; else ISORNN_DATA's, else the package's digits for images."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Another value for a field, as optimiser.rate=1e-3; may be repeated."
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    devices: Annotated[
        int, typer.Option("--devices", metavar="N", parser=whole, help="Processes that share each batch.")
    ] = 1,
    allow_import: AllowImport = None,
) -> None:
    """Train a network from a configuration file; a second call after an interrupt resumes."""
    from isornn.cells import SpecError
    from isornn.training.metrics import CHECKPOINT
    from isornn.training.run import first_process, run

    if output is not None and output.exists() and not output.is_dir():
        raise SpecError("--output", str(output), "it must be a folder")
    check_folder("--data", data)
    configuration = _configuration(file, changes or [], allow_import)
    folder = Path("runs") / configuration.hash if output is None else output
    trained = False

    def note(state: State) -> None:
        nonlocal trained
        trained = True

    with _progress(configuration.updates) as after_update:
        try:
            record = run(
                configuration,
                folder,
                data=data,
                on_update=[after_update, note],
                device=_checked(device),
                devices=_positive(devices),
            )
        except KeyboardInterrupt:
            if (folder / CHECKPOINT).exists():
                say(f"isornn: the last checkpoint is kept in {folder}; the same call resumes from there")
            raise
    if not first_process():
        return
    if not trained:
        say(f"isornn: no update was left to do: the run in {folder} had ended")
    _print(record)
    print(f"record: {folder / 'record.json'}")
    if record.diverged is not None:
        say(f"isornn: training diverged: {record.diverged}")
        raise typer.Exit(1)


def _configuration(file: Path, changes: Sequence[str], allow_import: Sequence[str] | None) -> Configuration:
    from isornn.cells import SpecError
    from isornn.cli.own_code import allowed
    from isornn.training import Configuration
    from isornn.training.sweep.plan import changed, with_values

    try:
        table = read_toml(file)
    except OSError as error:
        raise SpecError("FILE.toml", str(file), f"it must be a file that can be read ({error.strerror})") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SpecError("FILE.toml", str(file), f"it must be TOML ({error})") from None
    given = with_values(changed({}, table, "FILE.toml"), _changes(changes).items(), "--set")
    return Configuration.from_mapping(given, allow=allowed(allow_import))


def _changes(texts: Sequence[str]) -> dict[str, Any]:
    """The values of ``--set`` by their fields.

    Raises:
        SpecError: no field and value, a field a second time, or a table that one of its fields was set in before.
    """
    from isornn.cells import SpecError
    from isornn.training.sweep.plan import lies_within

    found: dict[str, Any] = {}
    for text in texts:
        field, value = _change(text)
        for earlier, known in found.items():
            if lies_within(earlier, field):
                raise SpecError("--set", text, f"{field} is set once, and {earlier} is {known!r} already")
        found[field] = value
    return found


def _change(text: str) -> tuple[str, Any]:
    """``optimiser.rate=1e-3`` as the field and its value; what is no TOML is a word."""
    from isornn.cells import SpecError

    field, equals, value = text.partition("=")
    if not (field and equals):
        raise SpecError("--set", text, _SET)
    try:
        return field, parse_toml(f"value = {value}")["value"]
    except ValueError:
        return field, value


def _checked(device: str) -> Device:
    from isornn.cells import SpecError
    from isornn.training.run import DEVICES

    if device not in DEVICES:
        raise SpecError("--device", device, "it must be auto, cpu or cuda")
    return device


def _positive(devices: int) -> int:
    from isornn.cells import SpecError

    if devices < 1:
        raise SpecError("--devices", devices, "it must be a whole number of at least 1")
    return devices


@contextmanager
def _progress(updates: int) -> Iterator[Callable[[State], None]]:
    """A bar on a terminal's stderr; elsewhere a line for each tenth of the updates."""
    with bars("loss {task.fields[loss]:.4g}") as shown:
        yield (
            lambda state: (
                _line(state, updates)
                if shown is None
                else shown.show("updates", state.update, updates, loss=state.loss)
            )
        )


def _line(state: State, updates: int) -> None:
    if is_tenth(state.update, updates):
        say(f"update {state.update} of {updates}, loss {state.loss:.4g}")


def _print(record: RunRecord) -> None:
    parts = {
        f"validation, update {record.best_update} (best)": record.best,
        "validation, last": record.last,
        "test, best weights": record.test,
    }
    evaluated = {name: metrics for name, metrics in parts.items() if metrics is not None}
    columns = [name for name in next(iter(evaluated.values()), {}) if not name.endswith("_error")]
    rows = [
        (name, *(with_error_of(metrics.get(column), metrics.get(f"{column}_error")) for column in columns))
        for name, metrics in evaluated.items()
    ]
    title = f"{_named(record.configuration.model)}, {_with_source(record.data)}, {record.seconds:.0f} s"
    if record.baseline is not None:
        title += f", loss without memory {with_error_of(record.baseline)}"
    if rows:
        print_table(title, ("", *columns), rows)
    else:
        print(f"{title}; it ended before its first validation")


def _with_source(data: str) -> str:
    """A task's name and where its data is from: ``adding(10); generated`` in words."""
    from isornn.tasks.task import GENERATED

    name, _, source = data.partition("; ")
    return f"{name} (data: {'drawn at random by the task, no files' if source == GENERATED else source})"


def _named(model: Choice) -> str:
    """A model by its cell and size: ``lstm(16, 2 layers, bidirectional)``."""
    size = [str(model["hidden"])]
    if model["layers"] > 1:
        size.append(f"{model['layers']} layers")
    if model["bidirectional"]:
        size.append("bidirectional")
    return f"{model.name}({', '.join(size)})"
