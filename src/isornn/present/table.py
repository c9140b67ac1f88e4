"""A table for the terminal; where that is too narrow for its words, a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_BETWEEN = 3  # characters from one column to the next


class TerminalTable:
    """Rows under columns, for `rich.print`. Where words would have to be broken, each row is a block of its own with a
    line for each column.

    Args:
        columns: their names.
        rows: texts, as many in each as there are columns.
        options: of `rich.table.Table`.

    >>> from rich.console import Console
    >>> table = TerminalTable(("start", "predicted reach, steps"), [("critical", "103.6"), ("torch", "1.48")])
    >>> Console(width=40).print(table)
    ┏━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━━━┓
    ┃ start    ┃ predicted reach, steps ┃
    ┡━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━━━┩
    │ critical │ 103.6                  │
    │ torch    │ 1.48                   │
    └──────────┴────────────────────────┘
    >>> Console(width=20).print(table)  # doctest: +NORMALIZE_WHITESPACE
    start        critical
    predicted    103.6
    reach, steps
    <BLANKLINE>
    start        torch
    predicted    1.48
    reach, steps
    """

    def __init__(self, columns: Sequence[str], rows: Iterable[Sequence[str]], **options: Any) -> None:
        self.columns, self.rows, self.options = tuple(columns), [tuple(row) for row in rows], options

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        texts = list(zip(self.columns, *self.rows, strict=True))
        words = [max(map(_longest_word, column)) for column in texts]
        room = options.max_width - _BETWEEN * len(texts) - 1
        if sum(words) <= room:
            yield self._table(_widths(words, [max(map(_longest_line, column)) for column in texts], room))
            return
        if "title" in self.options:
            yield self.options["title"]
        names = min(max(map(cell_len, self.columns)), options.max_width // 2)
        for place, row in enumerate(self.rows):
            if place:
                yield Text()
            yield self._block(row, names)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(**self.options)
        for column, width in zip(self.columns, widths, strict=True):
            table.add_column(Text(column), width=width, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def _block(self, row: Sequence[str], names: int) -> Table:
        block = Table.grid(padding=(0, 1, 0, 0))
        block.add_column(width=names, overflow="fold")
        block.add_column(overflow="fold")
        for column, value in zip(self.columns, row, strict=True):
            block.add_row(Text(column, style="bold"), Text(value))
        return block


def _widths(least: Sequence[int], wanted: Sequence[int], room: int) -> list[int]:
    """Of columns: what they want as far as there is room, the widest wishes cut first."""
    widths = list(wanted)
    while sum(widths) > room:
        widest = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])
        widths[widest] -= 1
    return widths


def _longest_line(text: str) -> int:
    return max(map(cell_len, text.splitlines()), default=0)


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)
