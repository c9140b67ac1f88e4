"""`critical` is one start wherever it is drawn or shown, and what is read off a module is what was drawn."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import nn

import isornn
from isornn import init
from isornn.cells import (
    CELLS,
    LSTM,
    Cell,
    Gate,
    Input,
    Minimal,
    Peephole,
    Reads,
    Spec,
    SpecError,
    Values,
    Vanilla,
    cell_named,
)
from isornn.cells.bias_laws import BiasLaw, bias_law_from_json
from isornn.cells.catalogue import FURTHER_CELLS
from isornn.cells.graph_values import at_start
from isornn.cells.openings import refusal
from isornn.cells.roles import roles_of
from isornn.cli.ask import started
from isornn.diagnosis import Finding, fix_
from isornn.diagnosis.fixes import Fix, redraw_
from isornn.explorer import work
from isornn.init import starts
from isornn.nn import RNN
from isornn.nn.gate_tensors import ModuleError, recurrent_layers
from isornn.nn.layout import GateTensors
from isornn.theory import analyze
from isornn.theory.carry import Carry
from isornn.theory.critical_points.rule import slow_end
from isornn.theory.population.slow_law import one_variate
from isornn.theory.population.units import Draws, Laws, Units, fixed_biases
from isornn.theory.quadrature.bias_nodes import bias_nodes
from isornn.theory.quadrature.roots import brent

CATALOGUE = [*CELLS, *FURTHER_CELLS]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def specs_everywhere(cell: Cell, length: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Spec]:
    """The spec by which each place sets or shows the start `critical`."""
    found: list[Spec] = []
    layer = recurrent_layers(RNN(cell, 3, 8))[0]
    monkeypatch.setattr(
        starts, "set_layers", lambda module, spec_of_layer, generator: found.append(spec_of_layer(layer))
    )
    init.critical_(RNN(cell, 3, 8), length)
    text = work.to_text(Spec(cell))
    return {
        "init.critical_": found[0],
        "isornn.critical": isornn.critical(cell, length).spec,
        "isornn analyze, compare, demo": started("critical", cell, 8, 3, length, Input()),
        "explorer": work.from_text(work.starting_point("critical", text, 8, 3, length)["spec"]),
    }


def test_critical_is_one_start_in_all_places(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Peephole()
    found = specs_everywhere(cell, 40, monkeypatch)
    for place, spec in found.items():
        assert spec == found["isornn.critical"], place
    assert found["isornn.critical"] != isornn.isometric(cell, 40).spec == started("isometric", cell, 8, 3, 40, Input())


def test_a_fix_draws_critical() -> None:
    model = nn.GRU(3, 8)
    fix_(model, [Finding("default_start", "GRU l0", "", {}, Fix(redraw_, "GRU l0", (40,)))], generator=seeded())
    wanted = init.critical_(nn.GRU(3, 8), 40, generator=seeded())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), wanted.parameters(), strict=True))


@pytest.mark.parametrize("name", CATALOGUE)
def test_critical_draws_the_spec_of_critical(name: str) -> None:
    cell = cell_named(name)
    if refusal(cell) is not None and name != "vanilla":
        for ask in (lambda: isornn.critical(cell, 30), lambda: init.critical_(RNN(cell, 8, 8), 30)):
            with pytest.raises(
                SpecError, match=f"'{name}' is not allowed; .* (no start sets its reach|its start already)"
            ):
                ask()
        return
    spec = isornn.critical(cell, 30).spec
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        drawn = init.critical_(RNN(cell, 8, 8), 30, generator=seeded())
    applied = init.apply_(RNN(cell, 8, 8), spec, generator=seeded())
    for own, other in zip(recurrent_layers(drawn), recurrent_layers(applied), strict=True):
        for gate in cell.gates:
            pairs = zip(tensors(own.gates[gate]), tensors(other.gates[gate]), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def tensors(gate: GateTensors) -> list[torch.Tensor]:
    return [t for t in (gate.recurrent, gate.input, gate.previous_input, *gate.biases) if t is not None]


# -- the slow end -----------------------------------------------------------------------------------------------------


def reach_of_biases(high: float) -> float:
    """As the search that `slow_end` replaces measured it: the carry of a peephole's c over the engine's bias nodes."""
    state = roles_of(Peephole()).gated[0]
    spec = Spec(Peephole(), {"f": Gate(bias_law=BiasLaw("capped_timescale", 1.0, high))}, biases="fixed")
    nodes = bias_nodes(spec, dict.fromkeys(spec.gates, torch.zeros(1, 1, 1, dtype=torch.float64)))
    kept = state.coefficient(at_start(spec.cell, dict(nodes.offset))).square()
    return Carry("c", kept.reshape(-1), nodes.weight.expand(kept.shape).reshape(-1) / kept.shape[0]).reach()


@pytest.mark.parametrize("length", [2.0, 7.5, 100.0])
def test_the_slow_end_is_that_of_the_search_before(length: float) -> None:
    root = 10 ** brent(lambda x: math.log(reach_of_biases(10**x) / length), 0.1, 4.0, xtol=1e-12)
    assert slow_end(length) == pytest.approx(root, rel=1e-9)


@pytest.mark.parametrize("length", [2.0, 100.0, 1000.0, 1e6])
def test_the_slow_end_solves_its_equation(length: float) -> None:
    high = slow_end(length)

    def mean(steps: float) -> float:
        """E q^steps over units, by adaptive quadrature over ln r."""
        end = math.log(high)
        spread, _ = quad(lambda z: math.exp(-2 * steps * math.log1p(math.exp(-z))), 0, end, epsabs=0, epsrel=1e-12)
        return spread / end / 3 + 2 / 3 * math.exp(-2 * steps * math.log1p(1 / high))

    assert mean(length + 1) / mean(1) == pytest.approx(1 / math.e, rel=1e-10)


# -- what is read off a module ----------------------------------------------------------------------------------------


def test_a_module_reads_back_with_the_reach_of_its_units() -> None:
    """One normal law for all units, as it once was, has 190 of 500; the law of the start itself 500."""
    layer = init.critical_(RNN(Peephole(), 8, 600), 500, generator=seeded())
    spec = init.spec_of(layer)
    units = torch.stack([bias.detach().double() for bias in layer.gate_parameters("f").biases]).sum(0)
    kept = units.sigmoid().square()
    expected = brent(lambda t: float((kept ** (t + 1)).mean() / kept.mean()) - 1 / math.e, 10.0, 5000.0)
    assert analyze(spec, length=10).reach.number() == pytest.approx(expected, rel=2e-3)
    assert isornn.critical(Peephole(), 500).analysis.reach.number() == pytest.approx(500, rel=1e-3)
    assert expected == pytest.approx(500, rel=0.1)  # of 600 units


def test_a_population_has_each_unit_as_often() -> None:
    values = torch.randn(32, generator=seeded(), dtype=torch.float64)
    laws = Laws.of(Spec(Minimal(), {"u": law(values)}, biases="fixed"))
    offsets, weights = fixed_biases(laws, Draws(1, 2, 128, seeded()), {"u"})
    assert weights is None  # nothing is drawn beyond the law
    for replicate in offsets["u"][0]:
        units, counts = replicate.unique(return_counts=True)
        assert torch.equal(units, values.sort().values) and counts.tolist() == [4] * 32


def test_biases_of_several_gates_are_one_variate_where_they_go_together() -> None:
    i, f = torch.randn(2, 16, generator=seeded(), dtype=torch.float64)
    for write, together in ((-f, True), (i, False)):
        laws = Laws.of(Spec(LSTM(), {"i": law(write), "f": law(f)}, biases="fixed"))
        offsets, weights = fixed_biases(laws, Draws(1, 2, 64, seeded()), {"f"})
        assert one_variate(laws, Units({}, offsets, weights)) is together


def test_units_keep_their_biases_of_all_gates_together() -> None:
    i, f = torch.randn(2, 40, generator=seeded()).double()
    spec = Spec(LSTM(), {"i": law(i), "f": law(f)}, biases="fixed")
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    drawn = init.apply_(nn.LSTM(2, 500, dtype=torch.float64), spec, generator=seeded())
    own_i, own_f, _, _ = drawn.bias_ih_l0.detach().chunk(4)
    unit = (own_i[:, None] == i).nonzero()[:, 1]
    assert len(unit) == 500 and torch.equal(own_f, f[unit]) and len(unit.unique()) == 40


def law(values: torch.Tensor) -> Gate:
    return Gate(bias_law=BiasLaw("empirical", values=tuple(values.tolist())))


@pytest.mark.parametrize("value", [[], "x", [1, "2"], [math.nan], [True], 3])
def test_what_is_no_empirical_law_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r'\{"empirical": \[number, ...\]\}'):
        bias_law_from_json({"empirical": value})


def test_empirical_laws_list_the_same_units() -> None:
    for other in (law(torch.zeros(3)), Gate(bias_law=BiasLaw("chrono", 1.0, 9.0))):
        with pytest.raises(SpecError, match=r"gates\.i\.bias_law: .* as many units"):
            Spec(LSTM(), {"f": law(torch.zeros(4)), "i": other})


# -- conditions and refusals ------------------------------------------------------------------------------------------


def test_conditions_that_fixed_fields_break_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="peephole at length 50 does not meet reach = T within a factor 2"):
        init.critical_(RNN(Peephole(), 3, 8), 50, fixed={"f.input_var": 4.0})
    with pytest.warns(UserWarning, match="peephole at length 50 does not meet reach = T within a factor 2"):
        # What the gates keep of a state near 0 meets it: that the state itself moves the gate takes the theory.
        init.critical_(RNN(Peephole(), 3, 8), 50, fixed={"f.weight_var": 100.0}, input=Input())
    with pytest.warns(UserWarning, match="minimal at length 50 does not meet reach = T"):
        init.critical_(RNN(Minimal(), 3, 8), 50, input=Input(1.0, 0.0), fixed={"u.input_var": 25.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        init.critical_(RNN(Peephole(), 3, 8), 50, fixed={"g.input_var": 2.0}, input=Input())
        init.critical_(nn.GRU(3, 8), 50, input=Input())


def test_a_length_out_of_reach_is_named_as_it_was_given() -> None:
    with pytest.raises(SpecError, match=r"length: 1000\.0 is not allowed; .* no fixed point sees 1000 steps"):
        init.critical_(nn.RNN(2, 3), 1000, fixed={"h.bias_mean": 400.0})


@dataclass(frozen=True)
class Average(Cell):
    """A recurrent weighted average: its sums lose nothing, and no weights make them forget after T steps."""

    name = "average"
    states = ("h", "n", "d")
    gates = {"z": Reads(), "a": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        n, d = s.n + u.z * torch.exp(u.a), s.d + torch.exp(u.a)
        return {"h": torch.tanh(n / (d + 1)), "n": n, "d": d}


def test_a_cell_that_never_forgets_is_refused() -> None:
    for ask in (lambda: isornn.critical(Average(), 100), lambda: init.critical_(RNN(Average(), 3, 4), 100)):
        with pytest.raises(SpecError, match=r"length: 100\.0 is not allowed; .* no fixed point sees 100 steps"):
            ask()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"fixed": [1]}, r"fixed: \[1\] is not allowed; it must be values by field"),
        ({"fixed": {1: 2}}, "fixed: .* values by field"),
        ({"fixed": {"z.input_var": "1"}}, r"gates\.z\.input_var: '1'"),
        ({"fixed": {"nx.bias_law": 3}}, r"gates\.nx\.bias_law: 3 is not allowed; it must be an isornn.cells.BiasLaw"),
        ({"input": 2.0}, "input: 2.0 is not allowed; it must be an isornn.Input"),
        ({"generator": 5}, "generator: 5 is not allowed; it must be a torch.Generator"),
        ({"length": "9"}, "length: '9'"),
        ({"length": 1}, "length: 1 "),
    ],
)
def test_arguments_of_other_types_are_named(given: dict[str, object], said: str) -> None:
    for start in (init.critical_, init.isometric_):
        with pytest.raises(SpecError, match=said):
            start(nn.GRU(2, 3), **{"length": 9, **given})  # type: ignore[arg-type]


def test_other_functions_name_arguments_too() -> None:
    with pytest.raises(SpecError, match="biases: 'some'"):
        init.isometric_(nn.GRU(2, 3), 9, biases="some")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="cell: <class .*LSTM'> is not allowed; it must be a cell"):
        isornn.critical(nn.LSTM, 9)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="objective: 3"):
        isornn.isometric(Vanilla(), 9, objective=3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="spec: 3 is not allowed; it must be an isornn.Spec"):
        init.apply_(nn.LSTM(2, 3), 3)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="generator: 5"):
        init.standard_(nn.LSTM(2, 3), generator=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (Gate(bias_mean=1e6), r"gates\.f\.bias_mean: 1000000\.0 .* LSTM l0 is float16, whose largest number is 65504"),
        (Gate(bias_mean=-1e6), r"gates\.f\.bias_mean: -1000000\.0 .* 65504"),
        (Gate(bias_var=1e12), r"gates\.f\.bias_mean: 0\.0 .* 65504, with bias_var 1e\+12"),
        (law(torch.tensor([0.0, 1e5])), r"gates\.f\.bias_mean: 0\.0 .* 65504"),
        (Gate(weight_var=1e12), r"gates\.f\.weight_var: .* 65504"),
        (Gate(input_var=1e12), r"gates\.f\.input_var: .* 65504"),
    ],
)
def test_numbers_beyond_the_dtype_are_refused_before_anything_is_written(gate: Gate, said: str) -> None:
    module = nn.LSTM(2, 3, dtype=torch.float16)
    before = [p.clone() for p in module.parameters()]
    with pytest.raises(SpecError, match=said):
        init.apply_(module, Spec(LSTM(), {"f": gate}))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    init.apply_(nn.LSTM(2, 3), Spec(LSTM(), {"f": gate}))
    assert all(bool(p.isfinite().all()) for p in init.critical_(module, 1_000_000).parameters())


class Forecaster:
    """As darts and NeuralForecast have it: no module, but an owner of one."""

    def __init__(self, **own: object) -> None:
        self.horizon, self.head = 5, nn.Linear(2, 2)
        vars(self).update(own)


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        (Forecaster(model=nn.Sequential(nn.GRU(2, 3))), r"Forecaster is no torch.nn.Module; its attribute model \(Seq"),
        (Forecaster(models=[nn.LSTM(2, 3)]), r"its attribute models\[0\] \(LSTM\) is one with recurrent layers"),
        (Forecaster(models={"a": nn.LSTM(2, 3)}), r"its attribute models\['a'\] \(LSTM\) is one with recurrent layers"),
        (Forecaster(), "module: Forecaster is no torch.nn.Module$"),
        (None, "module: NoneType is no torch.nn.Module$"),
    ],
)
def test_a_wrapper_is_told_which_attribute_is_the_module(wrapper: object, said: str) -> None:
    for start in (init.standard_, init.spec_of, lambda module: init.critical_(module, 9)):
        with pytest.raises(ModuleError, match=said):
            start(wrapper)  # type: ignore[arg-type]
