"""Whether what was given for a cell is one, and its class attributes have the types that everything relies on."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from keyword import iskeyword
from math import isfinite

from isornn.cells.arguments import is_number
from isornn.cells.cell import Cell, ParameterLaw, Reads, undeclared_attributes
from isornn.cells.errors import CellError, OptionError


def check_definition(cell: object) -> None:
    """Check a cell before anything reads its attributes. The methods are not called: see `isornn.cells.trace.graph_of`.

    Raises:
        OptionError: it is no cell, but a name or a class; options that are not hashable.
        CellError: ``name``, ``states``, ``gates`` or ``parameters`` of another form; a name that is no
            identifier; a state called ``output`` or ``x``; an attribute that is no field.

    >>> check_definition("lstm")
    Traceback (most recent call last):
    ...
    isornn.cells.errors.OptionError: cell: 'lstm' is not allowed; it must be a cell, as isornn.cells.LSTM(), and \
isornn.cells.cell_named gives one by name
    """
    if isinstance(cell, type) and issubclass(cell, Cell):
        raise OptionError(f"cell: the class {cell.__name__} is not allowed; it must be an instance, {cell.__name__}()")
    if not isinstance(cell, Cell):
        allowed = "it must be a cell, as isornn.cells.LSTM(), and isornn.cells.cell_named gives one by name"
        raise OptionError(f"cell: {cell!r} is not allowed; {allowed}")
    name = getattr(cell, "name", None)
    if not isinstance(name, str):
        raise CellError(f"{type(cell).__name__}.name: {name!r} is not a string, as name = 'mgu'")
    states, gates = cell.states, getattr(cell, "gates", None)
    if not (isinstance(states, tuple) and states and all(isinstance(state, str) for state in states)):
        raise CellError(f"{name}.states: {states!r} is not a tuple of names")
    if not (isinstance(gates, Mapping) and gates and all(isinstance(reads, Reads) for reads in gates.values())):
        raise CellError(f"{name}.gates: {gates!r} is not a mapping from names to isornn.cells.Reads")
    numbers = cell.parameters
    if not (
        isinstance(numbers, Mapping)
        and all(isinstance(value, ParameterLaw) or (is_number(value) and isfinite(value)) for value in numbers.values())
    ):
        raise CellError(f"{name}.parameters: {numbers!r} is not a mapping from names to finite numbers or laws")
    for field, names in (("states", states), ("gates", gates), ("parameters", numbers)):
        wrong = [one for one in names if not (isinstance(one, str) and one.isidentifier() and not iskeyword(one))]
        if wrong:
            raise CellError(f"{name}.{field}: {wrong[0]!r} is not allowed; a name is an identifier, as forget_gate")
        twice = [one for place, one in enumerate(names) if one in tuple(names)[:place]]
        if twice:
            raise CellError(f"{name}.{field}: {twice[0]!r} is there twice")
    if "x" in states:
        raise CellError(f"{name}.states: 'x' is not allowed; it is the name of the input")
    if "output" in states:
        raise CellError(f"{name}.states: 'output' is not allowed; it must be the name of what the cell gives out")
    for attribute in undeclared_attributes(cell):
        raise CellError(
            f"{name}: {attribute} is no field; options are annotated in a class decorated with @dataclass(frozen=True)"
        )
    for method, arguments in (("read", ("gate", "s", "u")), ("update", ("s", "u", "x")), ("output", ("s", "u"))):
        try:
            signature(getattr(cell, method)).bind(*arguments)
        except TypeError as error:
            raise CellError(f"{name}.{method}: it is called as {method}({', '.join(arguments)}): {error}") from None
    both = [number for number in numbers if number in gates]
    if both:
        raise CellError(f"{name}.parameters: {both[0]!r} is a gate's name too")
    try:
        hash(cell)
    except TypeError as error:
        raise OptionError(f"options: the values of {name}'s must be hashable ({error})") from None
