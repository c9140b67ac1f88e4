"""Options that several commands share, and how numbers are read."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

T = TypeVar("T")


def whole(text: str) -> int:
    """A whole number.

    Raises:
        BadParameter: names the value and what is allowed; the command line adds the option.
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """A number.

    Raises:
        BadParameter: names the value and what is allowed; the command line adds the option.
    """
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


class OptionNeeded(ValueError):
    """An option that was not given and is needed: names it and says what it is."""

    def __init__(self, option: str, what: str) -> None:
        super().__init__(f"{option} is needed; {what}")


def needed(option: str, value: T | None, what: str) -> T:
    """``value``, which must be given.

    Raises:
        OptionNeeded: it is ``None``.
    """
    if value is None:
        raise OptionNeeded(option, what)
    return value


CellName = Annotated[
    str | None,
    typer.Option(
        "--cell",
        metavar="NAME",
        help="A cell of isornn cells, torch.nn.LSTM, GRU or RNN, or your own by package.module:Class; with options, as "
        "scrn(alpha=0.5).",
    ),
]
AllowImport = Annotated[
    list[str] | None,
    typer.Option("--allow-import", metavar="PACKAGE", help="A package that a file may name cells of; may be repeated."),
]
Hidden = Annotated[int | None, typer.Option("--hidden", metavar="N", parser=whole, help="Hidden units.")]
Inputs = Annotated[int | None, typer.Option("--inputs", metavar="D", parser=whole, help="Inputs per step.")]
Length = Annotated[
    int | None, typer.Option("--length", metavar="T", parser=whole, help="Steps that gradients must cross.")
]
Batch = Annotated[
    Path | None,
    typer.Option("--data", metavar="FILE", help="Inputs (sequences, steps, features), .npy, .npz or .pt."),
]
Variance = Annotated[
    float | None,
    typer.Option("--input-variance", metavar="R", parser=number, help="R = Var x_t; 1 unless given."),
]
Correlation = Annotated[
    float | None,
    typer.Option(
        "--input-correlation",
        metavar="S",
        parser=number,
        help="Cov(x_a, x_b) / R of two sequences, from -1 to 1; 1 unless given.",
    ),
]
InputMean = Annotated[
    float | None,
    typer.Option(
        "--input-mean", metavar="M", parser=number, help="Root mean square of the features' means; 0 unless given."
    ),
]
Autocorrelation = Annotated[
    float | None,
    typer.Option(
        "--input-autocorrelation",
        metavar="A",
        parser=number,
        help="Correlation of successive steps of the input, from 0 to below 1; 0 unless given.",
    ),
]


class GivenInput(NamedTuple):
    """The options of the input law; ``None`` is one that was not given."""

    variance: Variance = None
    correlation: Correlation = None
    mean: InputMean = None
    autocorrelation: Autocorrelation = None


NO_INPUT = GivenInput()


def with_input_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of `GivenInput`, in the place of its parameter ``law``, which has them.

    >>> @with_input_options
    ... def shown(law: GivenInput, json: AsJson = False) -> None:
    ...     print(law.variance)
    >>> list(inspect.signature(shown).parameters)
    ['input_variance', 'input_correlation', 'input_mean', 'input_autocorrelation', 'json']
    >>> shown(input_variance=2.0)
    2.0
    """
    kinds = get_type_hints(GivenInput, include_extras=True)
    prefixed = {f"input_{field}": kind for field, kind in kinds.items()}
    options = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=kind)
        for name, kind in prefixed.items()
    ]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        law = GivenInput(*(given.pop(name, None) for name in prefixed))
        command(law=law, **given)

    # Evaluated here, where the command's own names are known; typer reads it.
    own = inspect.signature(command, eval_str=True)
    parameters = [one for each in own.parameters.values() for one in (options if each.name == "law" else [each])]
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options


Tied = Annotated[bool, typer.Option("--tied", help="Also tied weights, drawn once as in real networks.")]
Steps = Annotated[
    int | None, typer.Option("--steps", metavar="T", parser=whole, help="Steps of tied networks; 60 unless given.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")]
Figure = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE.png", help="Draw the response to a perturbation (.png, .pdf or .svg)."),
]
