"""The command ``isornn``: its subcommands, and one way to report errors.

Subcommands import their dependencies when they run, so that help and errors in options appear at once.
"""

from __future__ import annotations

import gc
import sys
import traceback
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from isornn.cli.analyze import analyze
from isornn.cli.cells import cells
from isornn.cli.compare import compare
from isornn.cli.critical import critical, isometric
from isornn.cli.data import data
from isornn.cli.demo import demo
from isornn.cli.diagnose import diagnose
from isornn.cli.explore import explore
from isornn.cli.groups import Group
from isornn.cli.memory import memory
from isornn.cli.pareto import pareto
from isornn.cli.phase import phase
from isornn.cli.reproduce import reproduce
from isornn.cli.show import say
from isornn.cli.spectrum import spectrum
from isornn.cli.sweep import sweep
from isornn.cli.train import train
from isornn.extras import named
from isornn.interrupts import interrupts_kept

REFUSED, INTERRUPTED, FAILED = 2, 130, 1


class Commands(Group):
    """Bad input ends with code 2 and one line on stderr, an interrupt with 130 and one line; neither with a traceback.

    Bad input is what the command line itself refuses, and a ValueError of this library's own: those name the field,
    the value and what is allowed; and a mistake in a cell's definition, a TypeError of this library's own. A
    RuntimeError of this library's own, such as a training that failed, ends with code 1 and one line. Any other error
    is a bug and is shown with its traceback.
    """

    def main(self, *args: Any, **options: Any) -> NoReturn:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")  # a table with a ? for a Greek letter, where there are none
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except typer.TyperException as error:
            sys.exit(_ended(REFUSED, getattr(error, "format_message", error.__str__)()))
        except typer.Abort:
            sys.exit(_ended(INTERRUPTED, "interrupted"))
        except (TypeError, ValueError, ArithmeticError) as error:
            if not type(error).__module__.startswith("isornn."):
                _end_if_of_own_cell(error)
                raise
            sys.exit(_ended(FAILED if isinstance(error, ArithmeticError) else REFUSED, str(error)))
        except (RuntimeError, LookupError, AttributeError) as error:
            if isinstance(error, RuntimeError) and type(error).__module__.startswith("isornn."):
                sys.exit(_ended(FAILED, str(error)))
            _end_if_of_own_cell(error)
            raise
        except ModuleNotFoundError as error:
            if named(error) is error:
                raise
            sys.exit(_ended(REFUSED, str(named(error))))
        except OSError as error:
            sys.exit(_ended(FAILED, str(error)))
        sys.exit(code if isinstance(code, int) else 0)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help:
            # Of paragraphs beyond the first typer would keep the breaks that lines have in the source.
            found.help = "\n\n".join(" ".join(part.split()) for part in found.help.split("\n\n"))
        return found

    def invoke(self, ctx: Any) -> Any:
        try:
            with interrupts_kept():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None


def _end_if_of_own_cell(error: Exception) -> None:
    """Exit with one line where the error was raised within a method of a cell of the user's own."""
    from isornn.cells import Cell, full_name

    for frame, line in traceback.walk_tb(error.__traceback__):
        cell, method = frame.f_locals.get("self"), frame.f_code.co_name
        if isinstance(cell, Cell) and method in ("read", "update", "output"):
            name = full_name(cell)
            if ":" in name:
                where = f"{Path(frame.f_code.co_filename).name}:{line}"
                sys.exit(_ended(REFUSED, f"{name}.{method}: {type(error).__name__}: {error} ({where})"))


def _ended(code: int, message: str) -> int:
    say(f"isornn: {message}")
    return code


app = typer.Typer(
    cls=Commands,
    name="isornn",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"isornn {version('isornn')}")
        raise typer.Exit


@app.callback()
def isornn(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Over how many steps an untrained recurrent network carries information, and starts that extend it to T."""


for command in (
    cells,
    analyze,
    compare,
    critical,
    demo,
    diagnose,
    explore,
    isometric,
    memory,
    pareto,
    phase,
    reproduce,
    spectrum,
    train,
):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(sweep, name="sweep")


def main() -> None:
    """What the shell calls."""
    try:
        app(sys.argv[1:] or ["--help"], prog_name="isornn")
    finally:
        # Python would search all that is left for cycles, torch's modules too: a second of the processor.
        gc.freeze()
