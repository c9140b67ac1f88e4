"""Axes that a model exchanges by a reshape: sequences, steps or features are mixed, and nothing else fails."""

import json

import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis import findings, measure

B, T, D, N = 12, 30, 4, 8
X = torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))


class Reader(nn.Module):
    def __init__(self, read, rnn, features=N):
        super().__init__()
        self.read, self.rnn, self.head = read, rnn, nn.Linear(features, 3)

    def forward(self, x):
        return self.head(self.read(self.rnn, x))


def found(model, batch=X, **options):
    return {one.kind: one for one in findings(measure(model, batch, **options))}.get("axes_mixed")


def gru(layers=1, inputs=D, **options):
    return nn.GRU(inputs, N, layers, batch_first=True, **options)


def time_first():
    return nn.GRU(D, N)


def steps_first(x):
    return x.transpose(0, 1)


MIXED = {
    "states of layers": (lambda rnn, x: rnn(x)[1].view(B, -1), gru(2), 2 * N),
    "states of directions": (lambda rnn, x: rnn(x)[1].view(B, -1), gru(bidirectional=True), 2 * N),
    "last layer's directions": (lambda rnn, x: rnn(x)[1][-2:].reshape(B, -1), gru(2, bidirectional=True), 2 * N),
    "cells": (lambda rnn, x: rnn(x)[1][1].reshape(B, -1), isornn.nn.LSTM(D, N, 3, batch_first=True), 3 * N),
    "last step": (lambda rnn, x: rnn(steps_first(x))[0].reshape(B, T, N)[:, -1], time_first(), N),
    "every step": (lambda rnn, x: rnn(steps_first(x))[0].reshape(B, T, N), time_first(), N),
    "flattened": (lambda rnn, x: rnn(steps_first(x))[0].reshape(B, -1), time_first(), T * N),
    "read as time first": (lambda rnn, x: rnn(x)[0].reshape(T, B, N)[-1], gru(), N),
    "input": (lambda rnn, x: rnn(x.view(T, B, D))[0][-1], time_first(), N),
    "input of twice as many steps": (lambda rnn, x: rnn(of(2 * B, D).view(2 * B, B, D))[0][-1], time_first(), N),
    "channels first": (lambda rnn, x: rnn(x.view(B, D, T))[0][:, -1], gru(inputs=T), N),
    "image": (lambda rnn, x: rnn(image().view(B, 20, 2 * 8))[0][:, -1], gru(inputs=16), N),
    "linear": (lambda rnn, x: rnn(project(x).view(T, B, 6))[0][-1], nn.GRU(6, N), N),
    "linear, with windows": (lambda rnn, x: rnn(project(x).view(B, 3, 10, 6).view(T, B, 6))[0][-1], nn.GRU(6, N), N),
    "linear, features": (lambda rnn, x: rnn(project(x, 7).view(B, 7, T))[0][:, -1], gru(inputs=T), N),
    "linear, twice": (lambda rnn, x: rnn(project(x).view(T, B, 6).view(T, B, 6))[0][-1], nn.GRU(6, N), N),
    "copy": (lambda rnn, x: rnn(project(x).transpose(1, 2).reshape(T, B, 6))[0][-1], nn.GRU(6, N), N),
    "heads": (lambda rnn, x: rnn(image().reshape(B, 8, 2 * 20))[0][:, -1], gru(inputs=40), N),
}


def pooled(rnn, x):
    output = rnn(x)[0]
    return output.mean(1) + output.mean((0, 1))


def of(steps, features):
    return torch.randn(B, steps, features, generator=torch.Generator().manual_seed(1))


def image():
    """What convolutions give: (B, C, H, W)."""
    return of(2 * 8, 20).view(B, 2, 8, 20).tanh()


def project(x, features=6):
    torch.manual_seed(0)
    return nn.Linear(x.shape[-1], features)(x)


def compared(rnn, x):
    states = rnn(x)[1][-1]
    return (states @ states.T).softmax(-1) @ states


