"""A start for a batch: each layer is set for what it receives, measured here by running the model by hand."""

import copy
import warnings
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import isornn
from isornn.cells import Input, SpecError, cell_named
from isornn.cells.roles import roles_of
from isornn.init import LayerStart, ModuleError, StandardisedInput, UnnormalisedInput, critical_
from isornn.init.layer_input import LayerInput
from isornn.nn import MinimalRNN
from start_batches import T, offset_batch, pre_activations, seeded


class Tower(nn.Module):
    """A front end with a state of its own, and two recurrent modules, the upper one registered first."""

    def __init__(self):
        super().__init__()
        self.top = nn.GRU(16, 7, batch_first=True)
        self.rnn = nn.LSTM(9, 8, num_layers=2, bidirectional=True, batch_first=True, dropout=0.5)
        self.front, self.norm = nn.Linear(5, 9), nn.BatchNorm1d(9)

    def forward(self, x):
        x = torch.relu(self.norm(self.front(x).transpose(1, 2)).transpose(1, 2))
        x, _ = self.rnn(x)
        return self.top(x)[0][:, -1]


def received(model, module, batch):
    """(B, T, D) that a module is called with, by a hook of the test's own."""
    seen = []
    handle = module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach().double()))
    training, state = model.training, copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.eval()
        if isinstance(model, Tower):
            model.norm.train()  # it is fresh, and normalises the batch as it will in training
        model(batch)
    model.train(training).load_state_dict(state)
    handle.remove()
    return seen[0]


def test_pre_activations_of_the_first_layer():
    model, batch = nn.LSTM(5, 2000, batch_first=True), offset_batch()
    critical_(model, batch=batch, generator=seeded())
    of_gate = [
        pre_activations(model.weight_ih_l0, model.bias_ih_l0, model.bias_hh_l0, batch.double(), gate)
        for gate in range(4)
    ]
    i, f, g, o = of_gate
    assert g.mean((0, 1)).abs().max() < 1e-4  # in every unit, though the inputs' means are far from 0
    moved = (batch - batch.mean((0, 1))).double().flatten(0, 1)
    covariance = moved.T @ moved / len(moved)
    tails = float(moved.square().sum(1).square().mean()) / float(
        covariance.trace() ** 2 + 2 * covariance.square().sum()
    )
    assert 1.1 < tails < 1.5
    assert g.var((0, 1)).mean() == pytest.approx(4 / tails, rel=0.05)  # over 2000 units of 5 features
    assert i.var((0, 1)).mean() == pytest.approx(1 / tails, rel=0.05)
    assert f.var((0, 1)).max() < 1e-8 and o.abs().max() < 1e-8
    torch.testing.assert_close(f.mean((0, 1)), -i.mean((0, 1)), atol=1e-4, rtol=0)
    # Without the batch the means of the inputs spread the gates.
    critical_(model, T, input=Input.of(batch), generator=seeded())
    spread = pre_activations(model.weight_ih_l0, model.bias_ih_l0, model.bias_hh_l0, batch.double(), 2)
    assert spread.mean((0, 1)).std() > 1


@pytest.mark.parametrize("rank", [1, 20])
def test_gaussian_inputs_have_no_tails(rank):
    x = torch.randn(100, 400, rank, generator=seeded(), dtype=torch.float64) @ torch.randn(
        rank, 20, generator=seeded(), dtype=torch.float64
    )
    assert LayerInput.of(x, torch.full((400,), 100)).tails == pytest.approx(1, abs=0.03)


def test_rare_symbols_are_large_where_they_come():
    """Of two symbols, one with probability p: in one dimension ``E y^4 / 3 (E y^2)^2 = (1/(p(1-p)) - 3)/3``."""
    x = nn.functional.one_hot((torch.arange(10_000) % 100 == 0).long(), 2).double().reshape(100, 100, 2)
    found = LayerInput.of(x, torch.full((100,), 100))
    assert found.variance == pytest.approx(0.01 * 0.99)
    assert found.tails == pytest.approx((1 / (0.01 * 0.99) - 3) / 3)


