"""From a wanted length to hyper-parameters: the start that lets a cell see exactly that far."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from isornn.cells import Cell, Input, Spec, SpecError
from isornn.cells.polynomial import NotPolynomial
from isornn.modes import usual_modes
from isornn.theory.analysis import analyze
from isornn.theory.critical_points.choice import preferred
from isornn.theory.critical_points.conditions import conditions_of, conditions_over_octaves
from isornn.theory.critical_points.front import Objective, check_length
from isornn.theory.critical_points.python_line import rule_line
from isornn.theory.critical_points.records import TIME_SCALES, Biases, Critical, TimeScales
from isornn.theory.critical_points.rule import family_of, scales_are_free
from isornn.theory.critical_points.solving import over_octaves, solve

_UNIT_INPUT = Input()


@usual_modes()
def critical(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
    time_scales: TimeScales = "uniform",
    objective: Objective | None = None,
    generator: torch.Generator | None = None,
) -> Critical:
    """Hyper-parameters with reach = ``length`` (``biases="fixed"``) or xi = ``length`` (``"redrawn"``), to 1 %.

    With ``time_scales="uniform"`` every unit is slow and a step is near isometry. With ``"octaves"`` a third of the
    units hear shorter lags, of all sizes alike, which trains better and is the start of `isornn.init.critical_`; the
    reach is then ``length`` for gates that hear nothing, and less where the remember gate hears the input (.6 T at
    variance 1). What that leaves open is closed by this rule, each part of which ``fixed`` overrides:

    - recurrent weights are weak, weight_var 1e-5, but on a gate that only shapes the output (the LSTM's o): 1;
    - candidates and the write gate see the input with variance 1 (input_var = 1 / input variance), others do not;
      over octaves candidates see it with variance 4;
    - ``biases="fixed"``: the remember gate's bias is ln U(low, high) per unit, a spread of time scales; a write gate
      of its own has the negative. ``high`` sets the reach; ``low`` is the smallest from 1 up for which m1 stays within
      2/T of 1. Over octaves two thirds of the units are at ``high``, and of the others as many in each octave from 1
      up; ``high`` (2.7 T at T = 100, 2.9 T at 1000) is the same for every cell.
      ``biases="redrawn"``: one remember bias for all units sets xi.
    - hard gates clip, which cuts slow units' memory short: what a hard remember gate hears is kept faint, weight_var at
      most 0.01 / T^2 and (where it also writes) input_var 1 / T^2 over the input variance.
    - a cell without a remember gate is set by its recurrent weights, orthogonal, with input_var 0.3 / T^1.5 over the
      input variance: it adds up over T steps to a pre-activation variance of 0.3 / sqrt(T), at which the squared
      singular values of diag(tanh') W have a variance of about 0.72 / T.

    Args:
        cell: the cell; what its gates are for is derived from its update. A gate that retains by 1 - f gets the
            negative bias; several retained states have a remember gate each, all with the same law.
        length: T >= 2, steps to bridge.
        time_scales: how they are spread over units that keep their biases; nothing else has any.
        fixed: spec fields by path that must have given values, as ``{"f.weight_var": 1.0}``.
        input: law of the input sequences.
        objective: what is preferred among the specs that see far enough, in place of the rule.
        generator: randomness of the population engine, and of the specs that are looked at for an objective; the line
            of Python is for the default one.

    Raises:
        SpecError: a length below 2, an unknown field, a fixed field that is what the solver has to set or that the
            objective varies, or a cell whose memory no start sets; the message names the condition.

    Sources: Gilboa et al. 2019 section 5 and D.4 (weak weights, m1 and the variance of the squared singular values);
    Tallec & Ollivier 2018 (time scales uniform over units); octaves are this library's, derived in
    docs/initialisation.md.

    >>> from isornn.cells import Peephole
    >>> point = critical(Peephole(), 100)
    >>> round(point.analysis.reach.number()), [c.met for c in point.conditions]
    (100, [True, True, True])
    >>> preferred = critical(Peephole(), 100, objective=Objective(), biases="redrawn")
    >>> preferred.analysis.xi.number() >= 100, [c.met for c in preferred.conditions]
    (True, [True, True, True])
    """
    check_length(length)
    fixed = dict(fixed or {})
    _check_time_scales(time_scales, objective)
    if objective is not None:
        return preferred(cell, float(length), objective, fixed, input, biases, generator)
    length, free = float(length), scales_are_free(cell, biases)
    if free and time_scales == "octaves":
        spec = critical_spec(cell, length, fixed=fixed, input=input, time_scales=time_scales)
        analysis = analyze(spec, length=math.ceil(length), generator=generator)
        conditions = conditions_over_octaves(analysis, length)
    else:
        family = family_of(cell, input, biases, fixed, length)
        try:
            analysis = solve(family, length, biases, generator)
        except NotPolynomial as reason:
            raise SpecError("cell", cell.name, f'{reason}; time_scales="octaves" has a start for it') from None
        conditions = conditions_of(analysis, length, biases)
    return Critical(
        spec=analysis.spec,
        length=length,
        analysis=analysis,
        conditions=conditions,
        python=rule_line(length, fixed, input, biases, time_scales if free else "octaves"),
    )


@usual_modes()
def critical_spec(
    cell: Cell,
    length: float,
    *,
    fixed: Mapping[str, Any] | None = None,
    input: Input = _UNIT_INPUT,
    biases: Biases = "fixed",
    time_scales: TimeScales = "uniform",
) -> Spec:
    """The spec of `critical`, which over octaves needs no theory of the whole cell and is known at once.

    Arguments, conventions and errors as there. Where a start is not known at once its conditions are checked, and those
    that it does not meet are warned of.

    >>> from isornn.cells import LSTM
    >>> law = critical_spec(LSTM(), 100, time_scales="octaves").gates["f"].bias_law
    >>> law.kind, law.low, round(law.high)
    ('capped_timescale', 1.0, 274)
    """
    _check_time_scales(time_scales, None)
    if time_scales == "octaves" and scales_are_free(cell, biases):
        check_length(length)
        family = family_of(cell, input, biases, dict(fixed or {}), float(length), time_scales)
        return over_octaves(family, float(length))
    point = critical(cell, length, fixed=fixed, input=input, biases=biases, time_scales=time_scales)
    unmet = [f"{c.name}: {c.wanted}, found {c.found}" for c in point.conditions if not c.met]
    if unmet:
        warnings.warn(f"critical: {cell.name} at length {length:g} does not meet {'; '.join(unmet)}", stacklevel=2)
    return point.spec


def _check_time_scales(time_scales: str, objective: Objective | None) -> None:
    if time_scales not in TIME_SCALES:
        raise SpecError("time_scales", time_scales, 'it is "uniform" or "octaves"')
    if objective is not None and time_scales != "uniform":
        raise SpecError("time_scales", time_scales, "an objective chooses the time scales; ranges may set their ends")
