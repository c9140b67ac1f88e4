"""Sequences that run in segments: checkpoints, detached states, and states that overflow behind the end."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from isornn import nn
from small_layers import B, D, N, every_kind, flat, made, sequence, started


@every_kind
@pytest.mark.parametrize(("every", "lengths"), [(1, None), (3, None), (50, None), (3, [7, 0, 4])])
def test_checkpoints_change_nothing_but_memory(kind: type[nn.RNN], every: int, lengths: list[int] | None) -> None:
    results = []
    for options in ({}, {"checkpoint_every": every}):
        layer = made(kind, bidirectional=True, **options)
        out, last = layer(sequence(7, B, D), started(layer), lengths=lengths)
        (out.square().sum() + sum(value.sum() for value in flat(last))).backward()
        results.append((out, flat(last), [parameter.grad for parameter in layer.parameters()]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)


def test_detached_states_leave_values_and_stop_gradients() -> None:
    x = sequence(6, B, D)
    plain, detached = made(nn.LSTM), made(nn.LSTM, h_detach=1.0)
    torch.testing.assert_close(detached(x)[0], plain(x)[0], rtol=0, atol=1e-12)
    detached(x)[0].sum().backward()
    assert bool((detached.weight_hh_l0.grad != 0).any())
    start = started(detached)
    h = start[0].requires_grad_()
    out, _ = detached(x, (h, start[1]))
    assert torch.autograd.grad(out.sum(), h, allow_unused=True)[0] is None
    detached.eval()
    assert torch.autograd.grad(detached(x, (h, start[1]))[0].sum(), h)[0].abs().max() > 0


def test_states_that_the_update_reads_itself_are_not_detached() -> None:
    with pytest.raises(ValueError, match="h_detach: gru's update reads h itself"):
        nn.GRU(D, N, h_detach=0.5)


def test_states_are_detached_at_the_steps_that_are_drawn() -> None:
    x = sequence(7, B, D)
    layer = made(nn.LSTM, h_detach=0.5)
    torch.manual_seed(3)
    detached = torch.rand(7) < 0.5
    assert bool(detached[1:].any() and not detached[1:].all())
    torch.manual_seed(3)
    found = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    layer.eval()
    out, (h, c) = [], (torch.zeros(1, B, N, dtype=torch.float64),) * 2
    for t in range(7):
        value, (h, c) = layer(x[t : t + 1], (h.detach() if detached[t] else h, c))
        out.append(value)
    expected = torch.autograd.grad(torch.cat(out).square().sum(), list(layer.parameters()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    resumed = made(nn.LSTM, h_detach=0.5, checkpoint_every=3)
    torch.manual_seed(3)
    again = torch.autograd.grad(resumed(x)[0].square().sum(), list(resumed.parameters()))
    torch.testing.assert_close(again, expected, rtol=0, atol=1e-12)


def test_what_a_sequence_ended_with_keeps_its_gradient() -> None:
    x, layer = sequence(6, 1, D), made(nn.LSTM, h_detach=1.0)
    ends = [layer(x[:2])[1][0], layer(x, lengths=[2])[1][0]]
    alone, padded = (torch.autograd.grad(h.sum(), layer.weight_ih_l0)[0] for h in ends)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["lengths", "packed"])
def test_states_that_overflow_in_the_padding_leave_no_trace(form: str) -> None:
    """A linear or ReLU network with large weights grows without bound where a sequence has long ended.

    In float64, as the two differ by rounding that grows with the states.
    """
    torch.manual_seed(0)
    mine = nn.VanillaRNN(3, 4, nonlinearity="relu", num_layers=2, dtype=torch.float64)
    peer = torch.nn.RNN(3, 4, 2, nonlinearity="relu", dtype=torch.float64)
    with torch.no_grad():
        for layer in range(2):
            getattr(peer, f"weight_hh_l{layer}").copy_(2 * torch.eye(4))
            getattr(peer, f"bias_ih_l{layer}").fill_(0.1)
    mine.load_state_dict(peer.state_dict())
    x, lengths = torch.randn(1100, 3, 3, dtype=torch.float64), [5, 20, 1]
    assert not bool(mine(x)[0].isfinite().all())
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    expected, end = peer(packed)
    out, last = mine(packed) if form == "packed" else mine(x, lengths=lengths)
    (expected.data.sum() + end.sum()).backward()
    ((out.data if form == "packed" else out).sum() + last.sum()).backward()
    torch.testing.assert_close(last, end)
    for name, parameter in peer.named_parameters():
        torch.testing.assert_close(mine.get_parameter(name).grad, parameter.grad)


def test_padding_that_overflows_beside_sequences_without_a_step() -> None:
    layer = nn.TMR(3, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(2.0)
    out, last = layer(torch.rand(300, 3, 3), lengths=[0, 2, 1])
    (out.sum() + last.sum()).backward()
    assert bool(out.isfinite().all()) and not bool(out[:, 0].any()) and not bool(last[0, 0].any())
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())


def test_padding_that_overflows_in_a_segment_that_ends_before_other_sequences() -> None:
    x = torch.zeros(100, 3, 3)
    x[:5, 0] = 1.0
    results = []
    for every in (None, 80):
        torch.manual_seed(0)
        layer = nn.VanillaRNN(3, 4, nonlinearity="relu", bias=False, checkpoint_every=every)
        with torch.no_grad():
            layer.weight_hh_l0.copy_(5 * torch.eye(4))
        out, last = layer(x, lengths=[5, 85, 90])
        (out.sum() + last.sum()).backward()
        results.append((out, last, layer.weight_hh_l0.grad))
    assert all(bool(value.isfinite().all()) for value in results[0])
    torch.testing.assert_close(results[0], results[1])


def test_states_that_overflow_in_the_padding_and_return_leave_no_trace() -> None:
    """Two units that drive each other to infinity, until a third one closes them, which the padding does not reach."""
    layer, peer = (kind(1, 3, nonlinearity="relu", bias=False) for kind in (nn.VanillaRNN, torch.nn.RNN))
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.tensor([[0.0, 0.0, -1.0], [1e25, 0.0, -1.0], [0.0, 1e25, -1.0]]))
        layer.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0], [0.0]]))
    peer.load_state_dict(layer.state_dict())
    x = torch.zeros(6, 2, 1)
    x[0, 1] = 1.0
    for one in (layer, peer):
        one(pack_padded_sequence(x, [6, 1]))[1].sum().backward()
    torch.testing.assert_close(layer.weight_hh_l0.grad, peer.weight_hh_l0.grad)
