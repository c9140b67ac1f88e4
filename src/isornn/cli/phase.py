"""``isornn phase``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isornn.cli.options import (
    NO_INPUT,
    AllowImport,
    CellName,
    GivenInput,
    Hidden,
    Inputs,
    Length,
    Steps,
    needed,
    with_input_options,
)
from isornn.cli.progress import counting
from isornn.cli.show import check_writable, say
from isornn.formatting import rounded, share

if TYPE_CHECKING:
    from torch import Tensor

    from isornn.cells import Input, Spec
    from isornn.theory.phase import PhaseDiagram
    from isornn.theory.quantity import Quantity

_FIGURES = (".png", ".pdf", ".svg")
_ENDINGS = (*_FIGURES, ".npz", ".json")
_MOST = 1_000_000  # specs of a map
_FORM = "FIELD=FROM:TO:COUNT[:log]"
_AXIS = f"it must be {_FORM}, as z.bias_mean=0:6:100"
_OVERLAY = "it must be K:T, as 6:100: a line where 6 xi = 100"

Line = tuple[str, list[float]]


@with_input_options
def phase(
    spec: Annotated[Path | None, typer.Argument(metavar="[SPEC.json]", help="A spec file; or --cell.")] = None,
    x: Annotated[str | None, typer.Option("--x", metavar=_FORM, help="Axis to the right.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar=_FORM, help="Axis upwards.")] = None,
    show: Annotated[
        str,
        typer.Option(
            "--show",
            help="xi, chi, chi_1, reach, m1, variance, second_moment or correlation; with --tied also lyapunov, "
            "without reach, m1 and variance.",
        ),
    ] = "xi",
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Picture (.png, .pdf, .svg), .npz or .json; may be repeated."
        ),
    ] = None,
    overlay: Annotated[
        list[str] | None,
        typer.Option("--overlay", metavar="K:T", help="Draw the line K xi = T, as 6:100; may be repeated."),
    ] = None,
    cell: CellName = None,
    hidden: Hidden = None,
    inputs: Inputs = None,
    init: Annotated[
        str | None,
        typer.Option("--init", metavar="START", help="As in analyze; without: all variances of weights 1, biases 0."),
    ] = None,
    length: Length = None,
    law: GivenInput = NO_INPUT,
    tied: Annotated[
        bool, typer.Option("--tied", help="Tied weights, drawn once as in real networks, in place of untied ones.")
    ] = False,
    steps: Steps = None,
    allow_import: AllowImport = None,
) -> None:
    """A map of the theory's quantities over two hyper-parameters, with the critical line."""
    from isornn.cells import SpecError
    from isornn.cli.ask import alone, input_law, loaded, tied_steps
    from isornn.theory.phase import FEWEST_TIED_STEPS, QUANTITIES, TIED_QUANTITIES, phase_diagram

    files = output or []
    for file in files:
        check_writable("--output", file, _ENDINGS)
        if spec is not None and file.resolve() == spec.resolve():
            raise SpecError("--output", str(file), "it must be another file than SPEC.json, which it would replace")
    most = tied_steps(tied, steps, FEWEST_TIED_STEPS)
    offered = QUANTITIES if most is None else TIED_QUANTITIES
    if show not in offered:
        raise SpecError("--show", show, f"it must be one of {', '.join(offered)}")
    lines = [_overlaid(text) for text in overlay or []]
    across, upward = _axis("--x", needed("--x", x, _AXIS)), _axis("--y", needed("--y", y, _AXIS))
    if len(across[1]) * len(upward[1]) > _MOST:
        raise SpecError("--x, --y", f"{len(across[1])} x {len(upward[1])}", f"a map has at most {_MOST} specs")
    if spec is not None:
        alone(cell=cell, hidden=hidden, inputs=inputs, init=init, length=length)
        base = loaded(spec, law, allow_import)
    else:
        base = _from_start(cell, hidden, inputs, init, length, input_law(law))
    begun = time.perf_counter()
    with counting("specs", len(across[1]) * len(upward[1])) as advance:

        def progress(diagram: PhaseDiagram) -> None:
            advance(int(diagram.answered.sum()))

        if files:
            diagram = _resumed(base, across, upward, most, files[0], progress)
        else:
            diagram = phase_diagram(base, across, upward, tied_steps=most, progress=progress)
    seconds = time.perf_counter() - begun
    _print(diagram, show, seconds)
    if any(file.suffix.lower() in _FIGURES for file in files):
        _say_what_is_not_drawn(diagram, lines)
    for file in files:
        _write(diagram, show, file, lines)


def _resumed(
    base: Spec,
    across: Line,
    upward: Line,
    tied_steps: int | None,
    output: Path,
    progress: Callable[[PhaseDiagram], None],
) -> PhaseDiagram:
    """The diagram; after an interrupt the finished part is kept next to the (first) output file."""
    from isornn.experiments.phase_record import resumed_phase, unfinished

    kept = unfinished(output, base, across, upward, tied_steps)
    try:
        return resumed_phase(base, across, upward, kept, tied_steps=tied_steps, progress=progress)
    except KeyboardInterrupt:
        if kept.exists():
            say(f"isornn: finished specs are kept in {kept}; the same call resumes from there")
        else:
            say("isornn: no specs were finished; nothing is kept")
        raise


