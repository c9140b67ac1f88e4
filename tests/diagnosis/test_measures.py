"""What is measured along a replay, against routes of its own: autograd through torch's layers, dense matrices."""

import json
import math

import pytest
import torch
from torch import nn

import isornn
from checked import MGU
from isornn.capture.modules import recurrent_modules
from isornn.capture.run import capture
from isornn.capture.sequences import longest_sequence
from isornn.cells import TRNN, Cell, GersLSTM, Values, Vanilla
from isornn.diagnosis import linearised, measure, replay
from isornn.diagnosis.cotangents import LastOutput
from isornn.diagnosis.gradients import _through_linearised, _through_steps, gradient_norms
from isornn.diagnosis.jacobians import forward_profile, jacobians, lyapunov
from isornn.diagnosis.replay import replay_module
from isornn.diagnosis.states import input_facts
from isornn.nn import RNN
from retaining_cells import TwoMemories


def replay_of(layer, x):
    (module,) = recurrent_modules(layer)
    calls = capture(layer, [module], x, None).calls[layer]
    return replay_module(module, longest_sequence(module, calls))[-1].replay


def first_state(layer, batch, hidden):
    zeros = torch.zeros(1, batch, hidden, dtype=torch.float64)
    return (zeros, zeros) if isinstance(layer, nn.LSTM) else zeros


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_every_torch_layer_from_end_to_end(kind):
    report = measure(kind(3, 8), torch.randn(40, 4, 3), theory=False)
    (layer,) = report.layers
    assert layer.info.kind == kind.__name__ and layer.info.hidden == 8 and layer.info.steps == 40
    assert 0 < layer.backward.xi.number() < 5 and 0 < layer.forward.xi.number() < 5
    assert layer.lyapunov.exponents[0].number() < 0
    json.dumps(report.to_json(), allow_nan=False)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_backward_profile_is_autograds(kind):
    """The layer cut in two at every step: the state between is a leaf, the rest is torch's own layer."""
    torch.manual_seed(0)
    layer, x = kind(3, 6, dtype=torch.float64), torch.randn(150, 2, 3, dtype=torch.float64)
    replay = replay_of(layer, x)
    cotangent = LastOutput.drawn(replay, torch.Generator().manual_seed(0))
    norms = gradient_norms(replay, cotangent)
    for time in (0, 1, 63, 64, 65, 100, 149):
        _, state = layer(x[:time]) if time else (None, first_state(layer, 2, 6))
        states = [part.detach().requires_grad_(True) for part in (state if isinstance(state, tuple) else (state,))]
        out, _ = layer(x[time:], tuple(states) if len(states) > 1 else states[0])
        found = torch.autograd.grad((out[-1] * cotangent.vectors).sum(), states)
        for name, gradient in zip(replay.step.cell.states, found, strict=True):
            expected = gradient[0].norm(dim=-1)
            assert ((norms[name][time].exp() - expected).abs() <= 1e-6 * expected).all()


@pytest.mark.parametrize("kind", ["VanillaRNN", "MinimalRNN", "GRU", "ChoGRU", "LSTM", "GersLSTM", "TRNN", "TLSTM"])
def test_gradients_by_diagonals_are_autograds_through_the_steps(kind):
    """Of states, and of inputs, from gradients that enter every output and the last states."""
    torch.manual_seed(0)
    layer = getattr(isornn.nn, kind)(6, 6, dtype=torch.float64)
    replay = replay_of(layer, torch.randn(30, 2, 6, dtype=torch.float64))
    last = tuple(torch.randn_like(part) for part in replay.at(20))
    outputs = torch.randn_like(replay.output[5:20])
    by_diagonals, by_autograd = (
        way(replay, 5, 20, last, outputs, True) for way in (_through_linearised, _through_steps)
    )
    torch.testing.assert_close(by_diagonals, by_autograd, rtol=1e-10, atol=1e-12)


def test_gradients_by_diagonals_of_a_projection():
    torch.manual_seed(0)
    replay = replay_of(nn.LSTM(3, 6, proj_size=2, dtype=torch.float64), torch.randn(30, 2, 3, dtype=torch.float64))
    given = tuple(torch.randn_like(part) for part in replay.at(30)), torch.randn_like(replay.output)
    ways = _through_linearised, _through_steps
    torch.testing.assert_close(*(way(replay, 0, 30, *given, True) for way in ways), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "ChoGRU", "PeepholeLSTM", "VanillaRNN"])
