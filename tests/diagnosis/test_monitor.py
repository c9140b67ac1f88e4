"""A monitor sees what autograd says, changes nothing of what is trained, and leaves no trace."""

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from isornn.capture import recorder
from isornn.diagnosis import Monitor, TrainingRecord, measure
from isornn.diagnosis import monitor as monitor_file
from isornn.diagnosis.training_step import DROPPED, NOT_CALLED, NOT_FINITE, NOT_REACHED, UNTIED
from isornn.init import ModuleError
from isornn.nn import SpectralRNN, VanillaRNN
from isornn.nn import layers as own_layers
from isornn.nn.spectral import parametrize_spectral_
from isornn.records import RecordError
from isornn.training import State, train

T, B, D, N = 12, 5, 3, 7


class Reader(nn.Module):
    """Reads outputs, more than once, and last states; writes over the outputs on the way where torch allows it."""

    def __init__(self, rnn, read="all", packed=False):
        super().__init__()
        self.rnn, self.read, self.packed = rnn, read, packed
        directions = 2 if rnn.bidirectional else 1
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(directions * getattr(rnn, "hidden_size", N), 2)

    def forward(self, x):
        lengths = torch.arange(x.shape[1]) % 3 + x.shape[0] - 2
        x = pack_padded_sequence(x, lengths, enforce_sorted=False) if self.packed else x
        out, state = self.rnn(x)
        out = nn.utils.rnn.pad_packed_sequence(out)[0] if self.packed else out
        h = state[0] if isinstance(state, tuple) else state
        if self.read == "last":
            return self.head(out[-1])
        out = out.mul_(1.5) if type(self.rnn) is nn.GRU else out * 1.5
        out = self.head(self.drop(out) + 0.1 * out.relu() + 0.1 * out.sin())
        return out + h.sum() if self.read == "all" else out


class ByHand(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(N, 2)

    def forward(self, x):
        state, outs = None, []
        for one in x:
            state = self.cell(one, state)
            outs.append(self.head(state[0] if isinstance(state, tuple) else state))
        return torch.stack(outs)


MODELS = {
    "lstm": lambda: Reader(nn.LSTM(D, N, num_layers=2, bidirectional=True)),
    "lstm dropout": lambda: Reader(nn.LSTM(D, N, num_layers=2, dropout=0.3)),
    "packed gru": lambda: Reader(nn.GRU(D, N, num_layers=2), packed=True),
    "spectral": lambda: Reader(SpectralRNN(D, N, margin=0.1)),
    "spectral lstm": lambda: Reader(parametrize_spectral_(nn.LSTM(D, N), "weight_hh_l0")),
    "peephole": lambda: Reader(own_layers.PeepholeLSTM(D, N, bidirectional=True)),
    "own lstm": lambda: Reader(own_layers.LSTM(D, N, num_layers=2)),
    "lstm cell": lambda: ByHand(nn.LSTMCell(D, N)),
    "gru cell": lambda: ByHand(nn.GRUCell(D, N)),
}


def trained(make, monitored, updates=3, **options):
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    monitor = Monitor(model, every=1, **options) if monitored else None
    outputs = []
    for _ in range(updates):
        optimizer.zero_grad()
        out = model(torch.randn(T, B, D))
        outputs.append(out.detach().clone())
        out.square().mean().backward()
        optimizer.step()
        if monitor is not None:
            monitor.step()
    if monitor is not None:
        monitor.close()
    return model, outputs, torch.get_rng_state(), monitor


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.parametrize("name", MODELS)
def test_changes_nothing_to_the_bit(name):
    model, outputs, numbers, monitor = trained(MODELS[name], True)
    plain, plain_outputs, plain_numbers, _ = trained(MODELS[name], False)
    assert all(torch.equal(a, b) for a, b in zip(outputs, plain_outputs, strict=True))
    assert torch.equal(numbers, plain_numbers)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a.grad, b.grad)
    assert not any(hooks(model))
    for layer in monitor.record.layers:
        if name == "lstm dropout":
            assert layer.reasons == (DROPPED,) * 3
        else:
            assert all(not reason or reason.startswith("infinite") for reason in layer.reasons)
            assert np.isfinite(layer.loss["all"]).all() and np.isfinite(layer.last["all"]).all()