def test_layers_above_are_set_for_what_the_ones_below_give():
    torch.manual_seed(0)
    model, batch, lines = Tower(), offset_batch(), list[LayerStart]()
    critical_(model, batch=batch, generator=seeded(), report=lines.append)
    assert [line.where for line in lines] == [
        "rnn (LSTM) l0",
        "rnn (LSTM) l0_reverse",
        "rnn (LSTM) l1",
        "rnn (LSTM) l1_reverse",
        "top (GRU) l0",
    ]
    assert {line.length for line in lines} == {T}
    rnn, top = model.rnn, model.top
    below = nn.LSTM(9, 8, bidirectional=True, batch_first=True)
    below.load_state_dict({name: value for name, value in rnn.state_dict().items() if "l1" not in name})
    with torch.no_grad():
        second = below(received(model, rnn, batch).float())[0].double()
    inputs = {"weight_ih_l1": second, "weight_ih_l1_reverse": second}
    for name, x in inputs.items():
        bias_ih, bias_hh = (getattr(rnn, name.replace("weight_ih", bias)) for bias in ("bias_ih", "bias_hh"))
        g = pre_activations(getattr(rnn, name), bias_ih, bias_hh, x, 2)
        assert g.mean((0, 1)).abs().max() < 1e-4
        assert 2 < g.var((0, 1)).mean() < 7  # of 8 units
    n = pre_activations(top.weight_ih_l0, top.bias_ih_l0, 0 * top.bias_hh_l0, received(model, top, batch), 2, 3)
    assert n.mean((0, 1)).abs().max() < 1e-4
    assert 2 < n.var((0, 1)).mean() < 7
    own = received(model, top, batch)
    assert lines[-1].input.variance == pytest.approx(float((own - own.mean((0, 1))).square().mean()), rel=1e-4)
    torch.testing.assert_close(lines[-1].input.means, own.mean((0, 1)), atol=1e-5, rtol=0)
    assert "top (GRU) l0: set for 60 steps; input: mean " in str(lines[-1])


def test_everything_else_is_left_as_it_was():
    torch.manual_seed(0)
    model, batch = Tower(), offset_batch()
    model.front.weight.grad = torch.ones_like(model.front.weight)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    critical_(model, batch=batch, generator=seeded())
    recurrent = ("rnn.", "top.")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) != name.startswith(recurrent), name
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and not model.top._forward_hooks and model.top.weight_hh_l0.grad is None
    assert model.front.weight.grad.equal(torch.ones_like(model.front.weight))


def test_same_seed_same_start():
    starts = []
    for _ in range(2):
        torch.manual_seed(0)
        starts.append(critical_(Tower(), batch=offset_batch(), generator=seeded(3)).state_dict())
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])