def test_lyapunov_exponents_and_singular_values_are_those_of_dense_jacobians(kind):
    torch.manual_seed(0)
    options = {"nonlinearity": "oplu"} if kind == "VanillaRNN" else {}
    layer = getattr(isornn.nn, kind)(3, 6, dtype=torch.float64, **options)
    replay = replay_of(layer, torch.randn(80, 1, 3, dtype=torch.float64))
    width = sum(replay.step.sizes)
    dense = [dense_jacobian(layer, replay, time) for time in range(80)]
    found = lyapunov(replay, torch.Generator().manual_seed(0), count=4)
    drawn = torch.randn(1, width, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    frame, growth = torch.linalg.qr(drawn).Q, []
    for jacobian in dense:
        frame, r = torch.linalg.qr(jacobian @ frame)
        growth.append(r.diagonal().abs().log())
    start, stop = found.window
    expected = torch.stack(growth)[start:stop].mean(0)
    for exponent, value in zip(found.exponents, expected.tolist(), strict=True):
        assert abs(exponent.number() - value) < 1e-4
    for at in jacobians(replay):
        torch.testing.assert_close(at.singular_values, torch.linalg.svdvals(dense[at.time - 1]))


@pytest.mark.parametrize(("hidden", "times"), [(512, [5, 10, 15, 20]), (513, [20])])
def test_wide_states_are_decomposed_once(hidden, times):
    found = jacobians(replay_of(nn.LSTM(2, hidden), torch.randn(20, 1, 2)))
    assert [at.time for at in found] == times and all(len(at.singular_values) == 2 * hidden for at in found)


@pytest.mark.parametrize("kind", ["LSTM", "PeepholeLSTM", "VanillaRNN"])
def test_what_is_kept_changes_no_number(kind, monkeypatch):
    """Steps linearised anew each time, and pre-activations recomputed, of a replay by the compiled kernels."""
    torch.manual_seed(0)
    layer, x = getattr(isornn.nn, kind)(6, 6, dtype=torch.float64), torch.randn(150, 3, 6, dtype=torch.float64)
    kept = measure(layer, x, target=lambda output: output[0].square().sum()).to_json()
    assert replay_of(layer, x).gates is not None
    monkeypatch.setattr(linearised, "_KEPT", 0)
    for span in (32, 149):
        monkeypatch.setattr(replay, "_SPAN", span)
        assert replay_of(layer, x).gates is None
    monkeypatch.setattr(replay, "_SPAN", 150)
    assert replay_of(layer, x).gates is not None
    for span, room in ((150, 0), (32, 2**29)):
        monkeypatch.setattr(replay, "_SPAN", span)
        monkeypatch.setattr(replay, "_KEPT", room)
        assert replay_of(layer, x).gates is None
        compare(kept, measure(layer, x, target=lambda output: output[0].square().sum()).to_json())


def test_a_replay_of_up_to_1024_steps_loads_no_compiled_kernels(monkeypatch):
    """Not even where its pre-activations are too many to be kept: loading takes longer than the steps."""
    monkeypatch.setattr(replay, "_KEPT", 0)
    monkeypatch.delattr(replay, "recurrence")
    assert replay_of(nn.LSTM(2, 3), torch.randn(40, 2, 2)).gates is None


def compare(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"check"}:
            compare(one[name], other[name])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            compare(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-6, abs=1e-9)
    else:
        assert one == other


def dense_jacobian(layer, replay, time):
    """By autograd through the layer itself, called for one step: the transpose is not used anywhere else."""
    states = tuple(part[time].unsqueeze(0) for part in replay.states)

    def advanced(*parts):
        _, new = layer(replay.inputs[time : time + 1], parts if len(parts) > 1 else parts[0])
        return torch.cat([part.flatten() for part in (new if isinstance(new, tuple) else (new,))])

    rows = torch.autograd.functional.jacobian(advanced, states)
    return torch.cat([row.flatten(1) for row in rows], 1)


def test_the_forward_profile_is_that_of_two_copies():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 6, dtype=torch.float64), torch.randn(40, 1, 3, dtype=torch.float64)
    replay = replay_of(lstm, x)
    profile = forward_profile(replay, torch.Generator().manual_seed(0))
    drawn = torch.randn(1, 4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0]
    start, far = 10, 8
    assert len(profile.lags) == 40 - start + 1
    here = [part[start].expand(4, -1) for part in replay.states]
    apart = []
    for sign in (1, -1):
        moved = [(part + sign * 1e-6 * by).unsqueeze(0) for part, by in zip(here, drawn.split(6, -1), strict=True)]
        _, state = lstm(x[start : start + far].expand(-1, 4, -1), tuple(moved))
        apart.append(torch.cat([part[0] for part in state], -1).detach())
    expected = ((apart[0] - apart[1]) / 2e-6).square().sum(-1).mean().log() / 2
    assert abs(float(profile.log_norm["all"][far] - expected)) < 1e-6