def by_autograd(model, x, loss, weights):
    """ln rms norms of dL/dh_t for t = 0 .. T, by torch's own cell stepped by hand, in float64."""
    cell = nn.LSTMCell(D, N).double()
    cell.load_state_dict({key.removesuffix("_l0"): value.double() for key, value in weights.items()})
    h = torch.zeros(B, N, dtype=torch.float64, requires_grad=True)
    hs, c = [h], torch.zeros(B, N, dtype=torch.float64)
    for one in x.double():
        h, c = cell(one, (hs[-1], c))
        hs.append(h)
    grads = torch.autograd.grad(loss(torch.stack(hs[1:])), hs)
    return torch.stack([g.norm(dim=-1).square().mean().sqrt().log() for g in grads])


def test_gradients_are_autograds_with_the_weights_of_that_step():
    torch.manual_seed(0)
    rnn, target = nn.LSTM(D, N), torch.randn(T, B, N, dtype=torch.float64)
    optimizer = torch.optim.SGD(rnn.parameters(), 5.0)
    weights, x = copy.deepcopy(rnn.state_dict()), torch.randn(T, B, D)

    def loss(h):
        return functional.mse_loss(h, target.to(h.dtype))

    with Monitor(rnn) as monitor:
        loss(rnn(x)[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        monitor.step()
    (layer,) = monitor.record.layers
    assert layer.lags[0].tolist() == list(range(T + 1))
    whole = by_autograd(rnn, x, loss, weights).flip(0).numpy()
    assert np.abs(layer.loss["h"][0] - whole).max() < 1e-5
    last = by_autograd(rnn, x, lambda h: functional.mse_loss(h[-1], target[-1]) / T, weights).flip(0).numpy()
    assert np.abs(layer.last["h"][0] - last).max() < 1e-5
    expected = torch.linalg.svdvals(weights["weight_hh_l0"].double()[N : 2 * N])
    wanted = [expected.mean(), expected.std(correction=0), expected.min(), expected.max()]
    assert np.allclose(layer.singular_values["f"][0], [float(v) for v in wanted], atol=1e-12)


def test_of_a_cell_by_hand_as_of_its_layer():
    torch.manual_seed(0)
    rnn, cell, x = nn.GRU(D, N), nn.GRUCell(D, N), torch.randn(T, B, D)
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in rnn.state_dict().items()})
    hand, layer = ByHand(cell), nn.ModuleDict({"rnn": rnn})
    records = []
    for model in (hand, layer):
        with Monitor(model) as monitor:
            out = hand.head(rnn(x)[0]) if model is layer else hand(x)
            out.square().mean().backward()
            monitor.step()
        records.append(monitor.record.layers[0])
    for kind in ("loss", "last"):
        a, b = (getattr(record, kind)["h"] for record in records)
        assert np.abs(a - b).max() < 1e-4
    assert [record.name for record in records] == ["cell", "rnn l0"]