def test_standardised_inputs_give_the_start_without_a_batch():
    x = torch.randn(400, T, 5, generator=seeded(2))
    x = (x - x.mean((0, 1))) / x.std((0, 1), unbiased=False)
    with_batch = critical_(nn.LSTM(5, 8, batch_first=True), batch=x, generator=seeded())
    without = critical_(nn.LSTM(5, 8, batch_first=True), T, input=Input(), generator=seeded())
    for name, value in without.state_dict().items():
        torch.testing.assert_close(with_batch.state_dict()[name], value, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cell", ["t_lstm", "t_rnn", "peephole", "mgu", "gru_cho"])
def test_other_cells(cell):
    model, batch = isornn.nn.RNN(cell_named(cell), 5, 2000, batch_first=True), offset_batch()
    critical_(model, 40, batch=batch, generator=seeded())
    found = model.gate_parameters(roles_of(model.cell).candidates[0])
    moved = batch.double() @ found.input.detach().double().T + found.biases[0].detach().double()
    if found.previous_input is not None:
        moved = moved[:, 1:] + batch.double()[:, :-1] @ found.previous_input.detach().double().T
    # x_(t-1) lacks the last step, so its mean is that of the batch but for an end.
    assert moved.mean((0, 1)).square().mean() < 0.01 * 4


def test_neither_batch_nor_law_warns():
    with pytest.warns(StandardisedInput, match="takes the input as standardised"):
        critical_(nn.GRU(3, 4), 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(nn.GRU(3, 4), 50, input=Input())
        critical_(nn.GRU(3, 4), batch=torch.randn(50, 2, 3))


# ---- without biases ----


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_symbols_replace_biases(kind):
    """The sum of one-hot features is 1, which is as good as a bias."""
    symbols = torch.randint(10, (30, 80), generator=seeded(4))
    x = nn.functional.one_hot(symbols, 10).float()
    model, same = kind(10, 64, bias=False, batch_first=True), kind(10, 64, batch_first=True)
    critical_(model, batch=x, generator=seeded())
    critical_(same, batch=x, generator=seeded())
    remember = 1
    count = len(model.weight_ih_l0) // 64
    own = (x @ model.weight_ih_l0.T).detach().chunk(count, -1)[remember].mean((0, 1))
    wanted = (x @ same.weight_ih_l0.T + same.bias_ih_l0).detach().chunk(count, -1)[remember].mean((0, 1))
    # Drawn by the same law: sorted, the means are near each other.
    assert (own.sort().values - wanted.sort().values).abs().mean() < 0.6
    assert own.max() > 4


def test_without_biases_and_mean_is_refused_whole():
    model = nn.Sequential(nn.LSTM(5, 4, batch_first=True, bias=False))
    before = copy.deepcopy(model.state_dict())
    x, random = offset_batch(), torch.get_rng_state()
    with pytest.raises(ModuleError, match=r"0 \(LSTM\) l0: it has bias=False.*standard deviations; build it with bias"):
        critical_(model, batch=x - x.mean((0, 1)))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("sequences", "steps", "features"), [(4, 20, 256), (1, 66, 64), (8, 40, 200), (1, 1, 3)])
def test_a_mean_by_chance_replaces_no_biases(sequences, steps, features):
    """Of few rows a combination of the features is constant, and of further rows of the same law it is not."""
    model = nn.LSTM(features, 8, batch_first=True, bias=False)
    with pytest.raises(ModuleError, match="it has bias=False"):
        critical_(model, 20, batch=torch.randn(sequences, steps, features, generator=seeded()))


def test_symbols_that_are_missing_from_the_batch_have_no_biases():
    """Each symbol's bias is its own column: one that half of the sequences lack shows what a missing one would get."""
    few, many = (nn.functional.one_hot(torch.randint(400, (n, 20), generator=seeded()), 400).float() for n in (6, 400))
    with pytest.raises(ModuleError, match="it has bias=False, .* symbols occur in one half only; give a larger batch"):
        critical_(nn.GRU(400, 8, batch_first=True, bias=False), batch=few)
    critical_(nn.GRU(400, 8, batch_first=True, bias=False), batch=many)


def test_a_constant_feature_replaces_biases_with_fewer_rows_than_features():
    x = torch.cat([0.1 * torch.randn(4, 20, 99, generator=seeded()), torch.full((4, 20, 1), 50.0)], -1)
    fresh = torch.cat([0.1 * torch.randn(4, 20, 99, generator=seeded(1)), torch.full((4, 20, 1), 50.0)], -1)
    model = critical_(nn.LSTM(99 + 1, 64, batch_first=True, bias=False), batch=x, generator=seeded())
    zero = torch.zeros(4 * 64)
    remember = pre_activations(model.weight_ih_l0, zero, zero, fresh.double(), 1)
    assert remember.mean() > 3 and remember.std((0, 1)).max() < 0.5


# ---- refusals ----


@pytest.mark.parametrize("scale", [1e-20, 3e-6, 4e6, 1e20])
def test_units_beyond_a_specs_numbers_are_named_with_the_layer(scale):
    model = nn.Sequential(nn.LSTM(5, 4, batch_first=True))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        SpecError, match=r"0 \(LSTM\) l0: standard deviation of its input .* from .* to .*; scale the data"
    ):
        critical_(model, batch=scale * torch.randn(4, 20, 5, generator=seeded()))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("mean", "warned"), [(1e5, False), (1e7, True), (1e8, True)])
def test_means_beside_which_the_dtype_resolves_no_gate_warn(mean, warned):
    batch = mean + torch.randn(8, 40, 5, generator=seeded())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = critical_(nn.LSTM(5, 32, batch_first=True), batch=batch, generator=seeded())
    assert {one.filename for one in caught} == {__file__}
    rounding = [one for one in caught if one.category is not UnnormalisedInput]
    assert ["subtract the mean" in str(one.message) for one in rounding] == [True] * warned
    gate = (batch @ model.weight_ih_l0.T + model.bias_ih_l0).detach().chunk(4, -1)[2]
    assert (gate.mean((0, 1)).abs().max() > 0.3) == warned  # in the module's own dtype


