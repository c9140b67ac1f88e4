"""``isornn memory``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import AsJson, whole
from isornn.cli.progress import bars
from isornn.cli.show import check_writable, print_json, print_table, say
from isornn.formatting import with_error_of

if TYPE_CHECKING:
    from isornn.lookback import Memory

_NAMES = {"batch": "inputs", "target": "targets", "longest": "--longest", "per_step": "--per-step"}


def memory(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA.npz", help="Arrays inputs, targets and, where sequences differ, lengths."),
    ],
    longest: Annotated[
        int | None,
        typer.Option("--longest", metavar="L", parser=whole, help="Look back at most L steps; all steps unless given."),
    ] = None,
    per_step: Annotated[
        bool | None,
        typer.Option(
            "--per-step/--per-sequence",
            help="One target per step, or one per sequence; unless given, per step where the targets' second axis has "
            "as many entries as the sequences have steps.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", parser=whole, help="Seed of random numbers.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw the score against L (.png, .pdf or .svg).")
    ] = None,
    json: AsJson = False,
) -> None:
    """How many of the last steps a target depends on, from data alone: what to give to --length.

    inputs: (sequences, steps, features), or (sequences, steps) of whole numbers. targets: one per sequence or one per
    step; whole numbers are classes.
    """
    from torch import Generator

    from isornn.cells import SpecError
    from isornn.cli.data_files import read_data_set
    from isornn.lookback import memory as measured

    check_writable("--plot", plot, (".png", ".pdf", ".svg"))
    if not 0 <= seed < 2**63:
        raise SpecError("--seed", seed, "it must be at least 0 and below 2**63")
    arrays = read_data_set("DATA.npz", data, needed=("inputs", "targets"))
    with _progress() as progress, _named_as_in_the_file():
        found = measured(
            arrays["inputs"],
            arrays["targets"],
            lengths=arrays.get("lengths"),
            longest=longest,
            per_step=per_step,
            generator=Generator().manual_seed(seed),
            progress=progress,
        )
    if json:
        print_json(found.to_dict())
    else:
        _print(found)
    if plot is not None:
        from isornn.present import draw_memory

        draw_memory(found, plot)
        say(f"isornn: figure in {plot}")


@contextmanager
def _named_as_in_the_file() -> Iterator[None]:
    """Errors name the file's arrays and the options in place of the function's arguments."""
    from isornn.lookback.rows import DataError

    try:
        yield
    except DataError as error:
        name, colon, rest = str(error).partition(":")
        raise DataError(_NAMES.get(name, name) + colon + rest.replace("batch[", "inputs[")) from None


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal's stderr, and nothing elsewhere."""
    with bars(columns=(), transient=True) as shown:
        yield lambda share: None if shown is None else shown.show("regressions", share, 1.0)


def _print(found: Memory) -> None:
    print(found)
    rows = [
        (str(length), with_error_of(score, error))
        for length, score, error in zip(found.lengths, found.scores, found.errors, strict=True)
    ]
    if rows:
        print_table("", ("last steps", found.score), rows)
    if found.needed == 1:
        print("The last step alone predicts it: no layer needs a start for longer memory.")
    elif found.needed is not None:
        print(f"isornn.init.critical_(module, length={found.needed}, batch=batch)")
