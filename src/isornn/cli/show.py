"""Output of the commands: one line on stderr, one JSON object or one table on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

from isornn.extras import require

LONGEST_LINE = 400
PIPED_WIDTH = 120


def say(message: str) -> None:
    """``message`` on stderr as one line, whatever it quotes.

    >>> import contextlib
    >>> with contextlib.redirect_stderr(sys.stdout):
    ...     say("gates.a\\nb: not allowed")
    gates.a b: not allowed
    """
    line = printable(" ".join(message.split()))
    line = line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."
    print(line, file=sys.stderr)


def printable(text: str) -> str:
    """``text`` with control characters escaped: names in a file may hold what a terminal takes for commands.

    >>> print(printable("weight" + chr(27) + "[2J"))
    weight\\x1b[2J
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def print_json(answer: dict[str, Any]) -> None:
    """One strict JSON object on stdout."""
    print(json.dumps(answer, indent=1, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], lines: bool = False) -> None:
    """A table on stdout, as wide as the terminal."""
    from isornn.present.table import TerminalTable

    if title:
        print_rich(Text(title, style="table.title"))
    print_rich(TerminalTable(columns, rows, show_lines=lines))


def print_rich(shown: RenderableType) -> None:
    """On stdout, as wide as the terminal; control characters in it are escaped."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
    console = Console(width=wide)
    safe = (
        Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style, segment.control)
        for segment in console.render(shown)
    )
    console.print(Segments(safe), end="", crop=False)


def errors() -> Console:
    """The console for progress."""
    return Console(stderr=True)


# What a file of this kind is drawn with.
_EXTRA_FOR = {".png": "plot", ".pdf": "plot", ".svg": "plot", ".html": "report"}


def check_folder(option: str, folder: Path | None) -> None:
    """Refuse what is given and is no folder.

    Raises:
        SpecError: names the option.
    """
    from isornn.cells import SpecError

    if folder is not None and not folder.is_dir():
        raise SpecError(option, str(folder), "it must be a folder")


def check_writable(option: str, file: Path | None, endings: Sequence[str]) -> None:
    """Refuse a file that cannot be written before anything is computed.

    Raises:
        SpecError: names the option.
        ModuleNotFoundError: what draws it is not installed; names the extra.
    """
    from isornn.cells import SpecError

    if file is None:
        return
    if file.suffix.lower() not in endings:
        raise SpecError(option, str(file), f"its name must end in {' or '.join(endings)}")
    if file.is_dir() or not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
        raise SpecError(option, str(file), "it must be a file in a folder that exists and can be written to")
    extra = _EXTRA_FOR.get(file.suffix.lower())
    if extra is not None:
        require(extra)