def test_a_constant_that_was_computed_is_a_constant():
    x = torch.full((7, 43, 3), 0.3)
    x[1::2] = torch.nextafter(x[1::2], torch.tensor(1.0))
    found = LayerInput.of(x, torch.full((43,), 7))
    assert found.variance == 0
    assert str(found).endswith("constant (input weights are those for standard deviation 1)")
    critical_(nn.GRU(3, 4), batch=x)


def test_a_report_that_fails_gives_everything_back():
    def fails(start):
        raise RuntimeError(str(start))

    model = nn.LSTM(5, 4, batch_first=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="set for 60 steps"):
        critical_(model, batch=offset_batch(), report=fails)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tails_of_fewer_rows_than_features():
    """All symbols differ: ``E |x|^4 = (1 - 1/n)^2``, ``tr C = 1 - 1/n``, n - 1 equal eigenvalues."""
    n, features = 40, 300
    x = torch.eye(n, features).reshape(n, 1, features)
    c = 1 - 1 / n
    assert LayerInput.of(x, torch.tensor([n])).tails == pytest.approx(max(1, c**2 / (c**2 + 2 * c**2 / (n - 1))))
    x = torch.randn(n, 1, features, generator=seeded()).double() ** 3
    moved = (x - x.mean(0)).reshape(n, features)
    covariance = moved.T @ moved / n
    expected = moved.square().sum(1).square().mean() / (covariance.trace() ** 2 + 2 * (covariance @ covariance).trace())
    assert LayerInput.of(x, torch.tensor([n])).tails == pytest.approx(max(1.0, float(expected)))


def test_all_or_nothing():
    class Broken(Tower):
        def forward(self, x):
            x, _ = self.rnn(torch.relu(self.front(x)))
            return self.top(x / 0)[0]

    torch.manual_seed(0)
    model = Broken()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="receives NaN or infinity"):
        critical_(model, batch=offset_batch())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_arguments():
    batch = offset_batch()
    with pytest.raises(SpecError, match="input"):
        critical_(nn.GRU(5, 4), batch=batch, input=Input())
    with pytest.raises(SpecError, match="length: None"):
        critical_(nn.GRU(5, 4))
    with pytest.raises(SpecError, match=r"length: .* critical_\(model, batch=x\)"):
        critical_(nn.GRU(5, 4), batch)
    with pytest.raises(SpecError, match="length"):
        critical_(nn.GRU(5, 4), 1, batch=batch)
    with pytest.raises(ValueError, match="at least one sequence of one step"):
        critical_(nn.GRU(5, 4), batch=batch[:0])
    with pytest.raises(ModuleError, match="parametrised, weight norm"):
        critical_(nn.utils.parametrizations.weight_norm(nn.GRU(5, 4), "weight_hh_l0"), batch=batch)