def test_a_gradient_is_followed_below_what_floating_point_holds():
    torch.manual_seed(0)
    rnn, x = nn.RNN(2, 4), torch.randn(1200, 1, 2)
    with torch.no_grad():
        rnn.weight_hh_l0.mul_(0.5)
    profile = measure(rnn, x, theory=False).layers[0].backward
    assert float(profile.log_norm["all"][-1]) < -700 and profile.window[1] < 100


def test_gates_moments_inputs_and_weights_are_what_a_loop_finds():
    torch.manual_seed(0)
    gru, x = nn.GRU(3, 5, dtype=torch.float64), torch.randn(30, 4, 3, dtype=torch.float64)
    x[20:, 1], x[:5, 2] = 7.0, 1.0
    layer = measure(gru, x, length=3, theory=False).layers[0]
    out, _ = gru.requires_grad_(False)(x)
    before = torch.cat([torch.zeros(1, 4, 5, dtype=torch.float64), out[:-1]])
    u = x @ gru.weight_ih_l0.T + gru.bias_ih_l0 + before @ gru.weight_hh_l0.T + gru.bias_hh_l0
    r, z = u[..., :5].sigmoid(), u[..., 5:10].sigmoid()
    for name, value in (("r", r), ("z", z)):
        gate = layer.gates[name]
        assert abs(gate.mean - float(value.mean())) < 1e-12
        assert gate.closed == float((value < 0.01).double().mean()) and gate.open == float(
            (value > 0.99).double().mean()
        )
        own = u[..., :5] if name == "r" else u[..., 5:10]
        assert abs(gate.pre_activation_mean - float(own.mean())) < 1e-12
        assert abs(gate.pre_activation_std - float(own.std(correction=0))) < 1e-12
    scales = -1 / z.mean((0, 1)).log()
    torch.testing.assert_close(layer.memory.time_constants, scales.detach())
    assert layer.memory.under.number() == float((scales < 1.5).double().mean())
    found, h = layer.moments["h"], out[9].detach()
    pairs = torch.stack([h[a] * h[b] for a in range(4) for b in range(4) if a != b]).mean()
    expected = (pairs - h.mean().square()) / (h.square().mean() - h.mean().square())
    assert abs(float(found.correlation[9] - expected)) < 1e-12
    assert abs(float(found.second_moment[9] - h.square().mean())) < 1e-12
    assert abs(layer.inputs.second_moment - float(x.square().mean())) < 1e-12
    assert layer.inputs.padding == 9 / 120 and layer.inputs.leading_padding == 4 / 120
    assert layer.weights.recurrent_default.likely and layer.weights.bias_default.within
    stacked = torch.linalg.svdvals(gru.weight_hh_l0.detach())
    torch.testing.assert_close(layer.weights.stacked_singular_values, stacked)


