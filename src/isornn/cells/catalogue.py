"""Cells by the name that files and the command line use: a catalogue cell's own, or ``package.module:Class``.

The catalogue is all cells that the modules of `isornn.cells` define; a new file there adds its cell.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any

from isornn.cells.cell import Cell
from isornn.cells.definition import check_definition
from isornn.cells.errors import CellError, OptionError, brief, suggested
from isornn.cells.trace import graph_of

_OF_THE_PAPERS = ("vanilla", "minimal", "gru", "gru_cho", "lstm", "peephole", "t_rnn", "t_lstm", "t_gru")
OF_TORCH = {"torch.nn.RNN": "vanilla", "torch.nn.LSTM": "lstm", "torch.nn.GRU": "gru"}
"""The cells that torch's modules have, by the names of these."""
_FORM = "NAME or NAME(option=value, ...), where NAME is a cell's or package.module:Class"


def cell_named(name: str, options: Mapping[str, Any] | None = None, *, allow: Sequence[str] = ()) -> Cell:
    """The cell called ``name`` with its ``options``.

    Args:
        name: a cell of the catalogue or of `OF_TORCH`, or ``"package.module:Class"``; either also with options, as
            ``"lstm(gate='hard_sigmoid')"``, values as Python's literals.
        options: by name; none of those in ``name``.
        allow: packages and modules that may be imported, with all that they hold. The name may come from a file, so a
            module is otherwise taken only where it is imported already.

    Raises:
        OptionError: unknown name, unknown option or value, a module that may not be imported or does not import, a
            class that is no cell; the message says what is allowed.
        CellError: the definition of a cell that is not the catalogue's has a mistake.

    >>> cell_named("lstm", {"gate": "hard_sigmoid"})
    LSTM(gate='hard_sigmoid')
    >>> cell_named("lstm(gate='hard_sigmoid')")
    LSTM(gate='hard_sigmoid')
    >>> cell_named("isornn.cells.lstm:LSTM(gate='hard_sigmoid')")
    LSTM(gate='hard_sigmoid')
    >>> cell_named("antigravity:Cell")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.OptionError: cell: 'antigravity' is not imported, and a file may not ask for that; import \
it first, or allow it by name (--allow-import antigravity)
    """
    kind, within = kind_named(name, allow=allow)
    given = dict(options or {})
    twice = [option for option in within if option in given]
    if twice:
        raise OptionError(f"options.{twice[0]}: {given[twice[0]]!r} is not allowed, because {name!r} sets it too")
    cell = with_options(kind, within | given)
    if not in_catalogue(kind):
        try:
            check_definition(cell)
            graph_of(cell)
        except (CellError, OptionError):
            raise
        except Exception as error:  # the class is the user's own
            raise CellError(f"{cell.name}: {type(error).__name__}: {error}") from error
    return cell


def kind_named(name: str, *, allow: Sequence[str] = ()) -> tuple[type[Cell], dict[str, Any]]:
    """The class of the cell called ``name``, and the options that the name itself has. As `cell_named`.

    >>> kind_named("isornn.cells.typed:SCRN(alpha=0.5)")
    (<class 'isornn.cells.typed.SCRN'>, {'alpha': 0.5})
    >>> kind_named("torch.nn.LSTM")
    (<class 'isornn.cells.lstm.LSTM'>, {})
    """
    known = CELLS | FURTHER_CELLS | {torchs: CELLS[ours] for torchs, ours in OF_TORCH.items()}
    if isinstance(name, str) and name.partition("(")[0] in known:
        plain, options = _called(name, name)
        return known[plain], options
    if not isinstance(name, str) or ":" not in name:
        raise OptionError(
            f"cell: {suggested(name, known)}{name!r} is not one of {', '.join(known)}, nor package.module:Class, "
            "nor one of these with (option=value, ...)"
        )
    module, path, options = _parsed(name)
    return _class(_imported(module, allow), path), options


def without_options(name: str) -> str:
    """A cell's name less the options in it.

    >>> without_options("scrn(alpha=0.5)"), without_options("isornn.cells.typed:SCRN(alpha=0.5)")
    ('scrn', 'isornn.cells.typed:SCRN')
    """
    return ":".join(_parsed(name)[:2]) if ":" in name.partition("(")[0] else name.partition("(")[0]


def with_options(kind: type[Cell], options: Mapping[str, Any]) -> Cell:
    """The cell of this kind with its ``options``; lists, as files have them, become tuples.

    Raises:
        OptionError: unknown option or value; the message names what is allowed.

    >>> from isornn.cells import LSTM
    >>> with_options(LSTM, {"gate": "sigmoid"})
    LSTM(gate='sigmoid')
    """
    offered = option_names(kind)
    for option in options:
        if option not in offered:
            close, allowed = suggested(option, offered), f"{kind.name} has {', '.join(offered) or 'none'}"
            raise OptionError(f"options.{option}: {brief(options[option])} is not allowed; {close}{allowed}")
        if isinstance(options[option], int) and abs(options[option]) >= 2**63:
            raise OptionError(f"options.{option}: {options[option]} is not allowed; whole numbers are below 2**63")
    try:
        return kind(**{option: _frozen(value) for option, value in options.items()})
    except OptionError:
        raise
    except Exception as error:  # the class may be the user's own
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise OptionError(f"options: {kind.__name__}({given}): {type(error).__name__}: {error}") from error