def test_of_packed_sequences_both_ways_the_longest_are_taken_and_the_last_step_is_each_ones_own():
    torch.manual_seed(0)
    rnn = nn.GRU(D, N, num_layers=2, bidirectional=True, dtype=torch.float64)
    lengths = torch.randperm(40)[:20] + 3
    x = torch.randn(int(lengths.max()), 20, D, dtype=torch.float64)
    weights = torch.randn(int(lengths.max()), 20, 2 * N, dtype=torch.float64)
    longest = lengths.argsort(descending=True)[:16]

    def look(chosen, own_ends_only):
        with Monitor(nn.ModuleDict({"rnn": rnn})) as monitor:
            packed = pack_padded_sequence(x[:, chosen], lengths[chosen], enforce_sorted=False)
            out, _ = nn.utils.rnn.pad_packed_sequence(rnn(packed)[0])
            kept = weights[: len(out), chosen].clone()
            if own_ends_only:
                steps = torch.arange(len(out)).unsqueeze(1)
                kept[..., :N][steps != lengths[chosen] - 1] = 0.0
                kept[1:, :, N:] = 0.0
            (out * kept).sum().backward()
            monitor.step()
        return monitor.record.layers

    every, few, ends = look(torch.arange(20), False), look(longest, False), look(longest, True)
    assert [layer.name for layer in every] == ["rnn l0", "rnn l0_reverse", "rnn l1", "rnn l1_reverse"]
    for whole, part, end in zip(every, few, ends, strict=True):
        assert whole.reasons == ("",) and whole.lags.max() == lengths.max()
        assert np.allclose(whole.loss["h"], part.loss["h"], atol=1e-9, equal_nan=True)
        if " l1" in whole.name:  # the layer below has what l1 sends it at its own last step
            assert np.allclose(whole.last["h"], end.loss["h"], atol=1e-9, equal_nan=True)
        assert not np.allclose(whole.last["h"], whole.loss["h"], atol=1e-2, equal_nan=True)


def test_a_linear_orthogonal_network_keeps_the_norm():
    rnn = SpectralRNN(D, 32, margin=0.0, nonlinearity="identity")
    with Monitor(rnn) as monitor:
        rnn(torch.randn(200, 20, D))[0].square().mean().backward()
        monitor.step()
    (layer,) = monitor.record.layers
    assert np.ptp(layer.last["h"][0]) < 1e-4 < np.ptp(layer.loss["h"][0])
    assert layer.margins["h"].tolist() == [0.0]
    assert np.allclose(layer.singular_values["h"], [[1, 0, 1, 1]], atol=1e-5)


def test_hooks_only_in_watched_steps_and_copies_do_not_watch():
    model = nn.Sequential(nn.GRU(D, N))
    monitor = Monitor(model, every=2)
    first, second = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    seen = []
    for _ in range(5):
        seen.append(any(hooks(model)))
        for copied in (first, second):
            copied(torch.ones(4, 2, D))[0].sum().backward()
        model(torch.ones(4, 2, D))[0][-1].sum().backward()
        monitor.step()
    monitor.close()
    monitor.step()
    assert seen == [True, False, True, False, True] and not any(hooks(model))
    assert monitor.record.iterations.tolist() == [0, 2, 4]


def test_evaluation_accumulation_and_several_losses():
    torch.manual_seed(0)
    rnn = nn.GRU(D, N)
    x, more = torch.randn(T, B, D), torch.randn(2 * T, B, D)

    def look(run):
        with Monitor(rnn) as monitor:
            run()
            monitor.step()
        return monitor.record.layers[0]

    def once():
        rnn(x)[0][-1].sum().backward()

    def busy():
        with torch.no_grad():
            rnn(more)
        rnn(more)  # never differentiated
        once()
        rnn.eval()
        rnn(more)[0].sum().backward()  # a second pass, not heard
        rnn.train()

    def two_losses():
        last = rnn(x)[0][-1].sum()
        (0.25 * last).backward(retain_graph=True)
        (0.75 * last).backward()

    expected = look(once)
    for run in (busy, two_losses):
        found = look(run)
        assert np.allclose(found.last["h"], expected.last["h"], atol=1e-6) and found.reasons == ("",)
    assert np.array_equal(expected.loss["h"], expected.last["h"])


