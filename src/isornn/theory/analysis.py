"""Ask the theory about a spec; the right engine is found from the cell's update."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from isornn.cells import Spec, SpecError
from isornn.cells.arguments import seeded, whole_number
from isornn.cells.spec import check_spec
from isornn.modes import usual_modes
from isornn.theory.assumptions import unmet_assumption
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.drawn_parameters import with_drawn_parameters
from isornn.theory.population.engine import Population
from isornn.theory.quadrature.affine import quadrature_refusal
from isornn.theory.quadrature.engine import QuadratureEngine
from isornn.theory.reasons import TheoryMissing
from isornn.theory.records import Analysis
from isornn.theory.tied.analysis import tied_analysis

Engine = Literal["quadrature", "population"]


@usual_modes()
def analyze(
    spec: Spec,
    *,
    engine: Engine | None = None,
    length: int = 100,
    tied: bool = False,
    steps: int = 60,
    generator: torch.Generator | None = None,
) -> Analysis:
    """How far signals and gradients survive in networks of infinite width drawn by ``spec``, untied or also tied.

    Args:
        spec: cell and hyper-parameters; leading axes of the numbers are a batch. Variances as in `Gate`.
        engine: ``"quadrature"`` where the state enters affinely with one-gate factors and inputs are independent
            over time, ``"population"`` always; the first that applies by default.
        length: steps of the response profile.
        tied: also follow networks whose weights and biases are drawn once, from state 0: the answer's ``tied``.
        steps: how many steps of tied networks, at least 2.
        generator: randomness of the population engines; by default seeded with 0, so that equal calls agree.

    Returns:
        Fixed point (mean, second moment, stable correlation), chi, xi, chi_1, reach, Jacobian moments, xi_Q and the
        response profile, each with a standard error (0 by quadrature) and with a reason where it does not exist.

    Raises:
        SpecError: ``spec`` is none; an engine, a length, steps or a generator that are not allowed.
        NotPolynomial: ``engine="quadrature"`` was asked for and the cell's update or the input does not allow it.

    Source: Gilboa et al. 2019 eqs. 2-15, Chen et al. 2018 eq. 38, with their errata; the LSTM without the papers'
    approximation. Tied weights: dynamical mean field theory, see `isornn.theory.tied`.

    >>> from isornn.cells import Gate, Peephole
    >>> gates = {"i": Gate(2, 0.5, bias_mean=0.5), "f": Gate(4, 1, bias_var=0.1, bias_mean=2), "g": Gate(3, 0.5)}
    >>> answer = analyze(Spec(Peephole(), gates))
    >>> answer.engine, round(answer.fixed_point.second_moment.number(), 5), round(answer.chi_1.number(), 4)
    ('quadrature', 0.69356, 1.1469)
    """
    check_spec(spec)
    if engine not in (None, "quadrature", "population"):
        raise SpecError("engine", engine, 'it must be "quadrature", "population" or None')
    length = whole_number("length", length, what="number of steps")
    steps = whole_number("steps", steps, 2, "number of steps")
    generator = seeded(generator)
    refusal = refusal_of(spec)
    if refusal is not None:
        return Analysis.missing(spec, refusal, length)
    answer = _untied(spec, engine, length, generator)
    return replace(answer, tied=tied_analysis(spec, steps, generator=generator)) if tied else answer


def refusal_of(spec: Spec) -> str | None:
    """Why no engine covers networks of ``spec``, or ``None`` where one does."""
    unmet = unmet_assumption(spec)
    if unmet is not None:
        return unmet
    try:
        with_drawn_parameters(spec)
    except TheoryMissing as missing:
        return str(missing)
    return None


def _untied(spec: Spec, engine: Engine | None, length: int, generator: torch.Generator) -> Analysis:
    if engine == "quadrature" or (engine is None and quadrature_refusal(spec) is None):
        return QuadratureEngine(spec).analysis(length)
    return population_analysis(spec, length, generator=generator)


@usual_modes()
def stationary_samples(spec: Spec, state: str | None = None, *, generator: torch.Generator | None = None) -> Tensor:
    """Stationary samples over units of one state component: the LSTM's c is a perpetuity without a closed density.

    Args:
        state: by name; by default the last one, which is the LSTM's cell state.
        generator: source of randomness, seeded with 0 by default.

    Returns:
        shape ``(*batch, samples)``.

    Raises:
        SpecError: no spec, no such state, or a generator that is none.
        TheoryMissing: the state does not settle, or no engine covers the spec.

    Source: Gilboa et al. 2019, Algorithm 1 and figure 7.

    >>> from isornn.cells import LSTM, Gate
    >>> gates = {k: Gate(weight_var=1.0, input_var=1.0) for k in "igo"} | {"f": Gate(1.0, 1.0, bias_mean=1.0)}
    >>> c = stationary_samples(Spec(LSTM(), gates))
    >>> bool(abs(c.std() - 0.495) < 0.01)
    True
    """
    check_spec(spec)
    state = spec.cell.states[-1] if state is None else state
    if state not in spec.cell.states:
        raise SpecError("state", state, f"{spec.cell.name} has {', '.join(spec.cell.states)}")
    generator = seeded(generator)
    population = Population(spec, generator=generator)
    stationary = population.settle("identical")
    if (refusal := stationary.refusal()) is not None:
        raise TheoryMissing(refusal)
    return population.state_samples(stationary, state)
