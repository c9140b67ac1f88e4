"""What is wrong with a specification, an option or a cell's definition, and how an error quotes a value."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SpecError(ValueError):
    """An invalid specification; the message names the field, the value and what is allowed.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> Spec(Vanilla(), {"h": Gate(weight_var=-1.0)})
    Traceback (most recent call last):
    ...
    isornn.cells.errors.SpecError: gates.h.weight_var: -1.0 is not allowed; it must be a finite number from 0 to 1e+12
    """

    def __init__(self, where: str, value: object, allowed: str) -> None:
        super().__init__(f"{where}: {brief(value)} is not allowed; {allowed}")


class OptionError(ValueError):
    """A cell option outside what the cell offers.

    >>> from isornn.cells import Vanilla
    >>> Vanilla("sine")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.OptionError: options.nonlinearity: 'sine' is not one of ...
    """


class CellError(TypeError):
    """A cell whose definition has a mistake; names the cell, the method and what is wrong.

    >>> from isornn.cells import LSTM
    >>> from isornn.cells.definition import check_definition
    >>> class Ours(LSTM):
    ...     states = ("output",)
    >>> check_definition(Ours())
    Traceback (most recent call last):
    ...
    isornn.cells.errors.CellError: ...
    """


def brief(value: object) -> str:
    """The value as an error quotes it: at most 80 characters, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def suggested(given: object, known: Iterable[str]) -> str:
    """A question that names the known word most like ``given``, in any case; first in an error, as the words allowed
    may be many.

    >>> suggested("peepole", ("lstm", "peephole")), suggested("LSTM", ("lstm", "peephole"))
    ('did you mean peephole? ', 'did you mean lstm? ')
    >>> suggested("chess", ("lstm", "peephole"))
    ''
    """
    lower = {word.lower(): word for word in known}
    close = get_close_matches(str(given).lower(), lower, n=1)
    return f"did you mean {lower[close[0]]}? " if close else ""
