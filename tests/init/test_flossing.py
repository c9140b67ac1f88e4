"""Gradient flossing: exponents by full Jacobians, their gradient, what it does to a module and what it refuses."""

import contextlib
from dataclasses import replace

import pytest
import torch
from torch import nn

import isornn
from isornn.cells import SpecError
from isornn.init import Flossed, gradient_flossing_
from isornn.init.flossing import SETTLING, lyapunov_exponents
from isornn.nn.gate_tensors import ModuleError, recurrent_layers
from isornn.nn.layer_step import LayerStep

STEPS = 40


def by_full_jacobians(cell, x, frame):
    """The same exponents of one of torch's cells, each step differentiated as a whole by torch."""
    count = 2 if isinstance(cell, nn.LSTMCell) else 1
    state = torch.zeros(count * cell.hidden_size, dtype=torch.float64)

    def step(joint, now):
        parts = tuple(part.unsqueeze(0) for part in joint.chunk(count))
        new = cell(now.unsqueeze(0), parts if count > 1 else parts[0])
        return torch.cat([part[0] for part in (new if count > 1 else (new,))])

    growth = []
    for now in x:
        jacobian = torch.autograd.functional.jacobian(lambda joint, now=now: step(joint, now), state)
        state = step(state, now)
        frame, r = torch.linalg.qr(jacobian @ frame)
        growth.append(r.diagonal().abs().log())
    return torch.stack(growth[SETTLING:]).mean(0).detach()


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_the_exponents_are_those_of_the_whole_jacobians(kind):
    torch.manual_seed(0)
    cell = kind(3, 6).double()
    x = torch.randn(STEPS, 3, dtype=torch.float64)
    step = LayerStep.of(recurrent_layers(cell)[0])
    frame = torch.linalg.qr(torch.randn(sum(step.sizes), 5, dtype=torch.float64)).Q
    torch.testing.assert_close(lyapunov_exponents(step, x, frame), by_full_jacobians(cell, x, frame))


def test_the_gradient_is_that_of_finite_differences():
    torch.manual_seed(1)
    step = LayerStep.of(recurrent_layers(nn.GRUCell(2, 4).double())[0])
    x, frame = torch.randn(SETTLING + 2, 2).double(), torch.linalg.qr(torch.randn(4, 3).double()).Q

    def loss(recurrent):
        own = LayerStep(step.cell, replace(step.weights, recurrent=recurrent))
        return lyapunov_exponents(own, x, frame).square().mean()

    assert torch.autograd.gradcheck(loss, step.weights.recurrent.requires_grad_())


def leading(model, batch):
    found = isornn.diagnose(model, batch).diagnosis.layers[0].lyapunov.exponents
    return torch.tensor([one.number() for one in found])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_the_exponents_of_unseen_sequences_come_near_zero(kind):
    torch.manual_seed(0)
    module = kind(1, 32)
    before = leading(module, torch.rand(200, 4, 1))
    told: list[Flossed] = []
    assert (
        gradient_flossing_(module, batch=torch.rand(60, 8, 1), updates=100, exponents=8, report=told.append) is module
    )
    after = leading(module, torch.rand(200, 4, 1))
    assert float(before.abs().mean()) > 0.3
    assert float(after.abs().mean()) < 0.5 * float(before.abs().mean())
    (flossed,) = told
    assert isinstance(flossed, Flossed)
    assert flossed.where == f"{kind.__name__} l0"
    assert float(flossed.after.abs().mean()) < float(flossed.before.abs().mean())


def test_the_same_generator_gives_the_same_weights_and_nothing_else_changes():
    def flossed(seed):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True))
        front = model[0].weight.detach().clone()
        draw = torch.Generator().manual_seed(seed)
        global_state = torch.get_rng_state()
        gradient_flossing_(model, batch=torch.rand(3, 20, 2, generator=draw), updates=2, generator=draw)
        assert torch.equal(torch.get_rng_state(), global_state)
        assert torch.equal(model[0].weight, front)
        assert all(parameter.grad is None for parameter in model.parameters())
        return model.state_dict()

    one, again, other = flossed(0), flossed(0), flossed(1)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "module",
    [
        isornn.nn.LSTM(2, 4, proj_size=3),
        nn.GRU(2, 4, bias=False),
        nn.RNN(2, 4).requires_grad_(False),
        nn.LSTM(2, 4).bfloat16(),
        isornn.nn.MinimalRNN(2, 4),
        isornn.nn.TRNN(2, 4),
        isornn.nn.RNN(isornn.cells.cell_named("sru"), 2, 4),
    ],
    ids=["projection", "no biases", "frozen", "bfloat16", "features", "typed", "own parameters"],
)
def test_any_recurrent_layer_is_changed(module):
    dtype = next(module.parameters()).dtype
    before = {name: value.clone() for name, value in module.state_dict().items()}
    gradient_flossing_(module, batch=torch.rand(20, 3, 2).to(dtype), updates=3)
    after = module.state_dict()
    assert all(after[name].dtype == dtype and bool(after[name].isfinite().all()) for name in after)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed
    assert not any("phi" in name for name in changed)  # a feature map is below the layer


def test_of_padded_sequences_those_that_are_long_enough_are_used():
    packed = nn.utils.rnn.pack_padded_sequence(torch.rand(30, 3, 1), [30, 18, 5])
    told: list[Flossed] = []
    gradient_flossing_(nn.GRU(1, 4), batch=packed, updates=2, exponents=2, report=told.append)
    assert len(told[0].after) == 2


