"""The Pareto front by brute force, the point that is taken against networks, and refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import isornn
from isornn.cells import GRU, LSTM, Cell, Gate, Input, Minimal, Peephole, Spec, SpecError, Vanilla, cell_named
from isornn.cells.roles import roles_of
from isornn.simulation import simulate
from isornn.theory import (
    COSTS,
    Critical,
    Objective,
    ParetoFront,
    Quantity,
    Range,
    chosen,
    costs,
    isometric,
    pareto_front,
    subspace,
)
from isornn.theory.critical_points.front import nondominated

EXACT = ("minimal", "peephole", "gru_cho", "vanilla")
BASE = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
RANGES = (Range("f.bias_mean", 2.0, 7.0), Range("f.weight_var", 1e-4, 1.0, log=True))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _arguments(cell: Cell, length: float, **options: Any) -> tuple[Spec, float, tuple[Range, ...]]:
    spec, ranges = subspace(cell, length, **options)
    return spec, length, ranges


@pytest.fixture(scope="module")
def peephole() -> ParetoFront:
    return pareto_front(BASE, 50, RANGES, specs=96)


# -- the front --------------------------------------------------------------------------------------------------------


def by_hand(found: dict[str, Quantity]) -> list[bool]:
    """The definition, pair by pair, in plain numbers."""
    names = [name for name in found if bool(found[name].defined.any())]
    rows = []
    for i in range(len(found["sight"].value)):
        whole = all(bool(found[name].defined[i]) for name in names)
        rows.append([(float(found[n].value[i]), float(found[n].stderr[i])) for n in names] if whole else None)

    def worse(b: tuple[float, float], a: tuple[float, float]) -> bool:
        return b[0] - a[0] > 2 * math.hypot(a[1], b[1])

    def dominates(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> bool:
        if worse(b[0], a[0]):
            return True
        pairs = list(zip(a, b, strict=True))
        return all(x[0] <= y[0] for x, y in pairs) and any(worse(y, x) for x, y in pairs)

    return [b is not None and not any(a is not None and dominates(a, b) for a in rows) for b in rows]


@pytest.mark.parametrize("seed", range(6))
def test_the_front_by_brute_force(seed: int) -> None:
    generator = seeded(seed)
    names, count = list(COSTS)[: 2 + seed % 4], 300
    found = {}
    for name in names:
        value = (
            torch.rand(count, generator=generator, dtype=torch.float64).clamp(min=0.3 if name == "sight" else 0) - 0.3
        )
        error = 0.2 * torch.rand(count, generator=generator, dtype=torch.float64) * (seed % 2)
        missing = torch.rand(count, generator=generator) < 0.05
        found[name] = Quantity.of(value.clamp(min=0) if name == "sight" else value, error, {"none": missing})
    front = nondominated(found)
    assert front.tolist() == by_hand(found)
    assert 0 < int(front.sum()) < count


def test_the_front_of_a_cell_by_brute_force(peephole: ParetoFront) -> None:
    assert peephole.front.tolist() == by_hand(dict(peephole.costs))
    assert 0 < int(peephole.front.sum()) < 96
    # to see T steps is a condition, so where some do the front is among them
    assert bool((peephole.costs["sight"].value[peephole.front] == 0).all())


def test_costs_without_a_weight_are_not_compared(peephole: ParetoFront) -> None:
    two = pareto_front(BASE, 50, RANGES, counted=("variance", "saturation"), specs=96)
    assert two.front.tolist() == by_hand({name: two.costs[name] for name in ("sight", "variance", "saturation")})
    assert 0 < int(two.front.sum()) < int(peephole.front.sum()) / 2
    # the fewer saturated gates the more variance
    on = two.front
    order = two.costs["saturation"].value[on].argsort()
    assert bool((two.costs["variance"].value[on][order].diff() <= 0).all())


def test_a_noisy_difference_does_not_dominate() -> None:
    def two(error: float) -> dict[str, Quantity]:
        off = torch.tensor([error, error])
        return {"sight": Quantity(torch.zeros(2), torch.zeros(2)), "isometry": Quantity(torch.tensor([1.0, 1.2]), off)}

    assert nondominated(two(0.0)).tolist() == nondominated(two(0.05)).tolist() == [True, False]
    assert nondominated(two(0.1)).tolist() == [True, True]


def test_points_cost_what_their_spec_costs(peephole: ParetoFront) -> None:
    for place in (0, 40, 95):
        spec = peephole.spec_at(place)
        assert 2.0 <= spec.gates["f"].bias_mean <= 7.0 and spec.gates["g"] == BASE.gates["g"]
        again = costs(spec, 50, generator=seeded(0))
        for name in COSTS:
            assert float(peephole.costs[name].value[place]) == pytest.approx(again[name].number(), rel=1e-6, abs=1e-9)


def test_the_second_half_lies_around_the_front() -> None:
    found = pareto_front(BASE, 50, RANGES, specs=64)
    sees = found.costs["sight"].value == 0
    assert int(sees[32:].sum()) > int(sees[:32].sum())


def test_equal_seeds_agree_and_others_do_not() -> None:
    one, same, other = (pareto_front(BASE, 50, RANGES, specs=16, generator=seeded(s)) for s in (1, 1, 2))
    assert torch.equal(one.points, same.points) and not torch.equal(one.points, other.points)


def test_a_front_without_sight_is_the_point_that_lacks_least() -> None:
    found = pareto_front(BASE, 1e4, [Range("f.bias_mean", 0.0, 3.0)], specs=16)
    sight = found.costs["sight"].value
    assert torch.equal(found.front, sight == sight.min()) and float(sight.min()) > 1


def test_what_grows_is_set_aside() -> None:
    linear = Spec(Vanilla("identity"), {"h": Gate(input_var=1e-3)})
    found = pareto_front(linear, 10, [Range("h.weight_var", 0.5, 1.5)], specs=32)
    assert 0 < int(found.compared.sum()) < 32 and not bool((found.front & ~found.compared).any())
    hopeless = pareto_front(linear, 10, [Range("h.weight_var", 1.2, 1.5)], specs=8)
    assert not bool(hopeless.front.any()) and hopeless.ranked(Objective()) == []
    with pytest.raises(SpecError, match=r"objective.ranges: \['h.weight_var'\] .* no spec there has a fixed point"):
        chosen(hopeless, Objective())


def test_progress_is_told() -> None:
    told: list[int] = []
    pareto_front(BASE, 50, RANGES, specs=40, progress=told.append)
    assert told == [16, 20, 36, 40]


# -- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "biases"), [*((name, "redrawn") for name in EXACT), ("peephole", "fixed"), ("vanilla", "fixed")]
)
def test_the_taken_point_sees_the_length(name: str, biases: Any) -> None:
    cell = cell_named(name)
    point = isometric(cell, 60, objective=Objective(specs=8 if biases == "fixed" else 24), biases=biases)
    assert point.spec.biases == biases and point.conditions[0].name.endswith(">= T")
    sight = point.analysis.reach if biases == "fixed" else point.analysis.xi
    assert point.conditions[0].met and (sight.number() is None or sight.number() >= 60)
    again = isornn.analyze(Spec.from_json(json.loads(json.dumps(point.spec.to_json()))), length=60)
    assert (again.reach if biases == "fixed" else again.xi).number() == pytest.approx(sight.number(), rel=1e-6)


@pytest.mark.parametrize("cell", [GRU(), LSTM()], ids=str)
def test_sampled_cells(cell: Cell) -> None:
    point = isometric(cell, 20, objective=Objective(specs=8), biases="redrawn")
    assert point.analysis.engine == "population" and point.conditions[0].met
    assert "±" in point.conditions[1].found


def test_the_weights_decide() -> None:
    """Each weight alone takes the least of its cost among those that see T steps."""
    found = pareto_front(*_arguments(Peephole(), 100, biases="redrawn"), specs=64)
    sees = found.costs["sight"].value == 0
    places = set()
    for name in ("isometry", "variance", "time_scales", "saturation"):
        weights: dict[str, Any] = {n: float(n == name) for n in Objective().weights}
        only = Objective(**weights)
        place, analysis = chosen(found, only)
        cost = found.costs[name].value
        assert float(cost[place]) == pytest.approx(float(cost[sees].min())) and analysis.xi.number() >= 100
        places.add(place)
    assert len(places) >= 3


def test_the_score_is_the_weighted_sum() -> None:
    found = {name: Quantity(torch.tensor([float(k)]), torch.tensor([0.1])) for k, name in enumerate(COSTS, 1)}
    found["saturation"] = Quantity.of(torch.zeros(1), reasons={"none": True})
    score = Objective(isometry=3.0, time_scales=0.5).score(found)
    assert float(score.value) == 3.0 * 2 + 1.0 * 3 + 0.5 * 4
    assert float(score.stderr) == pytest.approx(0.1 * math.sqrt(9 + 1 + 0.25))


def slopes_of_network(spec: Spec, steps: int) -> Any:
    return simulate(
        spec, width=200, steps=steps, networks=5, warmup=10, tangents=4, singular_values=True, generator=seeded(7)
    )


@pytest.mark.parametrize("cell", [Peephole(), Minimal()], ids=str)
def test_the_taken_point_against_networks(cell: Cell) -> None:
    """Costs at the point taken, by networks of 200 units: m1, variance and xi from the same run."""
    length, weighed = 12, Objective(saturation=4.0, specs=64)
    ranges = (
        Range(f"{roles_of(cell).remember}.weight_var", 0.05, 0.5),
        Range(f"{roles_of(cell).remember}.bias_mean", 2.0, 6.0),
    )
    point = isometric(cell, length, objective=replace(weighed, ranges=ranges), biases="redrawn")
    found = costs(point.spec, length, generator=seeded(0))
    network = slopes_of_network(point.spec, 20)
    mean, variance = network.spectrum.mean, network.spectrum.variance
    error = length * float(mean.stderr)
    assert found["isometry"].number() == pytest.approx(length * (1 - float(mean.value)), abs=3 * error + 0.01)
    allowed = length * 3 * float(variance.stderr) + 0.005
    assert found["variance"].number() == pytest.approx(length * float(variance.value), abs=allowed)
    chi, off = float(network.chi_1.value), float(network.chi_1.stderr)
    assert -1 / math.log(chi + 3 * off + 0.002) >= length * 0.9
    assert found["sight"].number() == 0


def test_the_line_of_python_reproduces_it() -> None:
    weighed = Objective(
        saturation=0.25, specs=16, ranges=(Range("f.bias_mean", 3.0, 8.0), Range("f.input_var", 0.01, 1))
    )
    fixed: dict[str, Any] = {"g.bias_mean": 0.1}
    law = Input(1 / 3, 0.5)
    point = isometric(Peephole(), 40, objective=weighed, fixed=fixed, input=law, biases="redrawn")
    assert _applied(point) == point.spec
    assert _applied(
        isometric(Minimal(gate="hard_sigmoid"), 40, objective=Objective(specs=8), biases="redrawn")
    ).cell == Minimal("hard_sigmoid")
    plain = isometric(Peephole(), 40, fixed=fixed, input=law, biases="redrawn")
    assert _applied(plain, "isometric_") is not None


def _applied(point: Critical, name: str = "apply_") -> Any:
    """What the line hands on, run as a user would after ``import isornn``."""
    handed: list[Any] = []

    class Namespace:
        def __getattr__(self, other: str) -> Any:
            return getattr(isornn, other)

    scope = Namespace()
    takes: Callable[..., None] = lambda module, *given, **named: handed.append(given[0] if given else named)  # noqa: E731
    scope.init = type("Init", (), {name: staticmethod(takes)})  # type: ignore[attr-defined]
    eval(point.python, {"isornn": scope, "module": None})
    return handed[0]


def test_the_line_sets_a_module() -> None:
    module = torch.nn.RNN(3, 8)
    line = isometric(Vanilla(), 20, objective=Objective(specs=8)).python
    before = module.weight_hh_l0.clone()
    assert eval(line, {"isornn": isornn, "module": module}) is module and not torch.equal(before, module.weight_hh_l0)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Range("f.bias_mean", 2.0, 2.0), r"ranges.f.bias_mean: \(2.0, 2.0\) .* LOW is below HIGH"),
        (lambda: Range("f.bias_mean", 0.0, math.inf), "both are finite"),
        (lambda: Range("f.weight_var", 0.0, 1.0, log=True), "LOW is above 0"),
        (lambda: Objective(isometry=-1.0), "objective.isometry: -1.0"),
        (lambda: Objective(variance=math.nan), "objective.variance: nan"),
        (lambda: Objective(saturation=True), "objective.saturation: True"),
        (lambda: Objective(0.0, 0.0, 0.0, 0.0), "one weight is above 0"),
        (lambda: Objective(specs=7), "specs: 7 .* from 8 to 100000"),
        (lambda: pareto_front(BASE, 1.0, RANGES), "length: 1.0 .* from 2"),
        (lambda: pareto_front(BASE, 50, RANGES, specs=0), "specs: 0"),
        (lambda: pareto_front(BASE, 50, RANGES, counted=("beauty",)), "counted: .*'beauty'.* costs are isometry"),
        (lambda: pareto_front(BASE, 50, ()), "ranges: .* there is at least one"),
        (lambda: pareto_front(BASE, 50, RANGES[:1] * 2), "ranges: 'f.bias_mean' .* each field has one range"),
        (lambda: pareto_front(BASE, 50, [Range("q.bias_mean", 0, 1)]), "ranges: 'q.bias_mean' .* GATE of i, f, g, o"),
        (lambda: pareto_front(BASE, 50, [Range("f.ensemble", 0, 1)]), "ranges: 'f.ensemble'"),
        (lambda: pareto_front(BASE, 50, [Range("f.weight_var", -1, 1)]), "f.weight_var: -1"),
        (lambda: pareto_front(BASE, 50, [Range("bias_law.low", 1, 2)]), "bias_law.low.* no gate .* time-scale law"),
        (lambda: pareto_front(BASE.replace("f.bias_mean", torch.ones(2)), 50, RANGES[1:]), "spec: .* not a batch"),
        (
            lambda: isometric(Peephole(), 50, objective=Objective(), fixed={"f.bias_law": None}),
            "it is what sets the length",
        ),
        (
            lambda: isometric(Peephole(), 50, objective=Objective(ranges=RANGES), fixed={"f.weight_var": 1.0}),
            "f.weight_var: 1.0 .* in the objective's ranges",
        ),
        (lambda: isometric(Peephole(), True, objective=Objective()), "length: True"),
    ],
)
def test_bad_input_is_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()


def test_ends_of_a_law_do_not_cross() -> None:
    spec, _ = subspace(Peephole(), 50)
    crossing = [Range("bias_law.low", 1, 100), Range("bias_law.high", 50, 200)]
    with pytest.raises(SpecError, match="ranges.bias_law: .* low never exceeds high"):
        pareto_front(spec, 50, crossing)
    with pytest.raises(SpecError, match="ranges.bias_law"):
        pareto_front(spec, 50, [Range("bias_law.low", -1.0, 10)])


def test_fixed_fields_are_not_varied() -> None:
    spec, ranges = subspace(Peephole(), 50, fixed={"f.weight_var": 0.25})
    assert spec.gates["f"].weight_var == 0.25 and "f.weight_var" not in [r.path for r in ranges]
