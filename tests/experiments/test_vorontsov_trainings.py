"""The verdicts about copying, adding and digits, on numbers made up so that one knows what must come out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.experiments.reproductions import _copying as copying
from isornn.experiments.reproductions.vorontsov_fig1 import stretch
from isornn.experiments.reproductions.vorontsov_fig4 import _network, unstable
from isornn.experiments.reproductions.vorontsov_gain_oplu import _configuration
from isornn.experiments.target import UNTESTED, Bench, target_named
from isornn.nn import spectral
from isornn.training import Configuration
from isornn.training.building import build_model
from isornn.training.problems import problem_named

NEVER = math.inf


def _row(*learned: float, ended: str | None = None, lost: bool = False) -> dict[str, Any]:
    """Seeds that learn at these updates, of 100."""
    curves = [[0.05 if 10 * k >= update else 0.9 for k in range(1, 11)] for update in learned]
    return {
        "every": 10,
        "losses": [[*curve, 2.0] if lost else curve for curve in curves],
        "diverged": [ended for _ in curves],
    }


def test_learned_is_the_first_validation_below_a_tenth() -> None:
    assert copying.learned_at(_row(30, NEVER)) == [30, NEVER]
    assert copying.median_range(_row(30, 40, NEVER)) == "40 (30 to never)"
    assert copying.median_range(_row(30, 30)) == "30"


FALLING = [(60, 60, 70), (50, 50, 60), (30, 40, 40), (20, 20, 20)]
MIXED = [(60, 20, 70), (50, 50, 20), (30, 40, 60), (20, 70, 60)]


@pytest.mark.parametrize(
    ("rows", "sooner"),
    [(FALLING, True), (FALLING[::-1], False), (MIXED, None), ([(NEVER,) * 3] * 4, None)],
)
def test_an_order_is_one_where_chance_would_not_give_it(rows: list[tuple[float, ...]], sooner: bool | None) -> None:
    assert copying.sooner([_row(*updates) for updates in rows]) is sooner


MARGINS = ["0", "0.001", "0.1", "none"]


def _figure_1(length: int, rows: list[tuple[float, ...]]) -> dict[str, Any]:
    lengths = {str(length): dict(zip(MARGINS, [_row(*updates) for updates in rows], strict=True))}
    stretches = {name: [[0.0] * 5, None] for name in MARGINS}
    return {"lengths": lengths, "steps": [1, 10, 100, 1000, 10_000], "stretches": stretches}


REVERSED = [(80, 90), (20, 30), (50, 60), (NEVER, NEVER)]


@pytest.mark.parametrize(("rows", "answer"), [(FALLING, "holds"), (FALLING[::-1], "does not hold"), (MIXED, UNTESTED)])
def test_figure_1(rows: list[tuple[float, ...]], answer: str) -> None:
    assert target_named("vorontsov-fig1").judge(_figure_1(50, rows)).answer == answer


def test_without_a_margin_the_rate_of_margin_1_has_its_place_in_the_order() -> None:
    measured = _figure_1(50, [(60, 60, 70), (50, 50, 60), (30, 40, 40), (90, 90, 90)])
    assert target_named("vorontsov-fig1").judge(measured).answer == UNTESTED
    measured["lengths"]["50"]["none, rate / 8"] = _row(20, 20, 20)
    assert target_named("vorontsov-fig1").judge(measured).answer == "holds"


@pytest.mark.parametrize(
    ("rows", "answer"),
    [
        (REVERSED, "holds"),
        ([(80, 90), (30, 40), (10, 20), (NEVER, NEVER)], "does not hold"),  # a wider margin is sooner
        ([(80, 90), (20, 30), (50, 60), (90, 90)], "does not hold"),  # none has learned it
        ([(80, 90), (20, 30), (25, 60), (NEVER, NEVER)], UNTESTED),  # seeds mix
        ([(NEVER, NEVER)] * 4, UNTESTED),
    ],
)
def test_the_long_end_of_figure_1(rows: list[tuple[float, ...]], answer: str) -> None:
    assert target_named("vorontsov-fig1-long").judge(_figure_1(10_000, rows)).answer == answer


def test_the_stretch_is_that_of_the_power_itself_and_goes_on_where_it_overflows() -> None:
    weight = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for steps in (1, 2, 13):
        norm = torch.linalg.svdvals(torch.linalg.matrix_power(weight, steps))[0]
        assert stretch(weight, steps) == pytest.approx(math.log10(float(norm)), abs=1e-12)
    diagonal = torch.diag(torch.tensor([0.5, 1.5], dtype=torch.float64))
    assert stretch(diagonal, 10_000) == pytest.approx(10_000 * math.log10(1.5), rel=1e-12)


def test_unstable_is_not_finite_or_lost_again() -> None:
    assert unstable(_row(30, 40)) == 0
    assert unstable(_row(30, 40, ended="the loss is nan")) == 2
    assert unstable(_row(30, NEVER, lost=True)) == 1  # what was not learned cannot be lost


CALM = [_row(20, 20, 30), _row(40, 50, 50), _row(80, 90, 90)]


def _figure_4(changed: dict[str, Any]) -> dict[str, Any]:
    """Strengths 0, .01, .1, weaker sooner, and unstable as in the paper."""
    loose = [_row(20, 20, 30, lost=True), *CALM[1:]]
    panels = {"soft, plain": CALM, "soft, factorised": CALM, "prior, no margin": loose, "prior, margin 1": loose}
    panels |= changed
    return {
        "lengths": dict.fromkeys(panels, 50),
        "panels": {name: dict(zip(("0", "0.01", "0.1"), rows, strict=True)) for name, rows in panels.items()},
    }


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "holds"),
        ({"soft, plain": CALM[::-1]}, "does not hold"),  # weaker is later
        ({"prior, no margin": CALM}, UNTESTED),  # stable here
        ({"prior, margin 1": CALM}, UNTESTED),
        ({"prior, margin 1": [CALM[0], *[_row(60, 80, 90, lost=True)] * 2]}, "does not hold"),  # with the prior only
    ],
)
def test_figure_4(changed: dict[str, Any], answer: str) -> None:
    assert target_named("vorontsov-fig4").judge(_figure_4(changed)).answer == answer


@pytest.mark.parametrize("strength", [0.0, 0.1])
@pytest.mark.parametrize("panel", ["soft, plain", "soft, factorised", "prior, no margin", "prior, margin 1"])
def test_strengths_differ_in_nothing_but_the_constraint(panel: str, strength: float, tmp_path: Path) -> None:
    bench = Bench(target_named("vorontsov-fig4").settings["medium"], tmp_path, None, 0, lambda *_: None)
    penalty = _network(bench, panel, strength)["penalty"]
    decay = penalty["strength"] if penalty["name"] == "decay" else penalty["decay"]
    assert decay == bench.settings["penalty"]["strength"] == 1e-4


def _nonlinearities(**changed: Any) -> dict[str, Any]:
    rows = {
        "slope_0.5": _row(NEVER, NEVER),
        "slope_1": _row(30, 40),
        "slope_from_0.7": _row(60, 70),
        "none": _row(30, 30),
        "OPLU": _row(30, 30),
        "trained": [0.9, 0.97],
    } | changed
    return {
        "margins": [0.0],
        "slopes": {name.replace("_", " "): rows[name] for name in ("slope_0.5", "slope_1", "slope_from_0.7")},
        "pairs": {f"{name}, m = 0": rows[name] for name in ("none", "OPLU")},
        "trained": rows["trained"],
    }


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "holds"),
        ({"slope_0.5": _row(80, 90)}, "does not hold"),
        ({"slope_0.5": _row(80, NEVER)}, UNTESTED),
        ({"slope_1": _row(NEVER, NEVER)}, "does not hold"),
        ({"trained": [0.7, 0.72]}, "does not hold"),
        ({"trained": [0.7, None]}, "does not hold"),
        ({"trained": [0.7, 0.9], "slope_from_0.7": _row(NEVER, NEVER)}, UNTESTED),  # it may yet rise
        ({"OPLU": _row(80, 90)}, "does not hold"),
        ({"OPLU": _row(40, 90), "none": _row(20, 40)}, UNTESTED),
        ({"OPLU": _row(20, 90), "none": _row(20, 40)}, "holds"),
        ({"none": _row(NEVER, NEVER)}, UNTESTED),
    ],
)
def test_transitions_on_the_copy_task(changed: dict[str, Any], answer: str) -> None:
    assert target_named("vorontsov-copy-nonlin").judge(_nonlinearities(**changed)).answer == answer


@pytest.mark.parametrize(
    ("zero", "middle", "free", "answer"),
    [
        ([0.165, 0.17], [0.01, 0.05], [0.16, 0.16], "holds"),
        ([0.02, 0.03], [0.01, 0.05], [0.16, 0.16], "does not hold"),
        ([0.165, 0.17], [0.01, 0.05], [0.02, 0.03], "does not hold"),
        ([0.165, 0.17], [0.16, 0.17], [0.16, 0.16], UNTESTED),  # it may yet leave
        ([0.165, 0.17], [0.01, 0.16], [0.16, 0.16], UNTESTED),
    ],
)
def test_figure_5(zero: list[float], middle: list[float], free: list[float], answer: str) -> None:
    margins = {"0": zero, "1": middle, "none": free}
    measured = {"every": 10, "margins": {name: [[0.2, least] for least in each] for name, each in margins.items()}}
    assert target_named("vorontsov-fig5").judge(measured).answer == answer


def test_a_run_that_ended_before_its_first_validation_has_not_left() -> None:
    measured = {"every": 10, "margins": {"0": [[]], "1": [[0.01]], "none": [[]]}}
    assert target_named("vorontsov-fig5").judge(measured).answer == "holds"


def _digits(**changed: list[float]) -> dict[str, Any]:
    rows = {
        "m = 0": [0.80, 0.81],
        "m = 0, gain 1.05": [0.90, 0.91],
        "m = .1": [0.91, 0.92],
        "m = 1": [0.88, 0.89],
    }
    oplu = {"OPLU, m = 0": [0.93, 0.92], "OPLU, m = .1": [0.92, 0.92], "OPLU, m = 1": [0.91, 0.93]}
    permuted = rows | oplu
    names = {"plain": "m = 0", "gain": "m = 0, gain 1.05", "oplu": "OPLU, m = 1"}
    return {"orders": {"ordered": rows, "permuted": permuted | {names[key]: values for key, values in changed.items()}}}


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "holds"),
        ({"gain": [0.85, 0.86]}, "does not hold"),
        ({"gain": [0.82, 0.93]}, UNTESTED),
        ({"plain": [0.92, 0.93]}, "does not hold"),  # it needs no gain
        ({"oplu": [0.80, 0.81]}, "does not hold"),
        ({"oplu": [0.80, 0.93]}, UNTESTED),
    ],
)
def test_gain_and_oplu(changed: dict[str, list[float]], answer: str) -> None:
    assert target_named("vorontsov-gain-oplu").judge(_digits(**changed)).answer == answer


def test_a_gain_is_that_of_all_singular_values_and_is_not_trained() -> None:
    settings = {**target_named("vorontsov-gain-oplu").settings["small"], "hidden": 6}
    configuration = Configuration.from_mapping(_configuration(settings, "ordered", "m = 0, gain 1.05", 0))
    model = build_model(configuration, problem_named("sequential_images", configuration.task.options, 50))
    values = torch.linalg.svdvals(model.recurrent.weight_hh_l0)
    assert torch.allclose(values, torch.full((6,), 1.05), atol=1e-6)
    assert "spectrum" not in {group["kind"] for group in spectral.groups(model)}