def _overlaid(text: str) -> tuple[float, float]:
    """``6:100`` as the multiple and the length."""
    from isornn.cells import SpecError

    try:
        multiple, length = map(float, text.split(":"))
    except ValueError:
        raise SpecError("--overlay", text, _OVERLAY) from None
    if not (0 < multiple < float("inf") and 0 < length < float("inf")):
        raise SpecError("--overlay", text, f"{_OVERLAY}, both above 0")
    return multiple, length


def _axis(option: str, text: str) -> Line:
    """``z.bias_mean=0:6:100`` as a field and its values."""
    import numpy as np

    from isornn.cells import SpecError

    field, _, numbers = text.partition("=")
    parts = numbers.split(":")
    if len(parts) not in (3, 4) or parts[3:] not in ([], ["log"]):
        raise SpecError(option, text, _AXIS)
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except ValueError:
        raise SpecError(option, text, _AXIS) from None
    if not 2 <= count <= _MOST:
        raise SpecError(option, text, f"COUNT is a whole number from 2 to {_MOST}")
    if not -np.inf < low < high < np.inf:
        raise SpecError(option, text, "FROM is below TO, and both are finite")
    if parts[3:] and low <= 0:
        raise SpecError(option, text, "FROM is above 0 where the values are evenly spaced in the logarithm")
    values = np.geomspace(low, high, count) if parts[3:] else np.linspace(low, high, count)
    return field, values.tolist()


def _from_start(
    cell: str | None, hidden: int | None, inputs: int | None, init: str | None, length: int | None, law: Input
) -> Spec:
    from isornn.cells.starts import start
    from isornn.cli.ask import named_cell, started

    kind = named_cell(cell)
    if init is None and hidden is None and inputs is None and length is None:
        return start("glorot", kind, 1, 1, input=law)  # where N = D its variances are all 1
    return started("torch" if init is None else init, kind, hidden, inputs, length, law)


def _print(diagram: PhaseDiagram, show: str, seconds: float) -> None:
    specs = diagram.converged.numel()
    print(f"{diagram.spec.cell.name}: {specs} specs by {diagram.engine} in {seconds:.1f} s")
    for name, axis in (("x", diagram.x), ("y", diagram.y)):
        print(f"{name}: {axis.path} from {axis.values[0]:g} to {axis.values[-1]:g}, {len(axis.values)} values")
    quantity = diagram.quantities[show]
    sure = f"; {_sureness(diagram, quantity)}" if bool(quantity.defined.any()) else ""
    print(f"{show}: {_range(quantity)}{sure}")
    if not bool(diagram.converged.all()):
        print(f"without a fixed point: {_share(~diagram.converged)} of the specs")
    for reason, where in quantity.reasons:
        print(f"no finite {show} at {_share(where)}: {reason}")


def _range(quantity: Quantity) -> str:
    values = quantity.value[quantity.defined]
    if not len(values):
        return "no number anywhere"
    low, high, median = (rounded(float(value)) for value in (values.min(), values.max(), values.median()))
    return f"from {low} to {high}, median {median}"


def _sureness(diagram: PhaseDiagram, quantity: Quantity) -> str:
    """The largest residual where the engine is deterministic, else the largest relative standard errors."""
    if diagram.engine == "quadrature" and not bool((quantity.stderr[quantity.defined] > 0).any()):
        residual = diagram.residual[diagram.converged]
        return f"exact (largest residual {float(residual.max()) if len(residual) else 0:.1g})"
    relative = (quantity.stderr / quantity.value.abs().clamp(min=1e-300))[quantity.defined]
    if not len(relative):
        return "no standard errors"
    middle, most = (share(float(value)) for value in (relative.median(), relative.max()))
    return f"relative standard error {middle} in the median, {most} at most"


def _share(where: Tensor) -> str:
    return share(float(where.double().mean()))


def _say_what_is_not_drawn(diagram: PhaseDiagram, lines: list[tuple[float, float]]) -> None:
    from isornn.present.phase import has_line

    for multiple, length in lines:
        if not has_line(diagram, "xi", length / multiple):
            found = _range(diagram.quantities["xi"])
            say(f"isornn: --overlay {multiple:g}:{length:g}: no line; xi = {length / multiple:.4g} is nowhere, {found}")


def _write(diagram: PhaseDiagram, show: str, file: Path, lines: list[tuple[float, float]]) -> None:
    if file.suffix.lower() in (".npz", ".json"):
        from isornn.experiments.phase_record import save_phase

        save_phase(diagram, file)
        say(f"isornn: phase diagram in {file}")
    else:
        from isornn.present import draw_phase

        draw_phase(diagram, show, file, lines)
        say(f"isornn: figure in {file}")
