"""Layers whose every step has parameters of its own: what they compute, how they start, that all of them train."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from isornn import init
from isornn.cells import LSTM, TLSTM, Gate, Spec
from isornn.nn import RNN, OwnSteps

T, B, D, N = 4, 3, 2, 5


def made() -> OwnSteps:
    return OwnSteps([RNN(LSTM(), D, N, dtype=torch.float64) for _ in range(T)])


def test_with_equal_parameters_it_is_the_tied_layer() -> None:
    tied, own = RNN(LSTM(), D, N, dtype=torch.float64), made()
    for layer in own.steps:
        layer.load_state_dict(tied.state_dict())
    x = torch.randn(T, B, D, dtype=torch.float64)
    torch.testing.assert_close(own(x)[0], tied(x)[0])
    for ours, theirs in zip(own(x)[1], tied(x)[1], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_step_starts_by_the_law_on_its_own_and_trains() -> None:
    own = init.apply_(made(), Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"}))
    weights = [layer.weight_hh_l0 for layer in own.steps]
    assert not any(torch.equal(a, b) for a, b in pairwise(weights))
    own(torch.randn(T, B, D, dtype=torch.float64))[0][-1].square().sum().backward()
    assert all(bool((layer.weight_ih_l0.grad != 0).any()) for layer in own.steps)


def test_another_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="x: 5 steps are not allowed; 4 have parameters"):
        made()(torch.zeros(T + 1, B, D, dtype=torch.float64))


def test_packed_sequences_are_refused() -> None:
    packed = pack_sequence([torch.zeros(T, D, dtype=torch.float64)])  # a tuple of four, as many as there are steps
    with pytest.raises(ValueError, match="x: PackedSequence is not allowed; it must be a tensor"):
        made()(packed)


@pytest.mark.parametrize("before", ["zero", "first"])
def test_steps_of_cells_that_read_the_previous_input_are_given_it(before: Literal["zero", "first"]) -> None:
    tied = RNN(TLSTM(), D, N, before=before, dtype=torch.float64)
    x = torch.randn(T, B, D, dtype=torch.float64)
    torch.testing.assert_close(OwnSteps([tied] * T)(x)[0], tied(x)[0])
    torch.testing.assert_close(OwnSteps([tied] * T)(x[:, 0])[0], tied(x[:, 0])[0])


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([], "layers: there is none"),
        ([RNN(LSTM(), D, N, batch_first=True)], r"layers\[0\]: .* the batch second"),
        ([RNN(LSTM(), D, N, bidirectional=True)], r"layers\[0\]: .* one direction"),
        ([RNN(TLSTM(), D, N, num_layers=2)], r"layers\[0\]: .* one layer"),
        ([RNN(LSTM(), D, N), RNN(LSTM(), D, N + 1)], r"layers\[1\]: .* sizes of the first"),
        ([RNN(LSTM(), D, N), RNN(TLSTM(), D, N)], r"layers\[1\]: .* the cell"),
    ],
)
def test_layers_that_are_no_steps(layers: list[RNN], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        OwnSteps(layers)
