"""Which of a layer's results a model reads: the wrong axis, padding in place of ends, the reverse direction's start."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import isornn
from isornn.diagnosis import findings, measure

OF_READ = {"along_batch", "shorter_unread", "forward_at_start", "reverse_at_start", "zero_gradient"}
X = torch.randn(12, 30, 4, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([30, 12, 7, 30, 25, 16, 9, 5, 29, 11, 14, 8])
LABELS = torch.arange(12) % 3


def last(output, state):
    return output[:, -1]


def mean(output, state):
    return output.mean(1)


def every(output, state):
    return output


def ends(output, state):
    h = state[0] if isinstance(state, tuple) else state
    return torch.cat(list(h[-output.shape[-1] // h.shape[-1] :]), -1)


class Classifier(nn.Module):
    def __init__(self, read, kind=nn.LSTM, **options):
        super().__init__()
        self.read, self.rnn = read, kind(4, 8, **options)
        self.head = nn.Linear(8 * (2 if self.rnn.bidirectional else 1), 3)

    def forward(self, x, lengths=None):
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, state = self.rnn(x)
        if lengths is not None:
            output, _ = pad_packed_sequence(output, batch_first=True)
        return self.head(self.read(output, state))


def found(model, batch, **options):
    return {one.kind: one for one in findings(measure(model, batch, **options)) if one.kind in OF_READ}


@pytest.mark.parametrize("target", [None, LABELS])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_batch_given_as_time_is_named(target, layers):
    one = found(Classifier(last, num_layers=layers), X, target=target)
    assert set(one) == {"along_batch"} and "its 12 steps are the rows" in one["along_batch"].sentence
    assert not found(Classifier(last, num_layers=layers, batch_first=True), X, target=target)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 32, num_layers=2)

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


def test_of_a_batch_given_as_time_no_layer_s_gradient_is_judged():
    torch.manual_seed(0)
    made = findings(measure(Stack(), torch.randn(60, 30, 4)))
    assert [(one.kind, one.layer) for one in made] == [("along_batch", "rnn l0")]


class LastRow(nn.Module):
    """Made for (T, B, D), of a layer that takes (B, T, D)."""

    def __init__(self, **options):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 8, **options), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])


def test_time_given_as_the_batch_is_named():
    x = X.transpose(0, 1)
    one = found(LastRow(batch_first=True), x)
    assert set(one) == {"along_batch"} and "batch_first is True, its 12 steps are" in one["along_batch"].sentence
    assert "recurrent.batch_first = False" in one["along_batch"].remedy
    assert not found(LastRow(), x)


class TimeFirst(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.rnn, self.head, self.read = nn.GRU(4, 8), nn.Linear(8, 3), read

    def forward(self, x):
        return self.head(self.read(self.rnn(x.transpose(0, 1))[0]))


@pytest.mark.parametrize(
    "read",
    [
        lambda out: out[-1],
        lambda out: out,
        lambda out: out.transpose(0, 1),
        lambda out: out.mean(0),
        lambda out: out.flatten(0, 1),
        lambda out: out[-1].mean(0),
        lambda out: out.mean(1),
        lambda out: out.amax(1),
    ],
)
def test_time_first_is_no_fault(read):
    assert not found(TimeFirst(read), X)


@pytest.mark.parametrize("target", [None, LABELS])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, isornn.nn.LSTM])
def test_the_last_step_of_padded_outputs_is_named(target, kind):
    one = found(Classifier(last, kind, batch_first=True), (X, LENGTHS), target=target)
    assert set(one) == {"shorter_unread"} and "Of 10 of 12 sequences" in one["shorter_unread"].sentence
    for read in (mean, ends):
        assert not found(Classifier(read, kind, batch_first=True), (X, LENGTHS), target=target)


def test_sequences_that_end_before_what_is_read_are_no_fault():
    """Of a warm-up nothing is read, and of rows that fill a batch up."""
    longest = int(LENGTHS.max())

    def warmed_up(output, state):
        return output[(torch.arange(longest) >= longest - 3)[None] & (torch.arange(longest) < LENGTHS[:, None])]

    def real(output, state):
        return ends(output, state)[longest == LENGTHS]

    for read in (warmed_up, real):
        assert not found(Classifier(read, batch_first=True), (X, LENGTHS))


def test_sequences_without_a_label_are_no_fault():
    labels = torch.where(LENGTHS < 10, -100, LABELS)
    assert not found(Classifier(ends, batch_first=True), (X, LENGTHS), target=labels)


@pytest.mark.parametrize("target", [None, LABELS])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_reverse_direction_read_at_its_start_is_named(target, layers):
    options = {"num_layers": layers, "bidirectional": True, "batch_first": True}
    one = found(Classifier(last, **options), X, target=target)
    assert set(one) == {"reverse_at_start"} and one["reverse_at_start"].layer == "rnn l0"
    for read in (mean, ends):
        assert not found(Classifier(read, **options), X, target=target)
    assert not found(Classifier(every, **options), X)


@pytest.mark.parametrize("target", [None, LABELS])
def test_the_forward_direction_read_at_its_start_is_named(target):
    def start(output, state):
        return output[:, 0]

    for options in ({}, {"bidirectional": True}, {"num_layers": 2}):
        one = found(Classifier(start, batch_first=True, **options), X, target=target)
        assert set(one) == {"forward_at_start"} and "1 of 30" in str(one["forward_at_start"].evidence)
    assert not found(Classifier(start, batch_first=True), X[:, :1], target=target)


def unread(model, batch=X):
    return [one.layer for one in findings(measure(model, batch)) if one.kind == "unused"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_and_directions_that_nothing_reads_are_named(kind):
    """As with h_n[0], which is the lowest layer's state, and h_n[-1], which is the reverse direction's alone."""

    def state_of(number):
        return lambda output, state: (state[0] if isinstance(state, tuple) else state)[number]

    options = {"num_layers": 3, "batch_first": True}
    assert unread(Classifier(state_of(0), kind, **options)) == ["rnn l1", "rnn l2"]
    assert unread(Classifier(state_of(-1), kind, **options)) == []
    both = Classifier(state_of(-1), kind, bidirectional=True, **options)
    both.head = nn.Linear(8, 3)
    assert unread(both) == ["rnn l2"]
    for read in (last, mean, ends):
        assert unread(Classifier(read, kind, bidirectional=True, **options)) == []


class Weighed(nn.Module):
    """Parts of what a GRU returns, each times a factor."""

    def __init__(self, parts, factors, **options):
        super().__init__()
        self.parts, self.factors = parts, nn.Parameter(torch.tensor(factors))
        self.rnn, self.head = nn.GRU(4, 8, batch_first=True, **options), nn.Linear(8, 3)

    def forward(self, x):
        output, state = self.rnn(x)
        return self.head(sum(w * part for w, part in zip(self.factors, self.parts(output, state), strict=True)))


@pytest.mark.parametrize("target", [None, LABELS])
def test_what_a_factor_of_0_hides_at_first_is_not_unread(target):
    """Factors that begin with 0 have a gradient, and what is behind them has one from the first update on."""
    options, kinds = {"num_layers": 2, "bidirectional": True}, {"unused", "forward_at_start", "reverse_at_start"}

    def of(parts, factors, **options):
        return {one.kind for one in findings(measure(Weighed(parts, factors, **options), X, target=target))} & kinds

    assert not of(lambda output, state: state[-2:], [1.0, 0.0], **options)
    assert of(lambda output, state: state[-2:-1], [1.0], **options) == {"unused"}
    assert not of(lambda output, state: (output[:, 0], output.mean(1)), [1.0, 0.0])
    assert of(lambda output, state: (output[:, 0],), [1.0]) == {"forward_at_start"}


def test_an_initial_state_of_0_that_is_trained_hides_nothing():
    class Started(Classifier):
        def __init__(self):
            super().__init__(None, nn.GRU, num_layers=2, batch_first=True)
            self.start = nn.Parameter(torch.zeros(2, 1, 8))

        def forward(self, x, lengths=None):
            return self.head(self.rnn(x, self.start.expand(2, len(x), 8).contiguous())[1][0])

    assert unread(Started()) == ["rnn l1"]


def test_the_remedy_reads_all_steps_of_all_sequences():
    model = Classifier(last, batch_first=True, bidirectional=True)
    remedy = found(model, (X, LENGTHS))["shorter_unread"].remedy
    packed = pack_padded_sequence(X, LENGTHS, batch_first=True, enforce_sorted=False)
    names = {"recurrent": model.rnn, "x": packed}
    exec(remedy, names)
    torch.testing.assert_close(names["last"], ends(*((out := model.rnn(packed))[0].data, out[1])))


def test_an_output_without_a_gradient_is_not_judged():
    class Detached(Classifier):
        def forward(self, x, lengths=None):
            return super().forward(x, lengths).argmax(-1)

    assert not found(Detached(last, batch_first=True), (X, LENGTHS))


class Episodes(nn.Module):
    """A rollout whose states are reset where episodes end, and of which the last value is read."""

    def __init__(self):
        super().__init__()
        self.cell, self.value = nn.GRUCell(4, 8), nn.Linear(8, 1)

    def forward(self, x, done):
        h = x.new_zeros(len(x), 8)
        for time in range(x.shape[1]):
            h = self.cell(x[:, time], h * (1 - done[:, time]).unsqueeze(-1))
        return self.value(h)


def test_episodes_that_are_not_read_are_no_padding():
    done = torch.zeros(12, 30)
    done[torch.arange(12), 3 + torch.arange(12)] = 1.0
    assert not found(Episodes(), (X, done))


def beyond(output, state):
    return nn.functional.pad(output, (0, 0, 0, 5))[:, -1]


def dead(output, state):
    return (output[:, -1] - 2).relu()


def masked(output, state):
    return output[:, -1] * torch.zeros(12, 1)


@pytest.mark.parametrize("read", [beyond, dead, masked])
def test_a_gradient_that_is_exactly_0_is_named(read):
    one = found(Classifier(read, batch_first=True), (X, LENGTHS))
    assert set(one) == {"zero_gradient"} and "exactly 0, in 1 call" in one["zero_gradient"].sentence


def test_a_gradient_that_a_batch_or_the_first_update_alone_lacks_is_no_fault():
    head_of_zeros = Classifier(last, batch_first=True)
    nn.init.zeros_(head_of_zeros.head.weight)
    assert not found(head_of_zeros, X)
    satisfied = Classifier(last, batch_first=True)
    assert not found(satisfied, X, target=lambda output: (output - 100).relu().sum())
    returns_its_state = Classifier(dead, batch_first=True)
    returns_its_state.register_forward_hook(lambda module, given, output: (output, module.rnn(given[0])[1]))
    assert not found(returns_its_state, X)
