"""Options of the commands that look for a spec near isometry, and what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.options import whole

if TYPE_CHECKING:
    from isornn.theory.critical_points.front import Objective, Range

_FORM = "FIELD=LOW:HIGH[:log]"
_EQUAL = "equal"

Fix = Annotated[
    list[str] | None, typer.Option("--fix", metavar="FIELD=VALUE", help="A field to keep, as f.input_var=1.")
]
Biases = Annotated[str, typer.Option("--biases", help="fixed: drawn once; redrawn: at each step.")]
Preference = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="COST=WEIGHT,...",
        help="Experimental: weights of isometry, variance, time_scales and saturation (1 if not named, 0: left out), "
        "or equal.",
    ),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option("--range", metavar=_FORM, help="A field to vary; may be repeated. Without: the cell's own."),
]
Specs = Annotated[
    int | None, typer.Option("--specs", metavar="N", parser=whole, help="How many specs to look at, 128 unless given.")
]


def objective_of(preference: str | None, ranges: list[str] | None, specs: int | None) -> Objective:
    """The objective of ``--objective``, ``--range`` and ``--specs``.

    Raises:
        SpecError: names the option or the field.
    """
    from isornn.cells import SpecError
    from isornn.theory.critical_points.front import WEIGHTED, Objective

    weights: dict[str, Any] = {}
    for part in [] if preference in (None, _EQUAL) else str(preference).split(","):
        name, _, value = part.partition("=")
        if name not in WEIGHTED or name in weights:
            raise SpecError(
                "--objective", preference, f"it must be {_EQUAL} or COST=WEIGHT,... of {', '.join(WEIGHTED)}"
            )
        try:
            weights[name] = float(value)
        except ValueError:
            raise SpecError("--objective", preference, "a WEIGHT is a number of at least 0") from None
    if specs is not None:
        weights["specs"] = specs
    return Objective(ranges=tuple(map(_range, ranges or [])), **weights)


def fixed_fields(texts: list[str] | None) -> dict[str, float]:
    """Each ``f.input_var=1`` as a field and a number.

    Raises:
        SpecError: it is something else, or gives a field a second time.
    """
    from isornn.cells import SpecError

    found: dict[str, float] = {}
    for text in texts or []:
        field, _, value = text.partition("=")
        if field in found:
            raise SpecError("--fix", text, f"{field} is fixed once, and is {found[field]:g} already")
        try:
            if not field:
                raise ValueError
            found[field] = float(value)
        except ValueError:
            raise SpecError("--fix", text, "it must be FIELD=NUMBER, as f.input_var=1") from None
    return found


def checked_biases(biases: str) -> Any:
    """``fixed`` or ``redrawn``.

    Raises:
        SpecError: neither.
    """
    from isornn.cells import SpecError

    if biases not in ("fixed", "redrawn"):
        raise SpecError("biases", biases, 'it must be "redrawn" or "fixed"')
    return biases


def _range(text: str) -> Range:
    """``f.weight_var=1e-5:1:log`` as a range."""
    from isornn.cells import SpecError
    from isornn.theory.critical_points.front import Range

    field, _, numbers = text.partition("=")
    parts = numbers.split(":")
    try:
        low, high = float(parts[0]), float(parts[1])
    except (ValueError, IndexError):
        raise SpecError("--range", text, f"it must be {_FORM}, as f.weight_var=1e-5:1:log") from None
    if parts[2:] not in ([], ["log"]):
        raise SpecError("--range", text, f"it must be {_FORM}, as f.weight_var=1e-5:1:log")
    return Range(field, low, high, log=bool(parts[2:]))