def test_gradients_of_inputs_are_none_of_the_losss():
    torch.manual_seed(0)
    rnn = nn.GRU(D, N)
    x = torch.randn(T, B, D, requires_grad=True)

    def look(run):
        with Monitor(rnn) as monitor:
            run(rnn(x)[0][-1].sum())
            monitor.step()
        return monitor.record.layers[0]

    def saliency(last):
        torch.autograd.grad((7 * rnn(x)[0]).sum(), x)
        torch.autograd.grad(7 * last, x, retain_graph=True)
        last.backward()

    def of_a_leaf(last):
        (7 * last).backward(inputs=[x], retain_graph=True)
        last.backward()

    def by_hand(last):
        torch.autograd.grad(last, list(rnn.parameters()))

    expected = look(torch.Tensor.backward)
    for run in (saliency, of_a_leaf, by_hand):
        found = look(run)
        assert found.reasons == ("",) and np.allclose(found.last["h"], expected.last["h"], atol=1e-6)
    assert look(lambda last: torch.autograd.grad(last, x)).reasons == (NOT_REACHED,)


def test_a_gradient_penalty_is_a_part_of_the_loss_through_the_outputs():
    """Of D(x) + (dD/dx)^2 with an output that is squared: what autograd has at the output, by a graph of its own."""
    torch.manual_seed(0)
    rnn = VanillaRNN(D, N, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64, requires_grad=True)

    def loss(output):
        score = output[-1].square().sum()
        return score + torch.autograd.grad(score, x, create_graph=True)[0].square().sum()

    output = rnn(x)[0]
    (expected,) = torch.autograd.grad(loss(output), output)
    with Monitor(rnn) as monitor:
        loss(rnn(x)[0]).backward()
        monitor.step()
    norm = expected[-1].square().sum(-1).mean().log() / 2
    assert monitor.record.layers[0].loss["h"][0, 0] == pytest.approx(float(norm), abs=1e-6)


def test_networks_with_a_loss_each_are_all_measured():
    torch.manual_seed(0)
    nets = nn.ModuleDict({name: nn.GRU(D, N) for name in ("critic", "actor")})
    x = torch.randn(T, B, D)

    def alone(name):
        with Monitor(nets[name]) as monitor:
            nets[name](x)[0][-1].sum().backward()
            monitor.step()
        return monitor.record.layers[0]

    expected = [alone(name) for name in nets]
    with Monitor(nets) as monitor:
        nets["actor"](x)[0].detach()  # as what a generator makes is while the discriminator learns
        for net in nets.values():
            net(x)[0][-1].sum().backward()
        monitor.step()
    for found, one in zip(monitor.record.layers, expected, strict=True):
        assert found.reasons == ("",) and np.allclose(found.last["h"], one.last["h"], atol=1e-6)


def test_what_cannot_be_measured_has_a_reason():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.GRU(D, N), nn.GRU(D, N)
            self.untied, self.frozen = VanillaRNN(D, N, untied=True), nn.RNN(D, N).requires_grad_(False)

        def forward(self, x):
            return self.used(x)[0].sum() + self.untied(x)[0].sum() + self.frozen(x)[0].sum()

    model = Two()
    rows: list[dict[str, float]] = []
    with Monitor(model, every=1, log=rows.append) as monitor:
        for scale in (0.0, 1.0, torch.inf):
            loss = model(torch.randn(T, B, D))
            if scale:
                (loss * scale).backward()
            monitor.step()
    reasons = {layer.name: layer.reasons for layer in monitor.record.layers}
    assert reasons["used l0"] == (NOT_REACHED, "", NOT_FINITE)
    assert reasons["idle l0"] == reasons["frozen l0"] == (NOT_CALLED,) * 3
    assert reasons["untied l0"] == (UNTIED,) * 3
    assert np.isnan(monitor.record.layer("used l0").xi).tolist() == [True, False, True]
    assert all(np.isfinite(value) for row in rows for value in row.values())
    assert "used l0/xi" in rows[1] and "used l0/xi" not in rows[0]
    assert monitor.record.summary.startswith("no time scale at iteration 2: used l0: ")
    assert f"idle l0: no xi: {NOT_CALLED}" in str(monitor.record)