def option_names(kind: type[Cell]) -> list[str]:
    """The options of a kind of cell: its dataclass fields.

    >>> from isornn.cells import LSTM
    >>> option_names(LSTM)
    ['gate']
    """
    return [field.name for field in fields(kind) if field.init]


def full_name(cell: Cell) -> str:
    """The name by which `cell_named` finds the cell's class.

    >>> from isornn.cells import LSTM
    >>> full_name(LSTM())
    'lstm'
    """
    kind = type(cell)
    return kind.name if in_catalogue(kind) else f"{kind.__module__}:{kind.__qualname__}"


def in_catalogue(kind: type[Cell]) -> bool:
    """Whether the catalogue has this very class."""
    name = getattr(kind, "name", None)
    return name is not None and (CELLS | FURTHER_CELLS).get(name) is kind


def importable(kind: type[Cell]) -> bool:
    """Whether another process finds the class by its module and name."""
    module = sys.modules.get(kind.__module__)
    return module is not None and kind.__module__ != "__main__" and _attribute(module, kind.__qualname__) is kind


def by_name(kinds: Iterable[type[Cell]]) -> dict[str, type[Cell]]:
    """Classes of cells by their names.

    Raises:
        ValueError: two have one name.
    """
    found: dict[str, type[Cell]] = {}
    for kind in kinds:
        if kind.name in found:
            raise ValueError(f"name: {kind.name!r} is that of {found[kind.name].__name__} and of {kind.__name__}")
        found[kind.name] = kind
    return found


def _parsed(name: str) -> tuple[str, str, dict[str, Any]]:
    """Module, class and options of ``package.module:Class(option=value)``."""
    module, _, rest = name.partition(":")
    path, options = _called(name, rest)
    if not all(part.isidentifier() for part in module.split(".")):
        raise OptionError(f"cell: {name!r} is not {_FORM}")
    return module, path, options


def _called(name: str, text: str) -> tuple[str, dict[str, Any]]:
    """Path and options of the part ``path(option=value)`` of a cell's name."""
    try:
        expression = ast.parse(text, mode="eval").body
        call = expression if isinstance(expression, ast.Call) else ast.Call(expression, [], [])
        path, options = ast.unparse(call.func), {key.arg: ast.literal_eval(key.value) for key in call.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        example = "lstm(gate='hard_sigmoid')"
        raise OptionError(f"cell: {name!r} is not {_FORM}, with literals for values, as {example}") from None
    plain = all(part.isidentifier() for part in path.split("."))
    if not plain or call.args or None in options or len(options) < len(call.keywords):
        raise OptionError(f"cell: {name!r} is not {_FORM}, options by name and each option once")
    return path, {str(option): value for option, value in options.items()}


def _imported(module: str, allow: Sequence[str]) -> ModuleType:
    allowed = any(f"{module}.".startswith(f"{package}.") for package in allow)
    if module not in sys.modules and not allowed:
        raise OptionError(
            f"cell: {module!r} is not imported, and a file may not ask for that; import it first, or allow it by name "
            f"(--allow-import {module.partition('.')[0]})"
        )
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise OptionError(f"cell: {module!r} does not import: {type(error).__name__}: {error}") from error


def _class(module: ModuleType, path: str) -> type[Cell]:
    found, where = _attribute(module, path), f"cell: {module.__name__}:{path}"
    if found is None:
        cells = [
            n
            for n, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, Cell) and kind is not Cell
        ]
        there = f"; its cells are {', '.join(sorted(cells))}" if cells else ""
        raise OptionError(f"{where}: the module has no such class{there}")
    if not (isinstance(found, type) and issubclass(found, Cell)):
        raise OptionError(f"{where}: it is no cell, a subclass of isornn.cells.Cell")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise OptionError(f"{where}: it is abstract, without {missing}")
    if "__dataclass_params__" not in vars(found):
        raise OptionError(f"{where}: it is no frozen dataclass; @dataclass(frozen=True) makes it one")
    if not isinstance(getattr(found, "name", None), str):
        raise OptionError(f"{where}: it has no name, as name = 'mgu'")
    return found


def _attribute(module: ModuleType, path: str) -> Any:
    """What is written there; nothing that a module or a class computes when it is asked, as no code may be run."""
    found: Any = module
    for part in path.split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _defined() -> Iterator[type[Cell]]:
    """Every concrete class of cells that a module of this package defines and names."""
    package = __name__.rpartition(".")[0]
    for found in pkgutil.iter_modules(sys.modules[package].__path__):
        module = importlib.import_module(f"{package}.{found.name}")
        for kind in vars(module).values():
            own = isinstance(kind, type) and issubclass(kind, Cell) and kind.__module__ == module.__name__
            if own and hasattr(kind, "name") and not inspect.isabstract(kind):
                yield kind


# At the end: some of the package's modules import the functions above.
_ALL = by_name(_defined())
CELLS: dict[str, type[Cell]] = {name: _ALL[name] for name in _OF_THE_PAPERS}
FURTHER_CELLS: dict[str, type[Cell]] = {name: kind for name, kind in _ALL.items() if name not in CELLS}
