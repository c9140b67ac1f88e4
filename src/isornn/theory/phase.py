"""Phase diagrams: what the theory says of every spec on a grid of two hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isornn.cells import Spec, SpecError
from isornn.theory.analysis import Engine, analyze
from isornn.theory.quadrature.structure import NotPolynomial, structure_of
from isornn.theory.records import Analysis, Quantity

QUANTITIES: Mapping[str, str] = {
    "xi": "xi",
    "chi": "chi",
    "chi_1": "chi_1",
    "reach": "reach",
    "m1": "jacobian.mean",
    "variance": "jacobian.variance",
    "second_moment": "fixed_point.second_moment",
    "correlation": "fixed_point.correlation",
}
"""What a diagram holds, and its name in `Analysis`."""

_NUMBERS = ("weight_var", "input_var", "previous_input_var", "bias_mean", "bias_var")
_SIDE = {"quadrature": 50, "population": 10}  # of a tile: specs that are analysed as one batch

Tile = tuple[slice, slice]
Line = tuple[str, "Tensor | list[float]"]


@dataclass(frozen=True)
class Axis:
    """A hyper-parameter by its path in a spec and the values it takes, float64, at least one."""

    path: str
    values: Tensor


@dataclass(frozen=True)
class PhaseDiagram:
    """The quantities of `QUANTITIES` on a grid; every tensor is shaped (values of y, values of x).

    Args:
        spec: what all specs of the grid share.
        engine: ``"quadrature"`` (deterministic) or ``"population"`` (sampled).
        quantities: by name, with standard errors, and with reasons where there is no number.
        residual, converged: of the fixed points, as in `FixedPoint`.
        answered: where the theory was asked; all true once a diagram is finished.
    """

    spec: Spec
    x: Axis
    y: Axis
    engine: Engine
    quantities: Mapping[str, Quantity]
    residual: Tensor
    converged: Tensor
    answered: Tensor

    @property
    def finished(self) -> bool:
        """Whether the theory was asked about every spec."""
        return bool(self.answered.all())


def phase_diagram(
    spec: Spec,
    x: Line,
    y: Line,
    *,
    begun: PhaseDiagram | None = None,
    progress: Callable[[PhaseDiagram], None] | None = None,
) -> PhaseDiagram:
    """The theory's answers for ``spec`` with the field ``x[0]`` at each of ``x[1]`` and ``y[0]`` at each of ``y[1]``.

    Neighbouring specs are analysed together. Each such tile has random numbers of its own, so that a diagram is the
    same whether it was made in one go or taken up again.

    Args:
        spec: plain numbers, no batch.
        x, y: path of a number in the spec (``"z.bias_mean"``, ``"input.variance"``) and its values.
        begun: an unfinished diagram of the same spec and axes, whose answers are kept.
        progress: called with the diagram so far after each tile.

    Raises:
        SpecError: a path that is no number of this spec, equal paths, no values, or a value out of its range; a spec
            that is a batch; a diagram ``begun`` for something else.

    >>> from isornn.cells import ChoGRU, Gate
    >>> base = Spec(ChoGRU(), {gate: Gate(1.0, 1.0) for gate in "rzn"})
    >>> diagram = phase_diagram(base, ("z.bias_mean", [0.0, 2.0, 4.0]), ("n.weight_var", [1.0, 4.0]))
    >>> diagram.quantities["xi"].value.round(decimals=1).tolist()
    [[1.0, 3.3, 18.1], [1.4, 3.6, 18.3]]
    """
    if spec.batch_shape:
        raise SpecError("spec", tuple(spec.batch_shape), "it is one spec, not a batch: the axes make the batch")
    diagram = _blank(spec, _axis(spec, *x), _axis(spec, *y))
    if x[0] == y[0]:
        raise SpecError("y", y[0], "x has that path; the two axes differ")
    if begun is not None:
        diagram = _taken_up(begun, diagram)
    for index, tile in enumerate(_tiles(diagram)):
        if not bool(diagram.answered[tile].all()):
            diagram = _with_answer(diagram, tile, _ask(diagram, tile, index))
            if progress is not None:
                progress(diagram)
    return diagram


def _axis(spec: Spec, path: str, values: Tensor | list[float]) -> Axis:
    """An axis whose every value the spec accepts."""
    head, _, field = path.partition(".")
    gates = ", ".join(spec.gates)
    if path not in ("input.variance", "input.correlation") and (head not in spec.gates or field not in _NUMBERS):
        raise SpecError(
            "axis", path, f"it is input.variance, input.correlation or GATE.{'|'.join(_NUMBERS)} with GATE of {gates}"
        )
    line = torch.as_tensor(values, dtype=torch.float64)
    if line.ndim != 1 or not len(line) or bool((line.diff() <= 0).any()):
        raise SpecError(path, line.tolist(), "an axis is a list of numbers that increase, at least one")
    for value in line.tolist():
        spec.replace(path, value)
    return Axis(path, line)


def _blank(spec: Spec, x: Axis, y: Axis) -> PhaseDiagram:
    """Nothing asked yet."""
    shape = (len(y.values), len(x.values))
    unknown = torch.full(shape, torch.nan, dtype=torch.float64)
    no = torch.zeros(shape, dtype=torch.bool)
    quantities = {name: Quantity(unknown, unknown) for name in QUANTITIES}
    return PhaseDiagram(spec, x, y, _engine(spec), quantities, unknown, no, no)


def _engine(spec: Spec) -> Engine:
    """The engine that `analyze` takes."""
    try:
        structure_of(spec.cell)
    except NotPolynomial:
        return "population"
    return "quadrature"


def _taken_up(begun: PhaseDiagram, blank: PhaseDiagram) -> PhaseDiagram:
    if not same_question(begun, blank):
        raise SpecError("begun", begun.spec.cell.name, "it is a diagram of the same spec over the same axes")
    return begun


def same_question(a: PhaseDiagram, b: PhaseDiagram) -> bool:
    """Whether two diagrams are of one spec over the same axes, by the same engine."""
    lines = ((a.x, b.x), (a.y, b.y))
    return (
        a.spec == b.spec
        and a.engine == b.engine
        and all(one.path == other.path and torch.equal(one.values, other.values) for one, other in lines)
    )


def _tiles(diagram: PhaseDiagram) -> Iterator[Tile]:
    rows, columns = diagram.answered.shape
    side = _SIDE[diagram.engine]
    for top in range(0, rows, side):
        for left in range(0, columns, side):
            yield slice(top, top + side), slice(left, left + side)


def _ask(diagram: PhaseDiagram, tile: Tile, seed: int) -> Analysis:
    rows, columns = tile
    specs = diagram.spec.replace(diagram.y.path, diagram.y.values[rows, None])
    specs = specs.replace(diagram.x.path, diagram.x.values[columns])
    return analyze(specs, length=1, generator=torch.Generator().manual_seed(seed))


def _with_answer(diagram: PhaseDiagram, tile: Tile, answer: Analysis) -> PhaseDiagram:
    found = dict(answer.quantities())
    point = answer.fixed_point
    return replace(
        diagram,
        quantities={name: _filled(diagram.quantities[name], tile, found[QUANTITIES[name]]) for name in QUANTITIES},
        residual=_put(diagram.residual, tile, point.residual),
        converged=_put(diagram.converged, tile, point.converged),
        answered=_put(diagram.answered, tile, torch.ones_like(point.converged)),
    )


def _filled(whole: Quantity, tile: Tile, part: Quantity) -> Quantity:
    """``whole`` with ``part`` in its place, reasons and all."""
    masks = dict(whole.reasons)
    for reason, where in part.reasons:
        masks[reason] = _put(masks.get(reason, torch.zeros_like(whole.value, dtype=torch.bool)), tile, where)
    return Quantity(_put(whole.value, tile, part.value), _put(whole.stderr, tile, part.stderr), tuple(masks.items()))


def _put(whole: Tensor, tile: Tile, part: Tensor) -> Tensor:
    whole = whole.clone()
    whole[tile] = part
    return whole