def test_a_state_that_is_changed_between_calls_is_the_reason():
    """As dropout on h does in training; the sequences are not too short."""

    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 8)

        def forward(self, x):
            h = c = x.new_zeros(x.shape[1], 8)
            for x_t in x:
                h, c = self.cell(x_t, (h, c))
                h = nn.functional.dropout(h, 0.5, self.training)
            return h

    model = Dropped()
    with Monitor(model, every=1) as monitor:
        model(torch.randn(10, 4, 3)).square().sum().backward()
        monitor.step()
    (layer,) = monitor.record.layers
    assert layer.reasons[0].startswith("10 calls make 10 separate sequences, of 1 step at most; a state that the model")
    with Monitor(model, every=1) as monitor:
        (model(torch.randn(10, 4, 3)).sum() * torch.inf).backward()
        monitor.step()
    assert any("not finite" in sentence for sentence in monitor.record.findings)


def test_lengths_that_change_and_long_ones_are_kept_in_bounded_columns(tmp_path: Path):
    rnn = nn.RNN(D, N)
    with Monitor(rnn, every=1) as monitor:
        for steps in (8, 700, 3):
            rnn(torch.randn(steps, 2, D))[0].sum().backward()
            monitor.step()
    record = monitor.record
    (layer,) = record.layers
    assert layer.lags.shape == (3, 256) and layer.lags[1].max() == 700
    assert (layer.lags >= 0).sum(1).tolist() == [9, 256, 4]
    assert np.isnan(layer.loss["h"][0, 9:]).all() and np.isfinite(layer.loss["h"][0, :8]).all()
    record.save(tmp_path / "watch.npz")
    found = TrainingRecord.load(tmp_path / "watch.npz")
    assert found.iterations.tolist() == [0, 1, 2] and [p.name for p in tmp_path.iterdir()] == ["watch.npz"]
    for name, value in vars(layer).items():
        other = getattr(found.layers[0], name)
        if isinstance(value, dict):
            assert value.keys() == other.keys()
            assert all(np.array_equal(value[key], other[key], equal_nan=True) for key in value)
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, other, equal_nan=True)
        else:
            assert value == other


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut short", b"{}"])
def test_what_is_no_watch_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "watch.npz"
    with pytest.raises(RecordError, match="not readable"):
        TrainingRecord.load(file)
    file.write_bytes(content)
    with pytest.raises(RecordError, match="not a training record"):
        TrainingRecord.load(file)
    np.savez(file, other=np.zeros(2))
    with pytest.raises(RecordError, match="not a training record"):
        TrainingRecord.load(file)
    with pytest.raises(ValueError, match=r"ending is .npz"):
        TrainingRecord(np.zeros(0), ()).save(tmp_path / "watch.json")


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor_file, "ROWS", 4)
    rnn = nn.RNN(D, N)
    with Monitor(rnn, every=1) as monitor:
        for _ in range(20):
            rnn(torch.ones(3, 1, D))[0].sum().backward()
            monitor.step()
            assert len(monitor.record.iterations) <= 4
    assert np.ptp(np.diff(monitor.record.iterations)) == 0 and monitor.record.iterations[0] == 0


def test_in_the_training_loop_and_a_resumed_one():
    model = Reader(nn.LSTM(D, N), "last")
    state = State(model, torch.optim.Adam(model.parameters(), 0.1), update=7)
    batches = iter([(torch.randn(T, B, D), torch.zeros(B, dtype=torch.long))] * 12)
    with Monitor(model, every=5) as monitor:
        train(state, batches, 19, on_update=[monitor])
    assert monitor.record.iterations.tolist() == [7, 10, 15]
    assert monitor.record.layers[0].reasons == ("", "", "")