@pytest.mark.parametrize("options", [{"batch": torch.zeros(20, 4, 2)}, {"length": 50, "input": Input()}])
def test_a_report_that_is_no_function_is_refused_before_anything_is_drawn(options):
    model, wrong = nn.GRU(2, 8), cast(Any, 3)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(SpecError, match="report: 3 is not allowed; it must be a function or None"):
        critical_(model, report=wrong, **options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_half_precision_refuses_biases_that_it_cannot_hold():
    model = nn.LSTM(5, 8, batch_first=True).half()
    before = copy.deepcopy(model.state_dict())
    batch = torch.full((4, 20, 5), 60_000.0)
    batch[..., 0] = 0.1 * torch.randn(4, 20, generator=seeded())  # the scale, beside features that are far off
    with pytest.raises(ModuleError, match="need biases that float16 cannot hold"):
        critical_(model, batch=batch.half())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_statistics_of_an_input_have_its_units(scale):
    noise = torch.randn(4000, 20, 3, generator=seeded(), dtype=torch.float64)
    x = [noise[0]]
    for step in noise[1:]:
        x.append(0.7 * x[-1] + 0.51**0.5 * step)  # variance 1, correlation .7 with its next step
    weights = scale * torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    found = LayerInput.of(torch.stack(x) * weights + 5, torch.full((20,), 4000))
    assert found.variance == pytest.approx(2 * scale**2, rel=0.03)
    assert found.tails == pytest.approx(1, abs=0.03)
    assert found.correlation_in_time == pytest.approx(0.7, abs=0.02)


@pytest.mark.parametrize("features", ["linear", "tanh"])
def test_features_get_the_size_of_a_candidate(features):
    """minimalRNN writes Phi(x) as it is, so Phi starts with mean 0 and the mean square of tanh at variance 4."""
    layer = MinimalRNN(40, 1000, features=features, batch_first=True)
    sizes, offsets = torch.linspace(0.5, 2.0, 40), torch.linspace(-2.0, 9.0, 40)
    batch = torch.randn(50, T, 40, generator=seeded(2)) * sizes + offsets
    critical_(layer, batch=batch, generator=seeded())
    phi = batch @ layer.weight_phi_l0.T + layer.bias_phi_l0
    phi = phi if features == "linear" else phi.tanh()
    assert float(phi.detach().square().mean()) == pytest.approx(0.64, abs=0.03)
    assert float(phi.detach().mean((0, 1)).abs().max()) < (1e-4 if features == "linear" else 0.05)
    gate = phi @ layer.weight_ih_l0.T
    assert float(gate.detach().var()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("cell", ["minimal", "mut1"])
def test_the_input_of_a_layer_with_features_is_its_own_not_theirs(cell):
    model, starts = isornn.nn.RNN(cell_named(cell), 5, 48, features="linear", batch_first=True), list[LayerStart]()
    batch = 500 + offset_batch()
    with pytest.warns(UnnormalisedInput, match="l0: the features of its input have means of"):
        critical_(model, batch=batch, generator=seeded(), report=starts.append)
    torch.testing.assert_close(starts[0].input.means, batch.double().mean((0, 1)))


def test_upper_layers_have_no_features_and_keep_their_law():
    """A layer whose width is that of its input takes it as it is: nothing is mapped, gates have variance 1."""
    model, batch = MinimalRNN(5, 400, num_layers=2, batch_first=True), offset_batch()
    starts: list[LayerStart] = []
    critical_(model, batch=batch, generator=seeded(), report=starts.append)
    assert not hasattr(model, "weight_phi_l1")
    assert float(starts[1].spec.gates["u"].input_var) * starts[1].input.size == pytest.approx(1.0)


def test_modules_that_share_parameters_are_named():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.GRU(5, 5, batch_first=True), nn.GRU(5, 5, batch_first=True)
            self.b.weight_ih_l0 = self.a.weight_ih_l0

        def forward(self, x):
            return self.b(self.a(x)[0])[0]

    with pytest.warns(UserWarning, match="b: it shares parameters with a") as caught:
        critical_(Shared(), batch=offset_batch())
    assert caught[0].filename == __file__


@pytest.mark.parametrize("length", [np.int64(50), np.float32(50)])
def test_lengths_of_numpy(length):
    one, other = nn.GRU(5, 4, batch_first=True), nn.GRU(5, 4, batch_first=True)
    critical_(one, length, batch=offset_batch(), generator=seeded())
    critical_(other, 50, batch=offset_batch(), generator=seeded())
    assert torch.equal(one.bias_ih_l0, other.bias_ih_l0)


def test_a_generator_that_is_none_is_named():
    with pytest.raises(SpecError, match="generator: 5 is not allowed"):
        critical_(nn.GRU(5, 4), batch=offset_batch(), generator=5)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="generator: 5 is not allowed"):
        isornn.init.gradient_flossing_(nn.GRU(5, 4), batch=offset_batch(), generator=5)  # type: ignore[arg-type]


def test_layers_are_drawn_again_by_the_name_that_is_reported():
    lines, model = list[LayerStart](), nn.Sequential(nn.Linear(5, 3), nn.GRU(3, 4, batch_first=True))
    critical_(model, batch=offset_batch(), report=lines.append)
    assert lines[0].where == "1 (GRU) l0"
    isornn.diagnosis.redraw_(model, lines[0].where, 40, offset_batch())


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.RNN(4, 64, nonlinearity="relu"),
        lambda: isornn.nn.VanillaRNN(4, 64, nonlinearity="leaky_relu"),
        lambda: isornn.nn.TGRU(4, 64),  # whose state has no write gate that averages
    ],
    ids=["relu", "leaky_relu", "t_gru"],
)
@pytest.mark.parametrize("length", [60, 1000])
def test_states_that_nothing_bounds_have_one_size_at_every_length(layer, length):
    for seed in range(3):
        torch.manual_seed(seed)
        batch = 3 + 2 * torch.randn(length, 8, 4)
        last = critical_(layer(), batch=batch, generator=seeded())(batch)[0][-1]
        assert 0.5 < last.square().mean().sqrt() < 3 and last.abs().max() < 20
