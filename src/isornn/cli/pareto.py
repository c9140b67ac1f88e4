"""``isornn pareto``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isornn.cli.near_isometry import Biases, Fix, Preference, Ranges, Specs, checked_biases, fixed_fields, objective_of
from isornn.cli.options import (
    NO_INPUT,
    AsJson,
    CellName,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    with_input_options,
)
from isornn.cli.progress import counting
from isornn.cli.show import check_writable, errors, print_json, print_table, say
from isornn.formatting import with_error_of

if TYPE_CHECKING:
    from isornn.theory.critical_points.front import Objective, ParetoFront, Range

_ROWS = 8  # of the front that people are shown


@with_input_options
def pareto(
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    length: Length = None,
    ranges: Ranges = None,
    specs: Specs = None,
    preference: Preference = None,
    fix: Fix = None,
    biases: Biases = "fixed",
    law: GivenInput = NO_INPUT,
    x: Annotated[str | None, typer.Option("--x", metavar="FIELD", help="Field to the right in the picture.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="FIELD", help="Field upwards.")] = None,
    show: Annotated[
        str, typer.Option("--show", help="Colours: score, sight, isometry, variance, time_scales or saturation.")
    ] = "score",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.png", help="Draw the subspace (.png, .pdf or .svg).")
    ] = None,
    json: AsJson = False,
) -> None:
    """Experimental: compare the costs of specs near isometry with reach T, and select one by an objective.

    The best weighted sum is within 2 % of the rule's (isornn isometric), and whether a lower cost improves
    training has not been measured. The result is the same for every N and D, which may be left out.
    """
    from isornn.cli.ask import check_sizes, input_law, needed_cell, needed_length
    from isornn.theory import chosen, pareto_front, subspace

    check_writable("--output", output, (".png", ".pdf", ".svg"))
    check_sizes(hidden, inputs)
    steps, kind = needed_length(length), needed_cell(cell)
    objective = objective_of(preference, ranges, specs)
    fixed = fixed_fields(fix)
    spec, free = subspace(
        kind,
        steps,
        fixed=fixed,
        input=input_law(law),
        biases=checked_biases(biases),
    )
    free = objective.ranges or free
    across, upward = _axes(free, x, y, show, output)
    begun = time.perf_counter()
    with counting("specs", objective.specs) as progress:
        front = pareto_front(spec, steps, free, counted=objective.counted, specs=objective.specs, progress=progress)
    _check_shown(front, show)
    with errors().status("measuring the chosen point"):
        taken = chosen(front, objective)[0]
    seconds = time.perf_counter() - begun
    if json:
        print_json(_as_json(front, objective, taken))
    else:
        _print(front, objective, taken, seconds)
    if output is not None:
        from isornn.present import draw_front

        draw_front(front, across, upward, output, show=show, objective=objective, taken=taken)
        say(f"isornn: figure in {output}")


def _axes(ranges: tuple[Range, ...], x: str | None, y: str | None, show: str, output: Path | None) -> tuple[str, str]:
    """The two fields of the picture, the first two where none are given."""
    from isornn.cells import SpecError
    from isornn.theory import COSTS

    paths = [r.path for r in ranges]
    if show != "score" and show not in COSTS:
        raise SpecError("--show", show, f"it must be one of score, {', '.join(COSTS)}")
    for option, path in (("--x", x), ("--y", y)):
        if path is not None and path not in paths:
            raise SpecError(option, path, f"fields that vary are {', '.join(paths)}")
    if output is None:
        return "", ""
    if len(paths) < 2:
        raise SpecError("--output", str(output), "a picture needs two fields that vary; give --range twice")
    across = x or next(path for path in paths if path != y)
    upward = y or next(path for path in paths if path != across)
    if across == upward:
        raise SpecError("--y", upward, "it must differ from --x")
    return across, upward


def _check_shown(front: ParetoFront, show: str) -> None:
    """Refuse to colour by a cost that the cell does not have."""
    from isornn.cells import SpecError

    if show != "score" and not bool(front.costs[show].defined.any()):
        raise SpecError("--show", show, f"{front.spec.cell.name} has no such cost: {front.costs[show].reasons[0][0]}")


# -- the answer -------------------------------------------------------------------------------------------------------


def _as_json(front: ParetoFront, objective: Objective, taken: int) -> dict[str, Any]:
    """Costs without a value are null; ``undefined`` gives the reasons, with the number of points for each."""
    from isornn.cells import full_name

    paths = [r.path for r in front.ranges]
    score = objective.score(front.costs)
    undefined = {
        name: {reason: int(where.sum()) for reason, where in cost.reasons}
        for name, cost in front.costs.items()
        if cost.reasons
    }
    points = []
    for place, values in enumerate(front.points.tolist()):
        found = {name: cost for name, cost in front.costs.items() if bool(cost.defined[place])}
        points.append(
            {
                "fields": dict(zip(paths, values, strict=True)),
                "costs": {name: float(found[name].value[place]) if name in found else None for name in front.costs},
                "stderr": {name: float(cost.stderr[place]) for name, cost in found.items()},
                "score": float(score.value[place]) if bool(score.defined[place]) else None,
                "front": bool(front.front[place]),
            }
        )
    return {
        "cell": full_name(front.spec.cell),
        "length": front.length,
        "biases": front.spec.biases,
        "ranges": {r.path: {"low": r.low, "high": r.high, "log": r.log} for r in front.ranges},
        "weights": objective.weights,
        "points": points,
        "taken": taken,
        "spec": front.spec_at(taken).to_json(),
        "undefined": undefined,
    }


def _print(front: ParetoFront, objective: Objective, taken: int, seconds: float) -> None:
    from isornn.theory import COSTS

    paths, name = [r.path for r in front.ranges], front.spec.cell.name
    had = [cost for cost in COSTS if bool(front.costs[cost].defined.any())]
    score = objective.score(front.costs)
    best = [taken, *(place for place in front.ranked(objective) if place != taken)][:_ROWS]

    def row(place: int) -> list[str]:
        costs = [front.costs[cost] for cost in had]
        numbers = [_number(float(cost.value[place]), float(cost.stderr[place])) for cost in (score, *costs)]
        return [*(f"{value:.4g}" for value in front.points[place].tolist()), *numbers]

    print(f"{name}, T = {front.length:g}, biases {front.spec.biases}: {len(front.points)} specs in {seconds:.1f} s")
    count, missing = int(front.front.sum()), int((~front.compared).sum())
    lacking = f"; {missing} have a cost without a value and are left out" if missing else ""
    against = ", ".join(cost for cost in front.counted if cost in had)
    print(f"{count} are on the Pareto front of {against}; specs with a reach below T rank last{lacking}")
    print_table("the chosen point, and the next of the front", (*paths, "score", *had), map(row, best))
    for cost in COSTS:
        print(f"{cost}: {COSTS[cost] if cost in had else 'none, ' + front.costs[cost].reasons[0][0]}")


def _number(value: float, error: float) -> str:
    """A cost to four digits, with its error where that shows in them."""
    return with_error_of(value, error if error > 5e-4 * value else None)