SOUND = {
    "states of layers": (lambda rnn, x: steps_first(rnn(x)[1]).reshape(B, -1), gru(2), 2 * N),
    "states of directions": (lambda rnn, x: torch.cat(list(rnn(x)[1]), -1), gru(bidirectional=True), 2 * N),
    "last layer's directions": (
        lambda rnn, x: rnn(x)[1].view(2, 2, B, N)[-1].transpose(0, 1).reshape(B, -1),
        gru(2, bidirectional=True),
        2 * N,
    ),
    "states of one layer": (lambda rnn, x: rnn(x)[1].view(B, -1), gru(), N),
    "last step": (lambda rnn, x: rnn(steps_first(x))[0].transpose(0, 1)[:, -1], time_first(), N),
    "every step": (lambda rnn, x: rnn(x)[0].reshape(-1, N), gru(), N),
    "time first": (lambda rnn, x: rnn(steps_first(x))[0], time_first(), N),
    "flattened": (lambda rnn, x: rnn(x)[0].reshape(B, -1), gru(), T * N),
    "pooled over sequences": (pooled, gru(), N),
    "attention between sequences": (compared, gru(2), N),
    "input": (lambda rnn, x: rnn(steps_first(x).contiguous())[0][-1], time_first(), N),
    "one feature": (lambda rnn, x: rnn(x[..., :1].reshape(B, 1, T).view(B, T, 1))[0][:, -1], gru(inputs=1), N),
    "two steps as one": (lambda rnn, x: rnn(of(40, 20).view(B, 20, 40))[0][:, -1], gru(inputs=40), N),
    "windows": (lambda rnn, x: rnn(of(2 * B, D).view(2 * B, B, D))[0][:, -1], gru(), N),
    "patches": (lambda rnn, x: rnn(x.reshape(B, T // 5, 5 * D))[0][:, -1], gru(inputs=5 * D), N),
    "image": (lambda rnn, x: rnn(image().permute(0, 3, 1, 2).reshape(B, 20, 2 * 8))[0][:, -1], gru(inputs=16), N),
    "image of rows": (lambda rnn, x: rnn(image().view(B, 2 * 8, 20))[0][:, -1], gru(inputs=20), N),
    "channels as sequences": (lambda rnn, x: rnn(image().view(2 * B, 8, 20))[1].view(B, -1), gru(inputs=20), 2 * N),
    "linear": (lambda rnn, x: rnn(project(x))[0][:, -1], gru(inputs=6), N),
    "linear of rows": (lambda rnn, x: rnn(project(x.reshape(B * T, D)).view(B, T, 6))[0][:, -1], gru(inputs=6), N),
    "linear of steps": (lambda rnn, x: rnn(project(steps_first(x)).contiguous())[0][-1], nn.GRU(6, N), N),
    "linear of rows, time first": (
        lambda rnn, x: rnn(project(steps_first(x).reshape(B * T, D)).view(T, B, 6))[0][-1],
        nn.GRU(6, N),
        N,
    ),
    "there and back": (lambda rnn, x: rnn(project(x).view(T, B, 6).view(B, T, 6))[0][:, -1], gru(inputs=6), N),
    "linear and patches": (lambda rnn, x: rnn(project(x).view(B, T // 5, 30))[0][:, -1], gru(inputs=30), N),
    "linear, heads joined": (lambda rnn, x: rnn(project(x).view(B, T, 2, 3).flatten(2))[0][:, -1], gru(inputs=6), N),
    "kept in memory as it was": (lambda rnn, x: rnn(steps_first(steps_first(x).tanh()))[0][:, -1], gru(), N),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("target", [None, lambda output: output.square().sum()], ids=["output", "loss"])
def test_axes_exchanged_by_a_reshape_are_named(name, target):
    read, rnn, features = MIXED[name]
    one = found(Reader(read, rnn, features), target=target)
    assert one is not None and one.layer == "rnn l0"
    json.dumps(one.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", SOUND)
def test_models_that_keep_their_rows_apart_or_mix_them_otherwise_are_no_fault(name):
    read, rnn, features = SOUND[name]
    assert found(Reader(read, rnn, features)) is None


def test_what_is_mixed_and_what_to_write():
    read, rnn, features = MIXED["states of layers"]
    one = found(Reader(read, rnn, features))
    assert "last state (2, 12, 8) is reshaped as if it were (12, 2, ...)" in one.sentence
    assert one.evidence == {"sequences that row 0 of the model's output reads": "0, 1 (bar: 0 alone)"}
    assert "state = state.transpose(0, 1)" in one.remedy
    read, rnn, features = MIXED["last layer's directions"]
    one = found(Reader(read, rnn, features))
    assert "last layer's last state (2, 12, 8) is reshaped as if it were (12, 2, ...)" in one.sentence
    for name, order in (("input", "1, 0, 2"), ("channels first", "0, 2, 1")):
        read, rnn, features = MIXED[name]
        assert f"x = x.permute({order})" in found(Reader(read, rnn, features)).remedy


@pytest.mark.parametrize("layers", [2, 3])
def test_following_the_advice_leaves_nothing(layers):
    """Rows of the output then depend on their own sequence alone, by another route: changed inputs of the others."""

    def read(rnn, x):
        state = rnn(x)[1]
        return (state.transpose(0, 1) if fixed else state).reshape(B, -1)

    fixed = False
    model = Reader(read, nn.GRU(D, N, layers, batch_first=True), layers * N)
    others = torch.cat([X[:1], torch.randn(B - 1, T, D, generator=torch.Generator().manual_seed(1))])
    assert found(model) is not None and not torch.equal(model(X)[0], model(others)[0])
    fixed = True
    assert found(model) is None and torch.allclose(model(X)[0], model(others)[0], atol=1e-6)


def test_the_layers_below_a_reshaped_one_are_not_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.above, self.head = nn.GRU(D, N), nn.GRU(N, N, 2), nn.Linear(2 * N, 3)

        def forward(self, x):
            return self.head(self.above(self.below(x.transpose(0, 1))[0])[1].view(B, -1))

    kinds = [(one.kind, one.layer) for one in findings(measure(Two(), X)) if one.kind == "axes_mixed"]
    assert kinds == [("axes_mixed", "above l0")]


@pytest.mark.parametrize(("name", "as_if"), [("read as time first", "(30, 12, ...)"), ("last step", "(12, 30, ...)")])
def test_the_sizes_that_a_result_is_taken_for_are_named(name, as_if):
    read, rnn, features = MIXED[name]
    assert f"as if it were {as_if}" in found(Reader(read, rnn, features)).sentence


def test_a_reshape_between_two_modules_is_one_finding():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.above, self.head = gru(), nn.GRU(N, N), nn.Linear(N, 3)

        def forward(self, x):
            return self.head(self.above(self.below(x)[0].reshape(T, B, N))[0][-1])

    kinds = [(one.kind, one.layer) for one in findings(measure(Two(), X)) if one.kind == "axes_mixed"]
    assert kinds == [("axes_mixed", "above l0")]


def test_how_the_batch_was_made_is_not_the_models():
    """The same view within the model is one that mixes."""
    whole = torch.randn(T, B, D)
    assert found(gru(), whole.view(B, T, D)) is None
    assert found(Reader(lambda rnn, x: rnn(x.view(B, T, D))[0], gru()), whole) is not None


@pytest.mark.parametrize(
    ("shape", "sizes", "advice"),
    [
        ((B, T, 1), (T, B, 1), "x = x.permute(1, 0, 2)"),
        ((B, T), (T, B, 1), "x = x.permute(1, 0).reshape(30, 12, 1)"),
        ((B, 7, 1, T), (B, T, 7), "x = x.permute(0, 3, 1, 2).reshape(12, 30, 7)"),
        ((B, 2, 7, T), (B, T, 14), "x = x.permute(0, 3, 1, 2).reshape(12, 30, 14)"),
    ],
)
def test_advice_gives_the_shape_that_was_wanted(shape, sizes, advice):
    rnn = nn.GRU(sizes[-1], N, batch_first=sizes[0] == B)
    x = torch.randn(shape)
    one = found(Reader(lambda rnn, x: rnn(x.view(sizes))[0], rnn), x)
    assert advice in one.remedy
    lines = {"x": x}
    exec(one.remedy, lines)
    assert lines["x"].shape == sizes and not torch.equal(lines["x"], x.view(sizes))
