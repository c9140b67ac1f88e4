"""``isornn demo``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import Length, whole
from isornn.cli.progress import bars, is_tenth
from isornn.cli.show import check_folder, errors, print_table, say
from isornn.formatting import with_error, with_error_of

if TYPE_CHECKING:
    from isornn.experiments.demo_record import DemoResult
    from isornn.theory.records import Analysis

FIGURE = "demo.png"


def demo(
    length: Length = None,
    updates: Annotated[
        int | None,
        typer.Option("--updates", metavar="K", parser=whole, help="Updates of each training; 300 unless given."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="S", parser=whole, help="Seed of weights, images and noise.")
    ] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Record and figure go there.")] = Path(
        "demo"
    ),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="MNIST's IDX files, or ISORNN_DATA; else the package's digits."),
    ] = None,
) -> None:
    """Predicted reach of four starts of nn.LSTM, and their accuracy at recalling a digit after T - 1 steps of noise."""
    from isornn.experiments import demo as experiment
    from isornn.modes import denormal_mode, denormals_flushed
    from isornn.present import draw_demo
    from isornn.tasks import load_digits

    length = experiment.LENGTH if length is None else length
    updates = experiment.UPDATES if updates is None else updates
    check_folder("--data", data)
    _check(length, updates, seed, output)
    with denormals_flushed():
        denormal_mode()  # starts torch's threads before the theory does
    predicted = _predict(experiment.STARTS, load_digits(data).pixels, length)
    reaches = {name: answer.reach.number() for name, answer in predicted.items()}
    with _progress(updates) as callback:
        result = experiment.run_demo(length, updates, seed, output, data, predicted=reaches, progress=callback)
    draw_demo(output / experiment.RECORD, output / FIGURE)
    _print(result, predicted)
    print(f"figure: {output / FIGURE}")


def _check(length: int, updates: int, seed: int, output: Path) -> None:
    """Check all options before the theory and the training start."""
    from isornn.cells import SpecError

    for option, value, least in (("--length", length, 3), ("--updates", updates, 1), ("--seed", seed, 0)):
        if not least <= value < 2**31:
            raise SpecError(option, value, f"it must be a whole number of at least {least}")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(
            "--output", str(output), f"it must be a folder that can be written to ({error.strerror})"
        ) from None


def _predict(starts: Iterable[str], inputs: int, length: int) -> dict[str, Analysis]:
    """The theory's prediction for each start of the demo's network, said as soon as it is there."""
    from isornn.cells import LSTM, Input
    from isornn.cli.ask import ask_start
    from isornn.experiments.demo_record import DemoSettings

    answers = {}
    with errors().status("") as status:
        for name in starts:
            status.update(f"theory of {name}")
            answers[name] = ask_start(name, LSTM(), DemoSettings.hidden, inputs, length, Input())
            say(f"{name}: predicted reach {with_error(answers[name].reach)} of {length} steps")
    return answers


@contextmanager
def _progress(updates: int) -> Iterator[Callable[[str, int, float], None]]:
    """A bar per start on a terminal's stderr; elsewhere a line for each tenth of the updates."""
    with bars("{task.description:10} loss {task.fields[loss]:.3f}") as shown:
        yield (
            lambda start, update, loss: (
                _line(start, update, updates, loss) if shown is None else shown.show(start, update, updates, loss=loss)
            )
        )


def _line(start: str, update: int, updates: int, loss: float) -> None:
    if is_tenth(update, updates):
        say(f"{start}: update {update} of {updates}, loss {loss:.3f}")


def _print(result: DemoResult, predicted: dict[str, Analysis]) -> None:
    rows = [
        (
            run.start,
            with_error(predicted[run.start].reach),
            with_error(predicted[run.start].chi),
            f"{run.losses[-1]:.3f}",
            f"{run.seconds:.0f}",
            with_error_of(run.accuracy, run.accuracy_error),
        )
        for run in result.runs
    ]
    settings = result.settings
    title = f"nn.LSTM({settings.hidden}), {settings.data}, T = {settings.length}, {settings.updates} updates"
    title += f", {result.device}"
    columns = ("start", "predicted reach, steps", "chi", "training loss", "seconds", "test accuracy")
    print_table(title, columns, rows)