def steps_of(layer: isornn.nn.RNN, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Old states and pre-activations at every step (T, B, N), by a loop over the cell's own equations."""
    cell, size = layer.cell, layer.hidden_size
    states = {name: torch.zeros(x.shape[1], size, dtype=x.dtype) for name in cell.states}
    known = {name: getattr(layer, f"{name}_l0").detach() for name in cell.parameters}
    seen, given = [], []
    for now in x:
        u = Values(**known)
        for gate in cell.gates:
            t = layer.gate_parameters(gate)
            read = cell.read(gate, Values(**states), u)
            setattr(u, gate, now @ t.input.T + read @ t.recurrent.T + sum(t.biases))
        seen.append(states)
        given.append({gate: getattr(u, gate) for gate in cell.gates})
        states = cell.update(Values(**states), u, None)
    old, read = ({k: torch.stack([step[k] for step in steps]).detach() for k in steps[0]} for steps in (seen, given))
    return old, read


def own_layer(cell: Cell) -> tuple[isornn.nn.RNN, torch.Tensor]:
    torch.manual_seed(0)
    layer = isornn.nn.RNN(cell, 3, 5, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3)
    return layer, torch.randn(30, 4, 3, dtype=torch.float64)


def test_time_constants_are_of_what_the_state_keeps_with_the_sign_of_its_gate():
    layer, x = own_layer(MGU())
    _, u = steps_of(layer, x)
    found = measure(layer, x, length=3, theory=False).layers[0]
    f = u["f"].sigmoid()
    torch.testing.assert_close(found.gates["f"].unit_means, f.mean((0, 1)))
    assert (found.memory.gate, found.memory.state, found.memory.sign) == ("f", "h", -1)
    torch.testing.assert_close(found.memory.time_constants, -1 / (1 - f).mean((0, 1)).log())
    assert found.memory.others == ()


def test_each_retained_state_has_its_own_time_constants():
    layer, x = own_layer(TwoMemories())
    _, u = steps_of(layer, x)
    memory = measure(layer, x, length=3, theory=False).layers[0].memory
    torch.testing.assert_close(memory.time_constants, -1 / u["f"].sigmoid().mean((0, 1)).log())
    (other,) = memory.others
    assert (memory.state, other.state, other.gate, other.sign) == ("c", "d", "k", -1)
    torch.testing.assert_close(other.time_constants, -1 / (1 - u["k"].sigmoid()).mean((0, 1)).log())
    assert memory.to_json()["others"] == [other.to_json()]


def test_trained_peepholes_count_in_the_values_of_gates():
    layer, x = own_layer(GersLSTM())
    with torch.no_grad():
        for name in ("peep_i_l0", "peep_f_l0", "peep_o_l0"):
            getattr(layer, name).normal_(0, 2)
    old, u = steps_of(layer, x)
    found = measure(layer, x, length=3, theory=False).layers[0]
    f = (u["f"] + layer.peep_f_l0.detach() * old["c"]).sigmoid()
    i = (u["i"] + layer.peep_i_l0.detach() * old["c"]).sigmoid()
    new = f * old["c"] + i * u["g"].tanh()
    o = (u["o"] + layer.peep_o_l0.detach() * new).sigmoid()
    for name, value in (("i", i), ("f", f), ("o", o)):
        torch.testing.assert_close(found.gates[name].unit_means, value.mean((0, 1)))
        assert abs(found.gates[name].pre_activation_mean - float(u[name].mean())) < 1e-12
    torch.testing.assert_close(found.memory.time_constants, -1 / f.mean((0, 1)).log())


def test_the_theory_stands_beside():
    torch.manual_seed(0)
    layer = measure(nn.RNN(8, 64), torch.randn(120, 8, 8), theory=True).layers[0]
    untied, tied = layer.predicted.untied, layer.predicted.tied
    law = untied.spec.input
    assert abs(float(law.variance) - 1) < 0.1 and abs(float(law.correlation)) < 0.1
    assert abs(tied.lyapunov.number() - layer.lyapunov.exponents[0].number()) < 0.1
    assert abs(untied.chi_1.number() - float((2 * layer.backward.rate.value).exp())) < 0.1
    json.dumps(layer.to_json(), allow_nan=False)


def test_theory_counts_the_mean_of_the_input_as_biases():
    """A start for a batch lowers biases by what the mean adds; as noise of each step it would end the memory."""
    generator = torch.Generator().manual_seed(0)
    x = 5 + torch.randn(120, 24, 16, generator=generator)
    layer = isornn.init.critical_(nn.GRU(16, 64), 40, batch=x, generator=generator)
    found = measure(layer, x, theory=True).layers[0]
    assert found.predicted.untied.spec.input.variance == pytest.approx(1.0, abs=0.05)
    assert found.predicted.untied.reach.number() == pytest.approx(found.backward.reach.number(), rel=0.15)


@pytest.mark.parametrize("smallest", [0.9, 0.98])
@pytest.mark.parametrize("steps", [100, 400])
def test_errors_of_lyapunov_exponents_cover_a_frame_that_still_turns(smallest: float, steps: int) -> None:
    """A linear network with a symmetric matrix has the logarithms of its eigenvalues for exponents."""
    moduli = torch.linspace(1, smallest, 32, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    layer = RNN(Vanilla("identity"), 1, 32)
    basis = torch.linalg.qr(torch.randn(32, 32, generator=generator, dtype=torch.float64)).Q
    with torch.no_grad():
        layer.weight_hh_l0.copy_((basis * moduli) @ basis.T)
    found = measure(layer, torch.randn(steps, 3, 1, generator=generator)).layers[0].lyapunov
    pairs = zip(found.exponents, moduli.log().tolist(), strict=False)
    assert max(abs(one.number() - wanted) / one.error() for one, wanted in pairs) < 4


def t_rnn(*sizes, **options):
    return RNN(TRNN(), *sizes, **options)


@pytest.mark.parametrize("kind", [nn.LSTM, t_rnn])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_loss_reaches_lower_layers_below_the_smallest_number(kind, bidirectional):
    """A loss 1e300 times as large has a gradient e^690.8 times as large, within float64 where this one is not."""
    torch.manual_seed(0)
    layer = kind(1, 8, num_layers=2, bidirectional=bidirectional, dtype=torch.float64)
    for name, weight in layer.named_parameters():
        weight.data.mul_(0.4 if "weight" in name else 0.0)
    x = torch.randn(1400, 2, 1, dtype=torch.float64)

    def of_loss(size):
        report = measure(layer, x, target=lambda out: size * out[0][-1, :, :8].sum(), theory=False)
        return [one.loss.log_norm["all"] for one in report.layers]

    small, large = of_loss(1.0), of_loss(1e300)
    for one, shifted in zip(small, large, strict=True):
        assert not bool(one.isnan().any())
        torch.testing.assert_close(one, shifted - 300 * math.log(10), rtol=1e-9, atol=1e-6)
    assert float(small[0][small[0].isfinite()].min()) < -750
    assert measure(layer, x, target=lambda out: out[0][-1].sum(), theory=False).layers[0].amplification.of_loss


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_what_is_not_the_module_is_refused_in_every_precision(dtype, factor):
    class Other(nn.GRU):
        def forward(self, x):  # type: ignore[override]
            hx, weights = x.new_zeros(1, x.shape[1], 8), [factor * weight for weight in self._flat_weights]
            return torch.gru(x, hx, weights, True, 1, 0.0, False, False, False)

    torch.manual_seed(0)
    with pytest.raises(replay.ReplayError, match="differs from what the module returned"):
        measure(Other(2, 8, dtype=dtype), torch.randn(20, 4, 2, dtype=dtype), theory=False)


@pytest.mark.parametrize(("offset", "spread"), [(0.0, 1.0), (1.7e9, 1e-3), (1e5, 1e-3)])
def test_the_spread_of_an_input_far_from_zero(offset, spread):
    x = offset + spread * torch.randn(200, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    facts = input_facts(x, torch.tensor([200, 100, 7]))
    rows = torch.cat([x[:200, 0], x[:100, 1], x[:7, 2]]) - offset  # exact, as both are close
    torch.testing.assert_close(facts.feature_stds, rows.std(0, correction=0), rtol=1e-4, atol=0)
    assert facts.std == pytest.approx(float(rows.std(correction=0)), rel=1e-4)


def test_a_constant_input_has_no_spread():
    x = torch.full((50, 3, 2), 0.1)
    assert input_facts(x, torch.full((3,), 50)).feature_stds.tolist() == [0.0, 0.0]


def test_reach_and_gradient_have_the_error_that_other_sequences_and_directions_show():
    """A hundred measurements of 16 sequences each: their spread is what each says of itself, to a factor of 1.5."""
    torch.manual_seed(0)
    layer = nn.LSTM(3, 8)
    reaches, ratios, said = [], [], []
    for seed in range(100):
        profile = (
            measure(layer, torch.randn(30, 16, 3), theory=False, generator=torch.Generator().manual_seed(seed))
            .layers[0]
            .backward
        )
        reaches.append(profile.reach.number())
        ratios.append(float(profile.log_norm["all"][20] - profile.log_norm["all"][1]))
        said.append((profile.reach.error(), float(profile.ratio_error[20])))
    for found, own in zip((reaches, ratios), zip(*said, strict=True), strict=True):
        spread = torch.tensor(found, dtype=torch.float64).std()
        assert 1 / 1.5 < float(torch.tensor(own).square().mean().sqrt() / spread) < 1.5


def test_of_one_sequence_no_error_is_known():
    profile = measure(nn.LSTM(3, 8), torch.randn(30, 1, 3), theory=False).layers[0].backward
    assert profile.reach.error() == math.inf and bool(profile.ratio_error.isnan().all())


@pytest.mark.parametrize(
    ("model", "x"), [(nn.GRU(3, 16), torch.zeros(1, 8, 3)), (nn.LSTMCell(3, 16), torch.ones(8, 3))]
)
def test_of_one_step_the_length_is_one(model, x, tmp_path):
    report = isornn.diagnose(model, x)
    assert report.diagnosis.length == report.diagnosis.layers[0].length == 1 and "T = 1" in repr(report)
    (found,) = report.findings
    assert found.sentence.startswith("Sequences of 1 step are too short to measure gradients; use longer sequences")
    assert found.evidence["steps measured"] == "1 (bar: 3)"
    report.to_html(tmp_path / "report.html")
    assert report.fix_() == [f"{found.layer}: left alone (cannot_tell): {found.sentence}"]