def test_progress_is_told_to_the_end():
    shares: list[float] = []
    gradient_flossing_(nn.GRU(1, 2, num_layers=2), batch=torch.rand(20, 1, 1), updates=2, progress=shares.append)
    assert shares == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("module", "batch", "options", "error", "names"),
    [
        (nn.GRU(1, 4), torch.rand(20, 1, 1), {"updates": 0}, SpecError, "updates: 0 is not allowed"),
        (nn.GRU(1, 4), torch.rand(20, 1, 1), {"updates": 1.5}, SpecError, "updates: 1.5 is not allowed"),
        (nn.GRU(1, 4), torch.rand(20, 1, 1), {"exponents": 5}, SpecError, "states of 4 units"),
        (nn.GRU(1, 4), torch.rand(17, 1, 1), {}, ModuleError, "17 steps; exponents need 18"),
        (nn.Linear(1, 4), torch.rand(20, 1, 1), {}, ModuleError, "holds no recurrent layer"),
    ],
)
def test_bad_input_is_refused_by_name(module, batch, options, error, names):
    with pytest.raises(error, match=names):
        gradient_flossing_(module, batch=batch, **options)


def stack(nonlinearity):
    model = nn.ModuleList([nn.GRU(1, 4), nn.RNN(4, 4, nonlinearity=nonlinearity)])
    before = [value.clone() for value in model.state_dict().values()]
    return model, lambda given: given[1](given[0](torch.rand(20, 2, 1))[0]), before


def is_as_before(model, before):
    return all(torch.equal(one, other) for one, other in zip(before, model.state_dict().values(), strict=True))


def test_all_layers_are_as_they_were_where_one_is_refused():
    model, run, before = stack("relu")
    with torch.no_grad():
        model[1].bias_hh_l0.fill_(-100.0)  # below 0 nothing of any direction is left
        before[-1].fill_(-100.0)
    with pytest.raises(ModuleError, match="1 \\(RNN\\) l0: its exponent 1 is minus infinity"):
        gradient_flossing_(model, batch=run, updates=2)
    assert is_as_before(model, before)


def test_all_layers_are_as_they_were_after_an_interrupt():
    model, run, before = stack("tanh")

    def progress(share):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gradient_flossing_(model, batch=run, updates=2, progress=progress)
    assert is_as_before(model, before)


def test_a_layer_that_the_batch_does_not_reach_is_named():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.GRU(1, 4), nn.GRU(1, 4)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ValueError, match="spare"):
        gradient_flossing_(Model(), batch=torch.rand(20, 1, 1), updates=1)


def test_a_direction_that_a_jacobian_maps_to_nothing_is_refused():
    torch.manual_seed(0)
    module = nn.RNN(3, 6)
    with torch.no_grad():
        module.weight_hh_l0[:, 2:] = 0  # of rank 2
    before = module.weight_hh_l0.clone()
    with pytest.raises(ModuleError, match="its exponent 3 is minus infinity"):
        gradient_flossing_(module, batch=torch.randn(20, 2, 3), exponents=4)
    assert torch.equal(module.weight_hh_l0, before)
    gradient_flossing_(module, batch=torch.randn(20, 2, 3), exponents=2, updates=1)


@pytest.mark.parametrize("seed", range(4))
def test_no_weight_becomes_nan(seed):
    torch.manual_seed(seed)
    module = nn.RNN(3, 8, nonlinearity="relu")
    draw = torch.Generator().manual_seed(0)
    with contextlib.suppress(ModuleError):
        gradient_flossing_(module, batch=torch.randn(20, 4, 3), exponents=2, updates=1, generator=draw)
    assert all(bool(parameter.isfinite().all()) for parameter in module.parameters())


def test_what_is_told_after_is_of_the_weights_that_the_module_has():
    torch.manual_seed(0)
    module, batch = nn.GRU(3, 6), torch.randn(20, 1, 3)
    told: list[Flossed] = []
    gradient_flossing_(module, batch=batch, updates=1, generator=torch.Generator().manual_seed(1), report=told.append)
    frame = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    step = LayerStep.of(recurrent_layers(module)[0])
    torch.testing.assert_close(told[0].after, lyapunov_exponents(step, batch[:, 0].double(), frame), rtol=0, atol=1e-5)
    assert not torch.allclose(told[0].after, told[0].before, rtol=0, atol=1e-5)


def test_an_error_in_the_report_leaves_all_as_it_was():
    module = nn.GRU(1, 4)
    before = module.weight_hh_l0.clone()
    with pytest.raises(ZeroDivisionError):
        gradient_flossing_(module, batch=torch.rand(20, 1, 1), updates=1, report=lambda flossed: 1 / 0)
    assert torch.equal(module.weight_hh_l0, before)


def test_a_batch_that_is_not_finite_is_refused_as_such():
    with pytest.raises(ValueError, match="receives NaN or infinity"):
        gradient_flossing_(nn.GRU(1, 4), batch=torch.full((20, 1, 1), torch.nan), updates=1)


def test_within_inference_mode():
    module = nn.GRU(1, 4)
    before = module.weight_hh_l0.clone()
    with torch.inference_mode():
        gradient_flossing_(module, batch=torch.rand(20, 1, 1), updates=1)
    assert not torch.equal(module.weight_hh_l0, before)
