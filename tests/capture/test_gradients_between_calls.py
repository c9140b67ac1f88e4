"""What a model does to the gradients of states between a cell's calls, and states that go on from earlier calls."""

import pytest
import torch
from torch import nn

from isornn.diagnosis import Monitor, findings, measure

T, N = 40, 16


def scaled(part):
    return 0.5 * part + 0.5 * part.detach()


def hooked(part):
    if part.requires_grad:
        part.register_hook(lambda grad: 0.5 * grad)
    return part


CHANGES = {
    "scaled": lambda h, c: (scaled(h), scaled(c)),
    "h detached": lambda h, c: (h.detach(), c),
    "hook": lambda h, c: (hooked(h), c),
}
SAME = {
    "as it is": lambda h, c: (h, c),
    "masked": lambda h, c: (h * torch.ones(len(h), 1), c * torch.ones(len(c), 1)),
    "joined and split": lambda h, c: torch.cat([h, c], -1).split(N, -1),
    "copied": lambda h, c: (h.clone(), c.reshape(1, *c.shape)[0]),
}


class Stepped(nn.Module):
    """A cell in a loop, whose state something is done to between two steps."""

    def __init__(self, between):
        super().__init__()
        self.between, self.cell, self.out = between, nn.LSTMCell(3, N), nn.Linear(N, 1)

    def forward(self, x):
        state = (x.new_zeros(len(x), N),) * 2
        for t in range(x.shape[1]):
            state = self.between(*self.cell(x[:, t], state))
        return self.out(state[0])


def stepped(between):
    torch.manual_seed(0)
    return Stepped(between), torch.randn(8, T, 3)


@pytest.mark.parametrize("target", [None, lambda output: output.square().mean()])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_that_the_model_changes_are_not_taken_for_the_layers(change, target):
    model, x = stepped(CHANGES[change])
    found = measure(model, x, target=target, theory=False)
    assert not found.layers
    (finding,) = findings(found)
    assert finding.kind == "cannot_tell" and "changes the gradient of the state" in finding.sentence
    assert found.length == T


class Episodes(Stepped):
    """Some rows begin anew on the way."""

    def forward(self, x):
        state = (x.new_zeros(len(x), N),) * 2
        for t in range(x.shape[1]):
            goes_on = torch.ones(len(x), 1)
            goes_on[:3] = float(t != 15)
            state = self.between(*self.cell(x[:, t], tuple(goes_on * part for part in state)))
        return self.out(state[0])


def test_they_are_not_where_rows_begin_anew_either():
    torch.manual_seed(0)
    x = torch.randn(8, T, 3)
    changed, same = (measure(Episodes(between), x, theory=False) for between in (CHANGES["h detached"], SAME["copied"]))
    assert not changed.layers and "changes the gradient of the state" in changed.unmeasured[0].reason
    assert same.layers[0].info.steps == T


@pytest.mark.parametrize("same", SAME)
def test_states_whose_gradient_passes_as_it_is_are_measured(same):
    model, x = stepped(SAME[same])
    plain, _ = stepped(SAME["as it is"])
    (layer,), (expected,) = (measure(one, x, theory=False).layers for one in (model, plain))
    assert layer.info.steps == T
    assert layer.backward.xi.number() == expected.backward.xi.number()


def test_a_monitor_does_not_take_them_for_the_layers_either():
    model, x = stepped(CHANGES["scaled"])
    with Monitor(model, every=1) as monitor:
        model(x).square().mean().backward()
        monitor.step()
    assert "changes the gradient of the state" in monitor.record.summary


class Speakers(nn.Module):
    """A state for each of two speakers, in every row of the batch."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, N), nn.Linear(N, 1)

    def forward(self, x, who):
        states, rows, outputs = x.new_zeros(len(x), 2, N), torch.arange(len(x)), []
        for t in range(x.shape[1]):
            new = self.cell(x[:, t], states[rows, who[:, t]])
            states = states.clone()
            states[rows, who[:, t]] = new
            outputs.append(new)
        return self.out(torch.stack(outputs, 1))


def test_states_of_several_speakers_are_not_cut_into_short_sequences():
    torch.manual_seed(3)
    x, who = torch.randn(8, T, 3), torch.randint(0, 2, (8, T))
    (finding,) = findings(measure(Speakers(), (x, who), theory=False))
    assert finding.kind == "cannot_tell" and "states of earlier calls" in finding.sentence
    (layer,) = measure(Speakers(), (x, (torch.arange(T) % 2).expand(8, T)), theory=False).layers
    assert layer.info.steps == T // 2  # who speaks is the same in all rows


class Reordering(nn.Module):
    """The rows of the state in another order, or some twice, after every step."""

    def __init__(self, order):
        super().__init__()
        self.cell, self.order = nn.GRUCell(3, N), order

    def forward(self, x):
        h = x.new_zeros(len(x), N)
        for x_t in x.unbind(1):
            h = self.cell(x_t, h)[self.order(len(x))]
        return h


@pytest.mark.parametrize("longest", [T, T - 1, T - 8])
@pytest.mark.parametrize("by", ["where", "product"])
def test_rows_that_keep_their_state_behind_their_ends_are_not_reordered(longest, by):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, N)

        def forward(self, x, lengths):
            h = x.new_zeros(len(x), N)
            for step, x_t in enumerate(x.unbind(1)):
                new, on = self.cell(x_t, h), (step < lengths).unsqueeze(-1)
                h = torch.where(on, new, h) if by == "where" else on * new + ~on * h
            return h

    torch.manual_seed(3)
    lengths = torch.linspace(10, longest, 8).long()
    (layer,) = measure(Masked(), (torch.randn(8, T, 3), lengths), theory=False).layers
    steps = lengths + (lengths == T - 1)  # that the last call of all is without effect cannot be seen
    assert layer.info.steps == int(steps.max()) and layer.info.mean_steps == float(steps.double().mean())


@pytest.mark.parametrize("order", [torch.randperm, lambda rows: torch.randint(0, rows, (rows,))])
def test_rows_that_are_reordered_are_not_cut_into_short_sequences(order):
    torch.manual_seed(3)
    diagnosis = measure(Reordering(order), torch.randn(8, T, 3), theory=False)
    (finding,) = findings(diagnosis)
    assert diagnosis.length == T
    assert finding.kind == "cannot_tell" and "rows of its state are reordered" in finding.sentence


def test_of_rows_that_leave_from_between_others_those_before_them_are_measured():
    class Leaving(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, N)

        def forward(self, x):
            h, rows = x.new_zeros(len(x), N), torch.arange(len(x))
            for step, x_t in enumerate(x.unbind(1)):
                if step == T // 2:
                    rows, h = rows[rows != 3], h[rows != 3]
                h = self.cell(x_t[rows], h)
            return h

    torch.manual_seed(3)
    (layer,) = measure(Leaving(), torch.randn(8, T, 3), theory=False).layers
    assert layer.info.steps == T


def test_rows_that_end_and_leave_the_batch_are_not_reordered():
    class Ending(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, N)

        def forward(self, x):
            h, left = x.new_zeros(len(x), N), []
            for step, x_t in enumerate(x.unbind(1)):
                rows = len(x) if step < T // 2 else len(x) // 2
                left += [*h[rows:]]
                h = self.cell(x_t[:rows], h[:rows])
            return torch.stack([*h, *left[::-1]])

    torch.manual_seed(3)
    (layer,) = measure(Ending(), torch.randn(8, T, 3), theory=False).layers
    assert layer.info.steps == T