@pytest.mark.parametrize("update", [-1, 0, 1.5, "x", True])
def test_an_update_is_a_number(update):
    monitor = Monitor(nn.GRU(D, N))
    with pytest.raises(ValueError, match="update: .* is not allowed; it must be a whole number of updates, at least 1"):
        monitor.step(update)
    with pytest.raises(ValueError, match="updates: .* is not allowed"):
        Monitor(nn.GRU(D, N), updates=update or -1)


def test_updates_made_before_are_counted():
    monitor = Monitor(nn.GRU(D, N), every=5, updates=3)
    for _ in range(4):
        monitor.step()
    monitor.step(12)
    assert monitor.record.iterations.tolist() == [3, 5]


def test_the_summary_names_the_layer_that_fades_soonest_first_of_all():
    torch.manual_seed(0)
    rnn = nn.RNN(D, N, num_layers=2)
    with torch.no_grad():
        rnn.weight_hh_l1.mul_(0.1)
    rows: list[dict[str, float]] = []
    with Monitor(rnn, every=1, log=rows.append) as monitor:
        for steps in (T, T + 3):
            rnn(torch.randn(steps, B, D))[0][-1].sum().backward()
            monitor.step()
            if steps == T:
                assert str(monitor.record).endswith("\n1 iteration measured")
    xi = monitor.record.layer("RNN l1").xi
    first, *lines = str(monitor.record).splitlines()
    assert first == monitor.record.summary
    assert first.startswith(f"the gradient fades soonest in RNN l1: xi = {xi[1]:.2g}"[:-1])
    assert f"sequences have up to {T + 3} steps" in first and "at iteration 0" in first
    assert [line.split(":")[0] for line in lines] == ["RNN l0", "RNN l1", "2 iterations measured"]
    assert [name.split("/")[1] for name in rows[1] if name.startswith("RNN l1")][:2] == ["xi", "xi_error"]


def test_tensorboard_is_told_what_log_is(tmp_path: Path):
    told, rows = {}, list[dict[str, float]]()

    class Writer:
        def add_scalar(self, tag, value, step):
            told[tag, step] = value

    trained(MODELS["own lstm"], True, updates=2, log=rows.append, writer=Writer())
    assert [row.pop("iteration") for row in rows] == [0, 1]
    assert told == {(tag, step): value for step, row in enumerate(rows) for tag, value in row.items()}
    assert {"rnn l1/xi", "rnn l0/singular_values/f/largest", "rnn l0/ln_gradient_norm/last/t=0T"} <= rows[0].keys()


