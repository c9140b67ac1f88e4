"""Named starts: the laws of the matrices and biases that each draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from inits import BASELINES, NEEDS_BIAS, STACKS, D, N, assert_recovered, seeded, tensors_of
from isornn.cells import (
    GRU,
    LSTM,
    BiasLaw,
    Cell,
    Gate,
    Spec,
    Vanilla,
)
from isornn.cells.refine import URGRU, URLSTM
from isornn.cells.roles import roles_of
from isornn.cells.starts import start
from isornn.init import (
    ModuleError,
    apply_,
    chrono_,
    glorot_,
    identity_,
    orthogonal_,
    spec_of,
    stacked_orthogonal_,
    standard_,
    uniform_gate_,
)
from isornn.nn.gate_tensors import recurrent_layers
from isornn.nn.rnn import RNN


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_remember_bias_is_one_and_not_doubled_in_every_layer_and_direction(kind: str) -> None:
    module = standard_(STACKS[kind](D, N, num_layers=3, bidirectional=True), generator=seeded())
    layers = recurrent_layers(module)
    assert len(layers) == 6
    for layer in layers:
        for gate in layer.gates:
            bias = tensors_of(layer, gate)[2]
            assert bias.eq(1.0 if gate == roles_of(layer.cell).remember else 0.0).all(), (layer.where, gate)


@pytest.mark.parametrize("baseline", [standard_, orthogonal_])
@pytest.mark.parametrize("kind", STACKS)
def test_recurrent_matrices_are_orthogonal_gate_by_gate(kind: str, baseline: Callable[..., nn.Module]) -> None:
    module = baseline(STACKS[kind](D, N, num_layers=2, bidirectional=True), generator=seeded())
    for layer in recurrent_layers(module):
        bound = math.sqrt(6 / (N + layer.inputs))
        for gate, reads in layer.cell.gates.items():
            w, u, _ = tensors_of(layer, gate)
            if reads.state:
                assert w is not None
                torch.testing.assert_close(w @ w.T, torch.eye(N, dtype=torch.float64), atol=1e-5, rtol=0)
            if reads.input:
                assert u is not None and bool(u.abs().max() <= bound) and bool(u.abs().max() > 0.95 * bound)
        assert spec_of(module, layer.layer, layer.direction).biases == "redrawn"
    stacked = module.get_parameter("weight_hh_l0").detach()
    if kind in ("lstm", "gru"):
        gram = stacked.T @ stacked
        assert not torch.allclose(gram, torch.eye(N), atol=0.5), "orthogonal as one stacked matrix"


def test_glorot_is_uniform_by_gate_and_not_by_stack() -> None:
    layer = recurrent_layers(glorot_(nn.LSTM(D, N), generator=seeded()))[0]
    for gate in layer.gates:
        w, u, bias = tensors_of(layer, gate)
        assert w is not None and u is not None
        for weight, bound in ((w, math.sqrt(6 / (2 * N))), (u, math.sqrt(6 / (D + N)))):
            assert 0.98 * bound < float(weight.abs().max()) <= bound
            assert float(weight.var()) == pytest.approx(bound**2 / 3, rel=0.1)
        assert not bias.any()


def test_identity_is_the_identity_and_is_read_back() -> None:
    module = identity_(nn.GRU(D, N, num_layers=2), generator=seeded())
    for layer in (0, 1):
        gates = spec_of(module, layer).gates
        assert {gate: g.ensemble for gate, g in gates.items()} == {
            "r": "identity",
            "z": "identity",
            "nx": "gaussian",
            "nh": "identity",
        }
        assert gates["r"].weight_var == 1.0


def test_chrono_has_its_law_and_its_mirror() -> None:
    length, hidden = 200, 4000
    lstm = chrono_(nn.LSTM(2, hidden // 10, num_layers=10), length, generator=seeded())
    remember, write = (
        torch.cat([tensors_of(layer, gate)[2] for layer in recurrent_layers(lstm)]) for gate in ("f", "i")
    )
    assert torch.equal(remember, -write)
    uniform = (remember.exp() - 1) / (length - 2)
    assert float(uniform.min()) >= -1e-6 and float(uniform.max()) <= 1 + 1e-6
    distance = (uniform.sort().values - torch.arange(hidden) / hidden).abs().max()
    assert float(distance) < 1.63 / math.sqrt(hidden), "Kolmogorov-Smirnov at 1 %"
    assert spec_of(lstm, 0).biases == "fixed"


@pytest.mark.parametrize("cell", [URLSTM(), URGRU()], ids=lambda cell: cell.name)
def test_uniform_gate_mirrors_the_refine_gate_unit_by_unit(cell: Cell) -> None:
    layer = uniform_gate_(RNN(cell, 2, 64), generator=seeded())
    f, r = (torch.stack(layer.gate_parameters(gate).biases).sum(0).detach() for gate in ("f", "r"))
    assert torch.equal(r, -f) and 0.4 < float(f.sigmoid().mean()) < 0.6


def test_uniform_gate_is_uniform_and_finite_at_every_width() -> None:
    for hidden in (1, 2, 3, 512):
        gate = recurrent_layers(uniform_gate_(nn.LSTM(2, hidden), generator=seeded()))[0]
        remember, write = (torch.sigmoid(tensors_of(gate, name)[2]) for name in ("f", "i"))
        assert (
            float(remember.min()) >= min(1 / hidden, 0.5) - 1e-6
            and float(remember.max()) <= 1 - 1 / max(hidden, 2) + 1e-6
        )
        torch.testing.assert_close(write, 1 - remember)
    assert float((remember.sort().values - torch.arange(512) / 512).abs().max()) < 1.63 / math.sqrt(512)


@pytest.mark.parametrize("kind", STACKS)
def test_stacks_are_as_torch_makes_them_orthogonal(kind: str) -> None:
    """The parameters as a whole, whatever gates they hold: `torch.nn.init.orthogonal_` has these singular values."""
    module = stacked_orthogonal_(STACKS[kind](D, N, num_layers=2, bidirectional=True), generator=seeded())
    for name, parameter in module.named_parameters():
        if "bias" in name:
            assert not parameter.any()
        else:
            torchs = nn.init.orthogonal_(torch.empty(parameter.shape, dtype=torch.float64))
            measured, wanted = (torch.linalg.svdvals(each.detach().double()) for each in (parameter, torchs))
            torch.testing.assert_close(measured, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["stacked_orthogonal", "forget_bias_3", "doubled_chrono"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_starts_in_use_read_back_as_their_specs(kind: str, name: str) -> None:
    module = BASELINES[name](STACKS[kind](D, N), generator=seeded())
    layer, found = recurrent_layers(module)[0], spec_of(module)
    wanted = start(name, layer.cell, N, D, 100)
    for gate, law in wanted.gates.items():
        if law.bias_law is None:
            assert_recovered(found.gates[gate], law, N, D)
        else:
            biases = tensors_of(layer, gate)[2]
            values = torch.tensor(law.bias_law.values, dtype=torch.float64) * law.bias_law.sign
            assert bool(((biases[:, None] - values).abs().min(1).values < 1e-6).all())


def test_margin_bounds_the_singular_values_and_fills_the_margin() -> None:
    spec = Spec(Vanilla(), {"h": Gate(weight_var=4.0, ensemble=0.3)})
    module = apply_(nn.RNN(1, 200), spec, generator=seeded())
    singular = torch.linalg.svdvals(module.get_parameter("weight_hh_l0").detach().double()) / 2.0
    assert 0.7 - 1e-5 <= float(singular.min()) < 0.72 and 1.28 < float(singular.max()) <= 1.3 + 1e-5
    assert float(singular.mean()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("ensemble", ["orthogonal", "identity"])
def test_scaled_ensembles_are_recognised(ensemble: str) -> None:
    spec = Spec(Vanilla(), {"h": Gate(weight_var=0.25, ensemble=ensemble)})  # type: ignore[arg-type]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        found = spec_of(apply_(nn.RNN(D, N, dtype=dtype), spec, generator=seeded())).gates["h"]
        assert found.ensemble == ensemble
        assert found.weight_var == pytest.approx(0.25, rel=1e-2)


@pytest.mark.parametrize("name", BASELINES)
def test_modules_without_bias_take_the_starts_that_need_none(name: str) -> None:
    module = nn.LSTM(3, 5, bias=False)
    if name in NEEDS_BIAS:
        with pytest.raises(ModuleError, match=r"LSTM l0: gate \w needs a bias .* bias=False"):
            BASELINES[name](module)
    else:
        BASELINES[name](module, generator=seeded())
        wanted = start(name, LSTM(), 5, 3).gates["f"].weight_var
        assert spec_of(module).gates["f"].weight_var == pytest.approx(wanted, rel=0.5)


def test_vanilla_without_bias_takes_standard() -> None:
    assert spec_of(standard_(nn.RNN(3, 5, bias=False), generator=seeded())).gates["h"].ensemble == "orthogonal"


def test_mirrored_laws_share_the_units_variate() -> None:
    law = BiasLaw("timescale", 2.0, 50.0)
    mirror = BiasLaw("timescale", 2.0, 50.0, sign=-1)
    spec = Spec(GRU(), {"z": Gate(bias_mean=1.0, bias_law=law), "nh": Gate(bias_law=mirror)}, biases="fixed")
    layer = recurrent_layers(apply_(nn.GRU(D, N, dtype=torch.float64), spec, generator=seeded()))[0]
    z, nh = tensors_of(layer, "z")[2], tensors_of(layer, "nh")[2]
    torch.testing.assert_close(z - 1.0, -nh)
    assert not tensors_of(layer, "nx")[2].any(), "the GRU keeps nx and nh apart"
