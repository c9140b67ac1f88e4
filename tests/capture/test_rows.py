"""Loops in which the rows of a batch begin and end each for itself."""

import math
from itertools import pairwise, product

import pytest
import torch
from torch import nn

import isornn
from isornn.diagnosis import Monitor, measure

T, D, N = 40, 3, 6
LENGTHS = torch.tensor([40, 31, 12])
# Steps at which an episode begins, by row; [13, 14] is one of a single step.
STARTS = [[0, 5], [0, 13, 14], [0, 39]]


def kept(t, like):
    """(B, 1): 0 in the rows in which an episode begins at step t."""
    return torch.tensor([float(t not in starts) for starts in STARTS]).to(like).unsqueeze(1)


class Loop(nn.Module):
    """Steps an LSTM; rows that have ended are masked or left out, or episodes begin anew, from a state of 0."""

    def __init__(self, how, stepped):
        super().__init__()
        self.how, self.rnn = how, nn.LSTMCell(D, N) if stepped else nn.LSTM(D, N)
        self.read = nn.Linear(N, 1)

    def step(self, x, state):
        if isinstance(self.rnn, nn.LSTM):
            return tuple(part[0] for part in self.rnn(x[None], tuple(part[None] for part in state))[1])
        return self.rnn(x, state)

    def in_pieces(self, x):
        """The episodes' loop, a call from each step at which one begins; it reads the cells at their ends too."""
        state, total = (x.new_zeros(1, x.shape[1], N),) * 2, x.new_zeros(())
        edges = [*sorted({start for starts in STARTS for start in starts}), T]
        for a, b in pairwise(edges):
            out, state = self.rnn(x[a:b], tuple(kept(a, x) * part for part in state))
            total = total + (torch.arange(a, b).to(x) * self.read(out).sum((1, 2))).sum() + state[1].sum()
        return total

    def forward(self, x):
        if self.how == "pieces":
            return self.in_pieces(x)
        state, total = (x.new_zeros(x.shape[1], N),) * 2, x.new_zeros(())
        for t in range(T):
            if self.how == "shrinking":
                rows = int((t < LENGTHS).sum())
                state = self.step(x[t, :rows], tuple(part[:rows] for part in state))
                total = total + self.read(state[0])[LENGTHS[:rows] == t + 1].sum()
            elif self.how == "masked":
                goes_on = (t < LENGTHS).to(x).unsqueeze(1)
                new = self.step(x[t], state)
                state = tuple(goes_on * a + (1 - goes_on) * b for a, b in zip(new, state, strict=True))
            else:
                state = self.step(x[t], tuple(kept(t, x) * part for part in state))
                total = total + t * self.read(state[0]).sum()
                if self.how == "pieces' steps" and (t + 1 == T or any(t + 1 in starts for starts in STARTS)):
                    total = total + state[1].sum()
        return total if self.how != "masked" else self.read(state[0]).sum()


def runs(how):
    """(row, first step, step after the last) of the three longest sequences."""
    if how in ("masked", "shrinking"):
        return [(row, 0, stop) for row, stop in enumerate(LENGTHS.tolist())]
    found = [(row, a, b) for row, starts in enumerate(STARTS) for a, b in zip(starts, [*starts[1:], T], strict=True)]
    return sorted(found, key=lambda run: run[1] - run[2])[:3]


def squared_gradients(model, x):
    """(T, B): of the output with respect to h and c after each step, c's without its way through h of that step."""
    added, step = [], model.step

    def watched(*arguments):
        new = step(*arguments)
        added.append([torch.zeros_like(part, requires_grad=True) for part in new])
        return tuple(part + more for part, more in zip(new, added[-1], strict=True))

    model.step = watched
    output = model(x)
    del model.step
    found = [torch.autograd.grad(output, parts, retain_graph=True, allow_unused=True) for parts in added]
    sizes = [sum(0 if part is None else part.square().sum(-1) for part in parts) for parts in found]
    return [torch.zeros(3) if isinstance(size, int) else size for size in sizes]


@pytest.mark.parametrize(
    ("how", "stepped"),
    [*product(["masked", "shrinking", "episodes"], [True, False]), ("pieces", False)],
)
def test_each_row_is_a_sequence_of_its_own(how, stepped):
    torch.manual_seed(0)
    model, x = Loop(how, stepped).double(), torch.randn(T, 3, D, dtype=torch.float64)
    (layer,) = measure(model, x, target=lambda output: output).layers
    wanted = runs(how)
    lengths = [b - a for _, a, b in wanted]
    assert (layer.info.steps, layer.info.sequences, layer.info.calls) == (max(lengths), 3, T if how != "pieces" else 5)
    assert layer.info.mean_steps == pytest.approx(sum(lengths) / 3)
    assert layer.info.chains == (3 if how in ("masked", "shrinking") else sum(map(len, STARTS)))
    model.how = "pieces' steps" if how == "pieces" else how
    gradients = squared_gradients(model, x)
    model.how = how
    for lag in range(max(lengths)):
        known = [float(gradients[b - 1 - lag][row]) for row, a, b in wanted if b - 1 - lag >= a]
        if lag not in lengths:  # at which a sequence has its first state, which is not of a step
            assert float(layer.loss.log_norm["all"][lag]) == pytest.approx(
                math.log(sum(known) / len(known)) / 2, abs=1e-9
            )
    with Monitor(model) as monitor:
        model(x).backward()
        monitor.step()
    (record,) = monitor.record.layers
    assert record.reasons == ("",)
    assert record.loss["all"][0][: max(lengths)] == pytest.approx(layer.loss.log_norm["all"][:-1].numpy(), abs=1e-9)


@pytest.mark.parametrize("how", ["masked", "shrinking"])
def test_the_length_is_that_of_the_longest_row(how):
    report = isornn.diagnose(Loop(how, True), torch.randn(T, 3, D))
    assert report.diagnosis.length == T
    assert all(f" {T}, " in finding.remedy for finding in report.findings if finding.remedy)


def test_a_state_that_is_changed_otherwise_is_named():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.norm = nn.GRUCell(D, N), nn.LayerNorm(N)

        def forward(self, x):
            h = x.new_zeros(x.shape[1], N)
            for row in x:
                h = self.norm(self.cell(row, h))
            return h

    (finding,) = isornn.diagnose(Normalised(), torch.randn(T, 3, D)).findings
    assert finding.kind == "cannot_tell"
    assert "40 calls make 40 separate sequences" in finding.sentence and "normalisation" in finding.sentence
