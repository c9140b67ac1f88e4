"""From a wanted length to a spec: conditions judged again from the spec alone, and what happens when they clash."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from isornn.cells import (
    GRU,
    LSTM,
    SCRN,
    TMR,
    BiasLaw,
    Cell,
    ChoGRU,
    Input,
    Minimal,
    Peephole,
    Spec,
    SpecError,
    Vanilla,
    cell_named,
)
from isornn.theory import analyze, isometric
from isornn.theory.critical_points.point import _near_isometry

EXACT = ("vanilla", "peephole", "gru_cho", "minimal", "t_rnn", "t_lstm", "t_gru")
CASES: list[tuple[str, dict[str, str], int]]
CASES = [(name, {}, length) for name in EXACT for length in (10, 100, 1000)]
CASES += [(name, {"gate": "hard_sigmoid"}, length) for name in EXACT[1:4] for length in (10, 1000)]


@pytest.mark.parametrize(
    ("name", "options", "length"), CASES, ids=lambda x: "hard" if x and isinstance(x, dict) else str(x)
)
def test_all_conditions_are_met_and_true(name: str, options: dict[str, str], length: int) -> None:
    for biases in ("fixed", "redrawn"):
        point = isometric(cell_named(name, options), length, biases=biases)
        assert all(c.met for c in point.conditions), point.conditions
        # judged anew, from the spec as a file would hold it
        again = analyze(Spec.from_json(json.loads(json.dumps(point.spec.to_json()))), length=length)
        sight = again.reach if biases == "fixed" else again.xi
        assert sight.number() == pytest.approx(length, rel=0.01)
        assert abs(again.jacobian.mean.number() - 1) <= 2 / length
        assert again.jacobian.variance.number() <= 2 / length
        assert point.spec.biases == biases


def test_a_spread_of_time_scales() -> None:
    point = isometric(Peephole(), 200)
    law, mirror = point.spec.gates["f"].bias_law, point.spec.gates["i"].bias_law
    assert isinstance(law, BiasLaw) and isinstance(mirror, BiasLaw)
    assert (law.low, law.high, -law.sign) == (mirror.low, mirror.high, mirror.sign)
    assert law.low < 200 < law.high
    # no exponential: the profile falls slower late than early
    profile = point.analysis.profile
    assert float(profile[200] / profile[190]) > float(profile[11] / profile[1])
    assert float(profile[201 - 1] / profile[1]) == pytest.approx(math.exp(-1), rel=0.02)


def test_the_rule_for_the_rest() -> None:
    spec = isometric(Peephole(), 100, input=Input(4.0)).spec
    assert [spec.gates[g].weight_var for g in "ifgo"] == [1e-5] * 4
    assert [spec.gates[g].input_var for g in "ifgo"] == [0.25, 0.0, 0.25, 0.0]
    # only a gate that does nothing but read a cell state out has a matrix of full size
    assert [isometric(LSTM(), 100).spec.gates[g].weight_var for g in "ifgo"] == [1e-5, 1e-5, 1e-5, 1.0]
    coupled = isometric(ChoGRU(), 100).spec
    assert [coupled.gates[g].input_var for g in "zrn"] == [1.0, 0.0, 1.0]
    # a cell without gates reads its input: all of the state's variance comes from it
    plain = isometric(Vanilla(), 100)
    assert plain.spec.gates["h"].ensemble == "orthogonal"
    assert plain.analysis.fixed_point.second_moment.number() > 0.01


@pytest.mark.parametrize(
    ("cell", "fixed", "biases"),
    [
        (Peephole(), {"f.weight_var": 0.01, "i.input_var": 0.3, "g.bias_mean": 0.2}, "fixed"),
        (Peephole(), {"i.bias_law": None, "i.bias_mean": 0.0, "f.input_var": 0.5}, "fixed"),
        (ChoGRU(), {"n.weight_var": 0.01, "r.bias_mean": -1.0}, "redrawn"),
        (Minimal(), {"u.bias_var": 0.1}, "redrawn"),
        (Vanilla(), {"h.input_var": 1e-5, "h.ensemble": "gaussian"}, "redrawn"),
    ],
)
def test_fixed_fields_stay_and_the_length_is_met(cell: Cell, fixed: dict[str, Any], biases: Any) -> None:
    point = isometric(cell, 50, fixed=fixed, biases=biases)
    for path, value in fixed.items():
        gate, _, field = path.partition(".")
        assert getattr(point.spec.gates[gate], field) == value
        assert repr(path) in point.python
    assert point.conditions[0].met


@pytest.mark.parametrize(
    ("cell", "biases", "path", "value"),
    [
        (Peephole(), "fixed", "f.bias_law", None),
        (Peephole(), "redrawn", "f.bias_mean", 3.0),
        (ChoGRU(), "redrawn", "z.bias_mean", 3.0),
        (Vanilla(), "fixed", "h.weight_var", 1.0),
    ],
)
def test_what_sets_the_length_cannot_be_fixed(cell: Cell, biases: Any, path: str, value: Any) -> None:
    with pytest.raises(SpecError, match=rf"{path}: .* it is what sets the length"):
        isometric(cell, 100, biases=biases, fixed={path: value})


@pytest.mark.parametrize("length", [1.9, 0, -5, True, math.nan, math.inf, 2e6, "100"])
def test_lengths_are_checked(length: Any) -> None:
    with pytest.raises(SpecError, match="length"):
        isometric(Peephole(), length)


def test_unknown_fields_are_named() -> None:
    with pytest.raises(SpecError, match="q.weight_var"):
        isometric(Peephole(), 100, fixed={"q.weight_var": 1.0})


def test_strong_weights_bind_and_it_says_so() -> None:
    # noisy content: m1 is out of the isometric range though the length can be met
    point = isometric(Peephole(), 100, fixed={k + ".weight_var": 2.0 for k in "ig"}, biases="redrawn")
    met = {c.name: c.met for c in point.conditions}
    assert not all(met.values())
    unmet = next(c for c in point.conditions if not c.met)
    assert unmet.found
    assert "within" in unmet.wanted or "at most" in unmet.wanted or "to 1 %" in unmet.wanted


def test_a_length_out_of_reach_is_the_nearest_and_says_so() -> None:
    # a hard forget gate that hears noise of variance 1 is clipped half of the time, however open
    point = isometric(Minimal(gate="hard_sigmoid"), 1000, fixed={"u.input_var": 1.0}, biases="redrawn")
    length = point.conditions[0]
    assert length.name == "xi = T"
    assert not length.met
    assert 0 < float(length.found) < 10


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_inputs_that_differ(correlation: float) -> None:
    for cell in (Peephole(), ChoGRU()):
        point = isometric(cell, 100, input=Input(1.0, correlation))
        assert point.analysis.reach.number() == pytest.approx(100, rel=0.01)
        assert f"Input(1, {correlation:g})" in point.python


@pytest.mark.parametrize(("cell", "biases"), [(LSTM(), "fixed"), (LSTM(), "redrawn"), (GRU(), "redrawn")], ids=str)
def test_sampled_cells(cell: Cell, biases: Any) -> None:
    point = isometric(cell, 100, biases=biases)
    assert all(c.met for c in point.conditions), point.conditions
    assert point.analysis.engine == "population"
    if isinstance(cell, LSTM):
        assert point.conditions[1].name.startswith("c to c")
        assert point.spec.gates["o"].weight_var == 1.0


def test_the_line_of_python_applies_it() -> None:
    line = isometric(Peephole(), 30, fixed={"g.bias_mean": 0.5}, input=Input(2.0, 0.5), biases="redrawn").python
    assert line == (
        "isornn.init.isometric_(module, length=30, fixed={'g.bias_mean': 0.5}, input=isornn.Input(2, 0.5), "
        "biases='redrawn')"
    )


@pytest.mark.parametrize("cell", [TMR(), SCRN()], ids=str)
def test_a_cell_whose_memory_no_start_sets_is_refused(cell: Cell) -> None:
    with pytest.raises(SpecError, match=f"cell: '{cell.name}' .* no start sets its reach"):
        isometric(cell, 20)


def test_weights_that_cannot_reach_are_refused() -> None:
    # sigmoid's slope is 1/4: whatever the weights, the logistic network forgets within some steps
    with pytest.raises(SpecError, match="length: .* no fixed point sees"):
        isometric(Vanilla("sigmoid"), 1000, fixed={"h.bias_mean": 400.0})


@pytest.mark.parametrize("profile", [None, torch.zeros(51, dtype=torch.float64)])
def test_a_response_that_is_unknown_or_0_is_said_to_be(profile: torch.Tensor | None) -> None:
    point = isometric(LSTM(), 50)
    profiles = {} if profile is None else {"c": profile}
    condition = _near_isometry(replace(point.analysis, state_profiles=profiles), 50, point.spec.biases)[-1]
    assert condition.name == "c to c over T steps" and not condition.met
    assert condition.found == "none (the response of c is unknown, or 0)"