def test_bfloat16_under_autocast_and_double():
    for dtype in (torch.bfloat16, torch.float64):
        rnn = nn.GRU(D, N, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        with Monitor(rnn) as monitor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
                rnn(torch.randn(T, B, D, dtype=rnn.weight_hh_l0.dtype))[0][-1].sum().backward()
            monitor.step()
        assert monitor.record.layers[0].reasons == ("",)


@pytest.mark.parametrize(("every", "shown"), [(0, "0"), (2.0, "2.0"), (True, "True")])
def test_every_is_a_number_of_updates(every, shown):
    with pytest.raises(ValueError, match=f"every: {shown} is not allowed"):
        Monitor(nn.GRU(D, N), every)


def test_models_that_cannot_be_watched_are_refused():
    with pytest.raises(ModuleError, match="holds no recurrent layer"):
        Monitor(nn.Linear(2, 2))
    compiled = nn.GRU(D, N)
    compiled.compile(backend="eager")
    with pytest.raises(ValueError, match="it is compiled"):
        Monitor(compiled)
    rnn = nn.RNN(D, N)
    rnn.lock = threading.Lock()
    with pytest.raises(ValueError, match="RNN cannot be copied"):
        Monitor(rnn)
    assert not any(hooks(rnn))
    with Monitor(nn.ModuleDict({"rnn": nn.RNN(D, N)})) as monitor, pytest.raises(ValueError, match="recorded are rnn"):
        monitor.record.layer("other")


def cut(value):
    """The value with 10 bits of mantissa, as TF32 has them."""
    return value + ((value.detach().view(torch.int32) & ~0x1FFF).view(torch.float32) - value.detach())


class AsOnAGPU(nn.GRU):
    def forward(self, x, hx=None):
        weights, hx = [cut(weight) for weight in self._flat_weights], torch.zeros(1, x.shape[1], self.hidden_size)
        return torch._VF.gru(cut(x), hx, weights, True, 1, 0.0, self.training, False, False)


@pytest.mark.parametrize("known", [True, False])
def test_products_in_tf32_are_recomputed_to_its_precision(known, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder, "_computed_in_tf32", lambda output: known)
    torch.manual_seed(0)
    rnn = AsOnAGPU(D, N)
    with Monitor(rnn) as monitor:
        rnn(torch.randn(T, B, D))[0][-1].sum().backward()
        monitor.step()
    (reason,) = monitor.record.layers[0].reasons
    assert (reason == "") is known, reason


def test_a_batch_without_sequences_does_not_end_the_training():
    rnn = nn.LSTM(D, N)
    with Monitor(rnn, every=1) as monitor:
        for batch in (0, 2):
            rnn(torch.randn(T, batch, D))[0].sum().backward()
            monitor.step()
    first, second = monitor.record.layers[0].reasons
    assert "holds no step to measure" in first and second == ""


def test_a_default_device_of_the_users_is_not_the_measurements():
    rnn, x = nn.GRU(D, N), torch.randn(T, B, D)
    with Monitor(rnn) as monitor, torch.device("meta"):
        rnn(x, torch.zeros(1, B, N, device="cpu"))[0][-1].sum().backward()
        monitor.step()
    assert monitor.record.layers[0].reasons == ("",)


class Two(nn.Module):
    """Two layers, as one module or as two with the same weights, and the last output."""

    def __init__(self, stacked, parts):
        super().__init__()
        self.stacked, self.parts, self.whole = stacked, nn.ModuleList(parts), True
        for name, weight in stacked.named_parameters():
            part = parts[0 if "_l0" in name else 1]
            part.get_parameter(name.replace("_l1", "_l0")).data.copy_(weight.data)

    def forward(self, x):
        if self.whole:
            return self.stacked(x)[0][-1]
        for part in self.parts:
            x = part(x)[0]
        return x[-1]


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_of_a_stack_are_those_of_modules_of_their_own(kind, both):
    torch.manual_seed(0)
    stacked = kind(D, N, 2, bidirectional=both, dtype=torch.float64)
    for name, bias in stacked.named_parameters():
        if "bias_ih_l1" in name:
            bias.data[N : 2 * N] += 4  # the layer above retains, the one below forgets
    parts = [kind(size, N, bidirectional=both, dtype=torch.float64) for size in (D, N * (1 + both))]
    model, x = Two(stacked, parts), torch.randn(60, B, D, dtype=torch.float64)
    records = []
    for model.whole in (True, False):
        with Monitor(model) as monitor:
            model(x).square().sum().backward()
            monitor.step()
        records.append([layer for layer in monitor.record.layers if layer.reasons == ("",)])
    for one, other in zip(*records, strict=True):
        for state in ("all", "h"):
            np.testing.assert_allclose(one.loss[state], other.loss[state], rtol=1e-6)
            np.testing.assert_allclose(one.last[state], other.last[state], rtol=1e-6)
        assert one.xi[0] == pytest.approx(other.xi[0], rel=1e-6, nan_ok=True)
    assert records[0][0].xi[0] < 5


def test_a_loss_has_no_rate_where_it_enters_at_many_steps():
    report = measure(nn.LSTM(D, N, 2), torch.randn(60, B, D), target=lambda out: out[0][-1].sum(), theory=False)
    below, top = report.layers
    assert top.loss.xi.number() > 0 and top.loss_steps == pytest.approx(1 / 60)
    assert below.loss.xi.number() is None and "enters at many steps" in below.loss.xi.reason()
    assert below.loss_steps > 0.5
