"""The gradients that a monitor measures are those that autograd has of the loss."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from isornn.diagnosis import Monitor, measure
from isornn.nn import SpectralRNN
from monitored_models import B, ByHand, D, N, T


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
