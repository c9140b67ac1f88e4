"""Phase diagrams: what the theory says of every spec on a grid of two hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from isornn.cells import Spec, SpecError
from isornn.cells.arguments import whole_number
from isornn.cells.laws import GATE_NUMBERS, INPUT_FIELDS
from isornn.cells.spec import check_spec, is_number_path
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.assumptions import unmet_assumption
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.quadrature.affine import quadrature_refusal
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import NOT_ASKED
from isornn.theory.records import Analysis
from isornn.theory.tied.analysis import rough_tied

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

TIED_QUANTITIES = ("xi", "chi", "chi_1", "lyapunov", "second_moment", "correlation")
"""What a diagram of tied networks holds: growth over the later half of the steps, moments at the last."""
FEWEST_TIED_STEPS = 4
"""Fewer steps do not show whether the state has settled."""


@dataclass(frozen=True)
class Sampling:
    """How much the population engine spends on a batch."""

    units: int
    replicates: int
    effort: Effort


# Specs that are analysed as one batch: so many rows and columns of neighbours.
_SIDE = {"quadrature": 50, "population": 20, "tied": 8}
# As few units and steps as leave a median error of xi of some per cent: benchmarks/phase_diagram.py measures it.
_ROUGH = Sampling(
    units=16,
    replicates=8,
    effort=Effort(
        settle_steps=500,
        settle_tolerance=0.05,
        response_steps=256,
        response_tolerance=0.05,
        cohorts=2,
        apart=False,
    ),
)
# What does not settle so is asked again, wherever it lies, with more units; then where copies have to start apart.
_AGAIN = 100
_PATIENT = Sampling(units=64, replicates=8, effort=replace(_ROUGH.effort, settle_steps=1000))
_APART = replace(_PATIENT, effort=replace(_PATIENT.effort, apart=True))

Kind = Literal["quadrature", "population", "tied"]
Places = tuple[Tensor, Tensor]  # rows and columns of specs that are analysed together
Line = tuple[str, "Tensor | list[float]"]


@dataclass(frozen=True)
class Axis:
    """A hyper-parameter by its path in a spec and the values it takes, float64, at least one.

    >>> Axis("h.weight_var", torch.tensor([0.5, 1.0], dtype=torch.float64)).path
    'h.weight_var'
    """

    path: str
    values: Tensor


@dataclass(frozen=True)
class PhaseDiagram:
    """The quantities of `QUANTITIES` on a grid; every tensor is shaped (values of y, values of x).

    Args:
        spec: what all specs of the grid share.
        engine: ``"quadrature"`` (deterministic) or ``"population"`` (sampled) of untied networks, ``"tied"`` (sampled).
        steps: how many steps of tied networks; ``None`` of untied ones.
        quantities: by name, with standard errors, and with reasons where there is no number, or none yet.
        residual, converged: of the fixed points, as in `FixedPoint`; infinite and False where there is no answer yet.
        asked: how often the theory was asked about a spec: again, with more units, where an answer did not stand.
        answered: where an answer stands; all true once a diagram is finished.

    >>> from isornn.cells import Gate, Vanilla
    >>> base = Spec(Vanilla(), {"h": Gate(weight_var=1.0, input_var=0.1)})
    >>> found = phase_diagram(base, ("h.weight_var", [0.5, 1.0, 1.5]), ("h.bias_var", [0.0, 0.1]))
    >>> found.finished, found.quantities["chi"].value.shape
    (True, torch.Size([2, 3]))
    """

    spec: Spec
    x: Axis
    y: Axis
    engine: Kind
    steps: int | None
    quantities: Mapping[str, Quantity]
    residual: Tensor
    converged: Tensor
    asked: Tensor
    answered: Tensor

    @property
    def finished(self) -> bool:
        """Whether there is an answer about every spec."""
        return bool(self.answered.all())

    def is_of(self, spec: Spec, x: Line, y: Line, tied_steps: int | None) -> bool:
        """Whether this is the diagram, finished or not, of ``spec`` over these axes."""
        lines = ((self.x, x), (self.y, y))
        same = self.spec == spec and self.steps == tied_steps
        return same and all(
            axis.path == path and axis.values.tolist() == torch.as_tensor(values, dtype=torch.float64).tolist()
            for axis, (path, values) in lines
        )


@usual_modes()
def phase_diagram(
    spec: Spec,
    x: Line,
    y: Line,
    *,
    tied_steps: int | None = None,
    begun: PhaseDiagram | None = None,
    progress: Callable[[PhaseDiagram], None] | None = None,
) -> PhaseDiagram:
    """The theory's answers for ``spec`` with the field ``x[0]`` at each of ``x[1]`` and ``y[0]`` at each of ``y[1]``.

    Neighbouring specs are analysed together, as many groups at once as torch has threads. Cells that need the
    population engine get few units, for standard errors of xi of some per cent. Each group has random numbers of its
    own, so that a diagram is the same whether it was made in one go or taken up again.

    Args:
        spec: plain numbers, no batch.
        x, y: path of a number in the spec (``"z.bias_mean"``, ``"input.variance"``) and its values.
        tied_steps: follow networks with one draw of weights for so many steps, at least 4, instead of untied ones.
            Where E[h^2] still changes by more than 10 % over the later half of them, there are no numbers.
        begun: an unfinished diagram of the same spec, axes and steps, whose answers are kept.
        progress: called with the diagram so far after each group.

    Raises:
        SpecError: no spec, or a batch; a path that is no number of this spec, equal paths, no values, or a value out of
            its range; fewer than 4 steps; a diagram ``begun`` for something else.
        TheoryMissing: tied networks of identity matrices or of a cell that is not pointwise.

    >>> from isornn.cells import ChoGRU, Gate
    >>> base = Spec(ChoGRU(), {gate: Gate(1.0, 1.0) for gate in "rzn"})
    >>> diagram = phase_diagram(base, ("z.bias_mean", [0.0, 2.0, 4.0]), ("n.weight_var", [1.0, 4.0]))
    >>> diagram.quantities["xi"].value.round(decimals=1).tolist()
    [[1.0, 3.3, 18.1], [1.4, 3.6, 18.3]]
    """
    check_spec(spec)
    if spec.batch_shape:
        raise SpecError("spec", tuple(spec.batch_shape), "it must be one spec, not a batch: the axes make the batch")
    across, upward = _axis(spec, *x), _axis(spec, *y)
    if x[0] == y[0]:
        raise SpecError("y", y[0], "x has that path; the two axes differ")
    if tied_steps is not None:
        tied_steps = whole_number("tied_steps", tied_steps, FEWEST_TIED_STEPS, "number of steps")
    if begun is not None and not begun.is_of(spec, x, y, tied_steps):
        raise SpecError("begun", begun.spec.cell.name, "it must be a diagram of the same spec over the same axes")
    diagram = _blank(spec, across, upward, tied_steps) if begun is None else begun
    if tied_steps is not None:
        return _filled(diagram, 0, partial(_tied, tied_steps), torch.get_num_threads(), progress)
    if diagram.engine == "quadrature":
        return _filled(diagram, 0, _exactly, 1, progress)
    for times, sampling in enumerate((_ROUGH, _PATIENT, _APART)):
        diagram = _filled(diagram, times, partial(_sampled, sampling), torch.get_num_threads(), progress)
    return diagram


def _axis(spec: Spec, path: str, values: Tensor | list[float]) -> Axis:
    """An axis whose every value the spec accepts."""
    gates = ", ".join(spec.gates)
    if not is_number_path(spec, path):
        raise SpecError(
            "axis",
            path,
            f"it must be input.{'|'.join(INPUT_FIELDS)} or GATE.{'|'.join(GATE_NUMBERS)} with GATE of {gates}",
        )
    line = torch.as_tensor(values, dtype=torch.float64)
    if line.ndim != 1 or not len(line) or bool((line.diff() <= 0).any()):
        raise SpecError(path, line.tolist(), "an axis is a list of numbers that increase, at least one")
    for value in line.tolist():
        spec.replace(path, value)
    return Axis(path, line)


def _blank(spec: Spec, x: Axis, y: Axis, tied_steps: int | None) -> PhaseDiagram:
    """Nothing asked yet."""
    shape = (len(y.values), len(x.values))
    unknown = torch.full(shape, torch.nan, dtype=torch.float64)
    no = torch.zeros(shape, dtype=torch.bool)
    blank = Quantity.of(unknown, reasons={NOT_ASKED: True})
    quantities = dict.fromkeys(QUANTITIES if tied_steps is None else TIED_QUANTITIES, blank)
    engine = _engine(_varied(spec, x, y)) if tied_steps is None else "tied"
    return PhaseDiagram(
        spec, x, y, engine, tied_steps, quantities, torch.full_like(unknown, torch.inf), no, no.to(torch.int64), no
    )


def _varied(spec: Spec, x: Axis, y: Axis) -> Spec:
    return spec.replace(y.path, y.values[:, None]).replace(x.path, x.values)


def _engine(spec: Spec) -> Kind:
    """The engine that `analyze` takes; ``"quadrature"`` too where it has no answer but a reason, at once."""
    if unmet_assumption(spec) is not None or quadrature_refusal(spec) is None:
        return "quadrature"
    return "population"


# -- what is asked together -------------------------------------------------------------------------------------------


def _tiles(diagram: PhaseDiagram) -> list[Places]:
    """Neighbours, which take about as many steps."""
    rows, columns = (torch.arange(size).split(_SIDE[diagram.engine]) for size in diagram.answered.shape)
    return [(row[:, None], column) for row in rows for column in columns]


def _unsettled(diagram: PhaseDiagram, times: int) -> list[Places]:
    """What was left over after it had been asked so many times, wherever it lies and whatever came of it since: groups
    are the same when a diagram is taken up again."""
    left = (diagram.asked > times) | ((diagram.asked == times) & ~diagram.answered)
    rows, columns = torch.nonzero(left, as_tuple=True)
    if not len(rows):
        return []
    return list(zip(rows.split(_AGAIN), columns.split(_AGAIN), strict=True))


def _filled(
    diagram: PhaseDiagram,
    times: int,
    ask: Callable[[Spec, torch.Generator], Answer],
    workers: int,
    progress: Callable[[PhaseDiagram], None] | None,
) -> PhaseDiagram:
    """The diagram with those batches asked that were asked so many times before, ``workers`` at once."""
    batches = _unsettled(diagram, times) if times else _tiles(diagram)
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting = {
            pool.submit(ask, _specs(diagram, places), torch.Generator().manual_seed(seed)): places
            for seed, places in enumerate(batches)
            if not bool((diagram.asked[places] > times).any())
        }
        try:
            for done in as_completed(waiting):
                diagram = _with_answer(diagram, waiting[done], done.result())
                if progress is not None:
                    progress(diagram)
        finally:
            # After an interrupt only those that have begun are waited for.
            pool.shutdown(wait=False, cancel_futures=True)
    return diagram


def _specs(diagram: PhaseDiagram, places: Places) -> Spec:
    rows, columns = places
    specs = diagram.spec.replace(diagram.y.path, diagram.y.values[rows])
    return specs.replace(diagram.x.path, diagram.x.values[columns])


@dataclass(frozen=True)
class Answer:
    """What the theory says of a batch, and for which of its specs that is final."""

    quantities: Mapping[str, Quantity]
    residual: Tensor
    converged: Tensor
    final: Tensor

    @staticmethod
    def of(analysis: Analysis, final: Tensor) -> Answer:
        """An analysis of untied networks."""
        found, point = dict(analysis.quantities()), analysis.fixed_point
        quantities = {name: found[long_name] for name, long_name in QUANTITIES.items()}
        return Answer(quantities, point.residual, point.converged, final)


def _exactly(specs: Spec, generator: torch.Generator) -> Answer:
    answer = analyze(specs, length=1, generator=generator)
    return Answer.of(answer, torch.ones_like(answer.fixed_point.converged))


def _tied(steps: int, specs: Spec, generator: torch.Generator) -> Answer:
    answer = rough_tied(specs, steps, generator=generator)
    return Answer(answer.quantities, answer.residual, answer.settled, torch.ones_like(answer.settled))


def _sampled(sampling: Sampling, specs: Spec, generator: torch.Generator) -> Answer:
    """By few units; without copies started apart final only where they settle and stay alike."""
    answer = population_analysis(
        specs,
        1,
        generator=generator,
        units=sampling.units,
        replicates=sampling.replicates,
        effort=sampling.effort,
    )
    settled = answer.fixed_point.converged
    if sampling.effort.apart:
        return Answer.of(answer, torch.ones_like(settled))
    return Answer.of(answer, settled & (answer.chi_1.value <= 1) & (torch.as_tensor(specs.input.correlation) == 1))


# -- putting answers into their places --------------------------------------------------------------------------------


def _with_answer(diagram: PhaseDiagram, places: Places, answer: Answer) -> PhaseDiagram:
    rows, columns = torch.broadcast_tensors(*places)
    final = answer.final
    where = rows[final], columns[final]
    quantities = {
        name: _with_part(whole, where, answer.quantities[name], final) for name, whole in diagram.quantities.items()
    }
    return replace(
        diagram,
        quantities=quantities,
        residual=_put(diagram.residual, where, answer.residual[final]),
        converged=_put(diagram.converged, where, answer.converged[final]),
        asked=_put(diagram.asked, (rows, columns), diagram.asked[rows, columns] + 1),
        answered=_put(diagram.answered, where, final[final]),
    )


def _with_part(whole: Quantity, where: Places, part: Quantity, final: Tensor) -> Quantity:
    """``whole`` with what is final of ``part`` in its place, reasons and all."""
    masks = {reason: _put(mask, where, False) for reason, mask in whole.reasons}
    for reason, mask in part.reasons:
        before = masks.get(reason, torch.zeros_like(whole.value, dtype=torch.bool))
        masks[reason] = _put(before, where, mask[final])
    return Quantity(
        _put(whole.value, where, part.value[final]),
        _put(whole.stderr, where, part.stderr[final]),
        tuple((reason, mask) for reason, mask in masks.items() if bool(mask.any())),
    )


def _put(whole: Tensor, where: Places, part: Tensor | bool) -> Tensor:
    whole = whole.clone()
    whole[where] = torch.as_tensor(part, dtype=whole.dtype)
    return whole
