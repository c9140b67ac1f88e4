"""Named starts as hyper-parameters: every figure of the conventions, and every refusal."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isornn.cells import CELLS, GRU, LSTM, BiasLaw, Cell, ChoGRU, Input, Peephole, Spec, SpecError, Vanilla, cell_named
from isornn.cells.activations import hard_sigmoid
from isornn.cells.bias_laws import WITH_ENDS, bias_law_from_json
from isornn.cells.random_specs import random_spec
from isornn.cells.roles import roles_of
from isornn.cells.starts import PRESETS, STARTS, TIMED, preset, start

N, D = 128, 49
SPREAD = ("chrono", "uniform_gate", "forget_bias_3_to_6", "doubled_chrono")


def cells() -> list[Cell]:
    return [cell_named(name) for name in CELLS]


STARTS_OF_CELLS = [
    (name, cell) for name in STARTS for cell in cells() if roles_of(cell).remember is not None or name not in SPREAD
]


@pytest.mark.parametrize(("name", "cell"), STARTS_OF_CELLS, ids=lambda part: getattr(part, "name", part))
def test_every_start_of_every_cell_is_a_spec_that_survives_json(name: str, cell: Cell) -> None:
    spec = start(name, cell, N, D, length=100, input=Input(2.0, 0.5))
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.input == Input(2.0, 0.5)
    assert spec.biases == ("fixed" if name in SPREAD else "redrawn")


def test_torch_counts_the_biases_that_torch_adds() -> None:
    two, one = 2 / (3 * N), 1 / (3 * N)
    lstm = start("torch", LSTM(), N, D).gates
    assert {g.bias_var for g in lstm.values()} == {two}
    assert all(
        g.weight_var == pytest.approx(1 / 3) and g.input_var == pytest.approx(D / (3 * N)) for g in lstm.values()
    )
    gru = start("torch", GRU(), N, D).gates
    assert {name: gate.bias_var for name, gate in gru.items()} == {"r": two, "z": two, "nx": one, "nh": one}
    assert start("torch", Vanilla(), N, D).gates["h"].bias_var == two
    assert {g.bias_var for g in start("torch", Peephole(), N, D).gates.values()} == {two}
    assert {g.bias_var for g in start("torch", ChoGRU(), N, D).gates.values()} == {two}
    assert start("torch", cell_named("minimal"), N, D).gates["u"].bias_var == two
    assert {g.bias_var for g in start("torch", cell_named("t_lstm"), N, D).gates.values()} == {one}
    typed = start("torch", cell_named("t_lstm"), N, D).gates["f"]
    assert typed.previous_input_var == typed.input_var == pytest.approx(D / (3 * N))


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_standard_sets_the_remember_gate_once_and_nothing_else(cell: Cell) -> None:
    spec, keep = start("standard", cell, N, D), roles_of(cell).remember
    for name, gate in spec.gates.items():
        reads = cell.gates[name]
        assert gate.bias_mean == (1.0 if name == keep else 0.0)
        assert gate.bias_var == 0.0 and gate.bias_law is None
        assert gate.weight_var == (1.0 if reads.state else 0.0)
        assert gate.ensemble == ("orthogonal" if reads.state else "gaussian")
        assert gate.input_var == pytest.approx(2 * D / (D + N) if reads.input else 0.0)


def test_vanilla_alone_of_the_nine_has_no_remember_gate() -> None:
    assert [cell.name for cell in cells() if roles_of(cell).remember is None] == ["vanilla"]


def test_orthogonal_glorot_and_identity_differ_in_the_ensemble_only() -> None:
    specs = {name: start(name, LSTM(), N, D) for name in ("orthogonal", "glorot", "identity")}
    assert [specs[name].gates["f"].ensemble for name in specs] == ["orthogonal", "gaussian", "identity"]
    for spec in specs.values():
        assert all(gate.weight_var == 1.0 and gate.bias_mean == 0.0 for gate in spec.gates.values())


def test_chrono_mirrors_on_a_write_gate_of_its_own_only() -> None:
    lstm = start("chrono", LSTM(), N, D, length=200).to_json()["gates"]
    assert lstm["f"]["bias_law"] == {"chrono": 200.0}
    assert lstm["i"]["bias_law"] == {"chrono": 200.0, "sign": -1}
    assert "bias_law" not in lstm["g"] and "bias_law" not in lstm["o"]
    assert all(gate["bias_mean"] == 0.0 for gate in lstm.values())
    gru = start("chrono", GRU(), N, D, length=200).to_json()["gates"]
    assert [name for name, gate in gru.items() if "bias_law" in gate] == ["z"]


def test_uniform_gate_is_uniform_and_mirrored() -> None:
    gates = start("uniform_gate", LSTM(), N, D).gates
    keep, write = gates["f"].bias_law, gates["i"].bias_law
    assert keep is not None and write is not None
    v = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    torch.testing.assert_close(torch.sigmoid(keep.quantile(v)), v)
    torch.testing.assert_close(write.quantile(v), -keep.quantile(v))


def test_forget_biases_of_3_leave_everything_else_as_torch_has_it() -> None:
    torchs = start("torch", LSTM(), N, D).to_json()["gates"]
    for name in ("forget_bias_3", "forget_bias_3_to_6"):
        gates = start(name, LSTM(), N, D).to_json()["gates"]
        forget = gates.pop("f")
        assert gates == {gate: law for gate, law in torchs.items() if gate != "f"}
        assert forget["weight_var"] == torchs["f"]["weight_var"] and forget["input_var"] == torchs["f"]["input_var"]
    gate = start("forget_bias_3", LSTM(), N, D).gates["f"]
    assert (gate.bias_mean, gate.bias_var) == (3.0, torchs["f"]["bias_var"] / 2)
    law = start("forget_bias_3_to_6", LSTM(), N, D).gates["f"].bias_law
    assert law is not None
    ends = law.quantile(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    torch.testing.assert_close(ends, torch.tensor([3.0, 4.5, 6.0], dtype=torch.float64))


def test_doubled_chrono_has_the_law_of_a_sum_of_two_of_chronos() -> None:
    """Against draws of the two, as a module with chrono in both biases has them: sqrt(n) sup |F_n - F| < 1.95."""
    gates = start("doubled_chrono", LSTM(), 1000, D, length=100).gates
    keep, write = gates["f"].bias_law, gates["i"].bias_law
    assert keep is not None and write is not None and (keep.values, keep.sign) == (write.values, -write.sign)
    drawn = (1 + 98 * torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0))).log().sum(0)
    below = (drawn[:, None] <= torch.tensor(keep.values)).double().mean(0)
    assert float((below - (torch.arange(1000) + 0.5) / 1000).abs().max()) < 1.95 / math.sqrt(20_000) + 1e-3
    assert all(gate.bias_var == gate.bias_mean == 0 for gate in gates.values())


def test_a_stack_has_the_variances_of_its_blocks() -> None:
    wide = start("stacked_orthogonal", GRU(), N, 1000).gates
    assert {name: gate.weight_var for name, gate in wide.items()} == {"r": 1 / 3, "z": 1 / 3, "nx": 0, "nh": 1 / 3}
    assert {name: gate.input_var for name, gate in wide.items()} == {"r": 1, "z": 1, "nx": 1, "nh": 0}
    assert start("stacked_orthogonal", LSTM(), N, D).gates["o"].input_var == D / (4 * N)


@pytest.mark.parametrize("length", [None, 2, 1.5, -3, math.nan, math.inf, "long", True])
@pytest.mark.parametrize("name", TIMED)
def test_chrono_needs_a_length_above_two(name: str, length: float | None) -> None:
    with pytest.raises(SpecError, match="length: .*above 2"):
        start(name, LSTM(), N, D, length=length)


@pytest.mark.parametrize("name", SPREAD)
def test_time_scales_need_a_remember_gate(name: str) -> None:
    with pytest.raises(SpecError, match="vanilla has none"):
        start(name, Vanilla(), N, D, length=100)


def test_refusals_name_the_field_and_what_is_allowed() -> None:
    with pytest.raises(SpecError, match="init: 'xavier'.*standard"):
        start("xavier", LSTM(), N, D)
    with pytest.raises(SpecError, match="hidden: 0"):
        start("torch", LSTM(), 0, D)
    with pytest.raises(SpecError, match="inputs: 1.5"):
        start("torch", LSTM(), N, 1.5)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="preset: 'gilboa'.*gilboa-standard"):
        preset("gilboa")


def test_presets_are_the_papers() -> None:
    lstm = preset("gilboa-lstm-critical").gates
    assert [gate.weight_var for gate in lstm.values()] == [1e-5, 1e-5, 1e-5, 1.0]
    assert [gate.input_var for gate in lstm.values()] == [1.0, 0.0, 1.0, 0.0]
    assert [gate.bias_mean for gate in lstm.values()] == [0.0, 1.0, 0.0, 0.0]
    peephole = preset("gilboa-peephole-critical").gates
    assert [gate.weight_var for gate in peephole.values()] == [1e-5] * 4
    assert [gate.bias_mean for gate in peephole.values()] == [0.0, 5.0, 0.0, 0.0]
    standard = preset("gilboa-standard")
    assert standard.gates["i"].input_var == 1.0, "D = N, as the paper has it"
    assert preset("gilboa-standard", N, D) == start("standard", LSTM(), N, D)
    for name in PRESETS:
        assert Spec.from_json(preset(name).to_json()) == preset(name)


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_random_specs_obey_their_law_and_their_generator(cell: Cell) -> None:
    draw = torch.Generator().manual_seed(3)
    specs = [random_spec(cell, draw) for _ in range(200)]
    draw.manual_seed(3)
    assert [random_spec(cell, draw) for _ in range(200)] == specs
    keep = roles_of(cell).remember
    for spec in specs:
        assert 0.25 <= float(spec.input.variance) <= 4
        assert 0 <= float(spec.input.correlation) <= 1
        for name, gate in spec.gates.items():
            assert not cell.gates[name].state or 0.01 <= float(gate.weight_var) <= 4
            assert not cell.gates[name].input or 0.1 <= float(gate.input_var) <= 4
            assert -1 <= float(gate.bias_mean) <= (3 if name == keep else 1)
            assert 0 <= float(gate.bias_var) <= 0.5
    assert 60 < sum(spec.input.correlation == 1.0 for spec in specs) < 140


@pytest.mark.parametrize("kind", WITH_ENDS)
def test_laws_with_ends_survive_json_and_keep_to_their_ends(kind: str) -> None:
    law = BiasLaw(kind, 2.0, 50.0, sign=-1)
    assert bias_law_from_json(law.to_json()) == law
    ends = -law.quantile(torch.tensor([0.0, 1.0], dtype=torch.float64))
    open_to = hard_sigmoid(ends) if kind.startswith("hard") else ends.sigmoid()
    torch.testing.assert_close(open_to / (1 - open_to), torch.tensor([2.0, 50.0], dtype=torch.float64))


def test_octaves_of_a_log_law_have_as_many_units() -> None:
    v = (torch.arange(7000, dtype=torch.float64) + 0.5) / 7000
    octaves = BiasLaw("log_timescale", 1.0, 128.0).quantile(v).exp().log2().floor()
    assert octaves.unique(return_counts=True)[1].tolist() == [1000] * 7


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kind": "logtimescale", "low": 1.0, "high": 99.0}, "bias_law.kind: 'logtimescale'"),
        ({"kind": "hard_chrono", "low": 1.0, "high": 9.0}, "bias_law.kind"),
        ({"kind": "timescale", "low": 9.0, "high": 1.0}, r"bias_law: \(9.0, 1.0\)"),
        ({"kind": "timescale", "low": 0.0, "high": 1.0}, "0 < low <= high"),
        ({"kind": "timescale", "low": 1.0, "high": math.inf}, "0 < low <= high"),
        ({"kind": "chrono"}, "ends of chrono"),
        ({"kind": "chrono", "low": 2.0, "high": 9.0}, "ends of chrono"),
        ({"kind": "uniform_gate", "sign": 5}, "bias_law.sign: 5"),
        ({"kind": "empirical"}, "bias_law.values"),
        ({"kind": "empirical", "values": (1.0, math.nan)}, "bias_law.values"),
    ],
)
def test_laws_that_are_none(given: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        BiasLaw(**given)
