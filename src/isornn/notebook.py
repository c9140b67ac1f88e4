"""HTML for ``_repr_html_``: what notebooks show in place of the text. Everything given is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in the notebook's own style; the first cell of each row is its heading.

    >>> table(["", "xi"], [["l<0>", "3"]])
    '<table><thead><tr><th></th><th>xi</th></tr></thead><tbody><tr><th>l&lt;0&gt;</th><td>3</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><th>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def tag(name: str, text: str) -> str:
    """One element: ``strong``, ``p``, ``small``, ``pre`` ..."""
    return f"<{name}>{escape(text)}</{name}>"


def folded(title: str, inside: str) -> str:
    """HTML under a line that opens it."""
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"
