"""From a wanted length to hyper-parameters: the start that lets a cell see exactly that far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isornn.cells import Cell, Input, SpecError
from isornn.theory.critical_points.choice import preferred
from isornn.theory.critical_points.conditions import conditions_of
from isornn.theory.critical_points.front import Objective, check_length
from isornn.theory.critical_points.python_line import rule_line
from isornn.theory.critical_points.records import TIME_SCALES, Biases, Critical, TimeScales
from isornn.theory.critical_points.rule import family_of, scales_are_free
from isornn.theory.critical_points.solving import solve

_UNIT_INPUT = Input()


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

    With ``time_scales="uniform"`` every unit is slow and a step is near isometry; with ``"octaves"`` half of the units
    hear shorter lags, of all sizes alike, which is the better start for training and that of `isornn.init.critical_`.
    What that leaves open is closed by this rule, each part of which ``fixed`` overrides:

    - recurrent weights are weak, weight_var 1e-5, but on a gate that only shapes the output (the LSTM's o): 1;
    - candidates and the write gate see the input with variance 1 (input_var = 1 / input variance), others do not;
      over octaves candidates see it with variance 4;
    - ``biases="fixed"``: the remember gate's bias is ln U(low, high) per unit, a spread of time scales; a write gate
      of its own has the negative. ``high`` sets the reach; ``low`` is the smallest from 1 up for which m1 stays within
      2/T of 1. Over octaves half of the units are at ``high``, and of the others as many in each octave from 1 up.
      ``biases="redrawn"``: one remember bias for all units sets xi.
    - hard gates clip, which cuts slow units' memory short: what a hard remember gate hears is kept faint, weight_var at
      most 0.01 / T^2 and (where it also writes) input_var 1 / T^2 over the input variance.
    - a cell without a remember gate is set by its recurrent weights, orthogonal, with input_var 0.3 / T^1.5 over the
      input variance: it adds up over T steps to a pre-activation variance of 0.3 / sqrt(T), at which the squared
      singular values of diag(tanh') W have a variance of about 0.72 / T.

    Args:
        cell: the cell; it names its ``remember``, ``write`` and ``candidates`` gates.
        length: T >= 2, steps to bridge.
        time_scales: how they are spread over units that keep their biases; nothing else has any.
        fixed: spec fields by path that must have given values, as ``{"f.weight_var": 1.0}``.
        input: law of the input sequences.
        objective: what is preferred among the specs that see far enough, in place of the rule.
        generator: randomness of the population engine, and of the specs that are looked at for an objective; the line
            of Python is for the default one.

    Raises:
        SpecError: a length below 2, an unknown field, a fixed field that is what the solver has to set or that the
            objective varies, or a cell whose memory no start sets.

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
    over_octaves = time_scales == "octaves" and scales_are_free(cell, biases)
    family = family_of(cell, input, biases, fixed, float(length), time_scales)
    spec, analysis = solve(family, float(length), biases, generator, isometric=not over_octaves)
    return Critical(
        spec=spec,
        length=float(length),
        analysis=analysis,
        conditions=conditions_of(analysis, float(length), biases, over_octaves),
        python=rule_line(length, fixed, input, biases, time_scales if scales_are_free(cell, biases) else "octaves"),
    )


def _check_time_scales(time_scales: str, objective: Objective | None) -> None:
    if time_scales not in TIME_SCALES:
        raise SpecError("time_scales", time_scales, 'it is "uniform" or "octaves"')
    if objective is not None and time_scales != "uniform":
        raise SpecError("time_scales", time_scales, "an objective chooses the time scales; ranges may set their ends")
