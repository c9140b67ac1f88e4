"""A start for a batch in models that call their layers in other ways than once on whole sequences."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import isornn
from isornn.cells import Input
from isornn.init import LayerStart, StandardisedInput, UnnormalisedInput, critical_
from start_batches import T, offset_batch, pre_activations, seeded


def test_padding_is_not_measured():
    x, lengths, lines = offset_batch(), torch.arange(20, 20 + 12), list[LayerStart]()
    inside = torch.cat([x[k, :length] for k, length in enumerate(lengths)]).double()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    critical_(nn.GRU(5, 3, batch_first=True), batch=packed, report=lines.append)
    own = isornn.nn.GRU(5, 3, batch_first=True)
    critical_(own, batch={"input": x, "lengths": lengths}, report=lines.append)
    for line in lines:
        assert line.length == 31
        torch.testing.assert_close(line.input.means, inside.mean(0), atol=1e-6, rtol=1e-6)
        assert line.input.variance == pytest.approx(float((inside - inside.mean(0)).square().mean()), rel=1e-6)


class Loop(nn.Module):
    """A cell that is stepped by hand, on its own output after the first half."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(5, 6), nn.Linear(6, 5)

    def forward(self, x, start):
        h = c = start
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t] if 2 * t < x.shape[1] else self.head(h), (h, c))
        return h


def test_cells_stepped_by_hand_and_tuples():
    lines, batch = list[LayerStart](), offset_batch()
    critical_(Loop(), batch=(batch, torch.zeros(12, 6)), report=lines.append)
    assert [line.length for line in lines] == [T]
    assert lines[0].input.means.shape == (5,)


def test_what_the_batch_does_not_reach():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.GRU(5, 4, batch_first=True), nn.GRU(3, 4)

        def forward(self, x):
            return self.used(x)[0]

    lines: list[LayerStart] = []
    with pytest.warns(StandardisedInput, match="unused: the batch does not reach it") as caught:
        critical_(Partly(), batch=offset_batch(), report=lines.append)
    assert caught[0].filename == __file__
    assert [(line.where, line.input is None, line.length) for line in lines] == [
        ("used (GRU) l0", False, T),
        ("unused (GRU) l0", True, T),
    ]
    unread = "unused: the batch does not reach it"
    assert str(lines[1]).endswith(f"set for {T} steps of standardised input; {unread}")


class Unreached(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused, self.head = nn.LSTM(5, 8), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize("length", [None, 50])
def test_a_batch_that_reaches_no_layer_is_refused_with_a_length_too(length):
    model = Unreached()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="batch: it reaches no recurrent layer .* unused: the batch does not reach it"):
        critical_(model, length, batch=offset_batch())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class TwoStates(nn.GRU):
    def forward(self, x):  # type: ignore[override]
        output = x.cumsum(0).repeat(1, 1, 3)[..., : self.hidden_size]
        return output, (output[-1:], output[-1:])


class Below(nn.Module):
    def __init__(self):
        super().__init__()
        self.unreadable, self.above = TwoStates(3, 8), nn.GRU(8, 8)

    def forward(self, x):
        return self.above(self.unreadable(x)[0])[0]


def test_a_first_layer_whose_calls_cannot_be_read_has_the_length_of_those_above():
    starts = list[LayerStart]()
    with pytest.warns(StandardisedInput, match="unreadable: its input is not known: it returns 2 states"):
        critical_(Below(), batch=torch.randn(40, 4, 3), report=starts.append)
    assert [(start.length, start.input is None) for start in starts] == [(40, True), (40, False)]
    assert "; unreadable: its input is not known: it returns 2 states" in str(starts[0]) and starts[1].unread is None


class Normalised(nn.Module):
    """A recurrent layer behind a batch normalisation that has seen nothing yet."""

    def __init__(self):
        super().__init__()
        self.norm, self.rnn = nn.BatchNorm1d(5), nn.GRU(5, 400, batch_first=True)

    def forward(self, x):
        return self.rnn(self.norm(x.mT).mT)[0]


def test_what_comes_behind_a_fresh_batch_norm_is_what_comes_in_training():
    model, batch = Normalised(), 20 + offset_batch(batch=40)
    before = {name: value.clone() for name, value in model.named_buffers()}
    critical_(model, 40, batch=batch, generator=seeded())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert not model.norm._forward_pre_hooks
    x = model.norm.train()(batch.mT).mT.detach().double()
    candidate = pre_activations(model.rnn.weight_ih_l0, model.rnn.bias_ih_l0, model.rnn.bias_hh_l0, x, 2, 3)
    assert candidate.mean((0, 1)).abs().max() < 0.1
    assert candidate.var((0, 1)).mean() == pytest.approx(4, rel=0.2)
    model = Normalised()
    model(batch)  # its statistics are of data now, and are used
    for _ in range(100):
        model(batch)
    known = list[LayerStart]()
    with pytest.warns(UnnormalisedInput, match="means of"):
        critical_(model, 40, batch=2 * batch, report=known.append)
    assert known[0].input.variance == pytest.approx(4, rel=0.1)


def test_a_batch_norm_of_one_row_uses_what_it_has():
    model = nn.Sequential(nn.BatchNorm1d(5), nn.GRU(5, 4))  # one step of one sequence
    critical_(model, 40, batch=torch.ones(1, 5), generator=seeded())


class Altered(nn.Module):
    """A loop over time in which the model changes the state between two calls."""

    def __init__(self, how):
        super().__init__()
        self.how, self.cell, self.norm = how, nn.GRUCell(5, 6), nn.LayerNorm(6)
        self.register_buffer("ends", torch.arange(1, 13) * 5)

    def forward(self, x):
        h = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            if self.how == "masked":
                h = torch.where((t < self.ends)[:, None], self.cell(x[:, t], h), h)
            elif self.how == "shrinking":
                n = int((self.ends.flip(0) > t).sum())
                h = self.cell(x[:n, t], h[:n])
            elif self.how == "reset":
                h = self.cell(x[:, t], h) * ((t + torch.arange(len(x))) % 17 > 0)[:, None]
            elif self.how == "normalised":
                h = self.norm(self.cell(x[:, t], h))
            else:
                h = 0.9 * self.cell(x[:, t], h) + 0.1 * h
        return h


@pytest.mark.parametrize("how", ["masked", "shrinking", "reset", "normalised", "zoned out"])
def test_loops_that_change_the_state_are_one_sequence(how):
    lines = list[LayerStart]()
    critical_(Altered(how), batch=offset_batch(), report=lines.append)
    assert [line.length for line in lines] == [T]


class Masked(nn.Module):
    """A loop that keeps the state of sequences that have ended."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x, lengths):
        state = (x.new_zeros(len(x), 6),) * (2 if isinstance(self.cell, nn.LSTMCell) else 1)
        for t in range(x.shape[1]):
            new = self.cell(x[:, t], state if len(state) == 2 else state[0])
            new = new if len(state) == 2 else (new,)
            state = tuple(torch.where((t < lengths)[:, None], a, b) for a, b in zip(new, state, strict=True))
        return state[0]


@pytest.mark.parametrize("padding", [0.0, 1000.0, float("nan")])
@pytest.mark.parametrize("longest", [T, T - 2])  # one sequence is masked in the last step alone, or all end before
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_steps_that_a_loop_masks_are_not_measured(kind, longest, padding):
    x, lengths, lines = offset_batch(), torch.arange(1, 13) * 5, list[LayerStart]()
    lengths[-2:] = torch.tensor([T - 1, T])
    lengths = lengths.clamp(max=longest)
    inside = torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)]).double()
    for row, length in zip(x, lengths, strict=True):
        row[length:] = padding
    critical_(Masked(kind(5, 6)), batch=(x, lengths), report=lines.append)
    assert lines[0].length == longest
    torch.testing.assert_close(lines[0].input.means, inside.mean(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(lines[0].input.deviations, inside.std(0, correction=0), atol=1e-6, rtol=1e-6)


def test_states_that_stay_the_same_by_themselves_are_measured():
    """A sequence of equal inputs ends in a fixed point; the next state is its own, as any other."""
    x, lines = 1 + offset_batch(), list[LayerStart]()
    x[0] = 0.3
    x, cell = x.repeat(1, 5, 1), nn.RNNCell(5, 6)
    nn.init.zeros_(cell.weight_hh)
    critical_(Masked(cell), batch=(x, torch.full((12,), 5 * T)), report=lines.append)
    torch.testing.assert_close(lines[0].input.means, x.double().mean((0, 1)))


class Averaged(nn.Module):
    """At each step the mean of the states that two inputs give, both from one state."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(5, 6)

    def forward(self, x):
        h = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            h = (self.cell(x[:, t], h) + self.cell(3 - x[:, t], h)) / 2
        return h


def test_several_steps_from_one_state_are_all_measured():
    lines, batch = list[LayerStart](), offset_batch()
    critical_(Averaged(), T, batch=batch, report=lines.append)
    torch.testing.assert_close(lines[0].input.means, torch.full((5,), 1.5).double())


class Turns(nn.Module):
    """One cell for all sequences by turns, step by step, or for one after the other from a state of its own."""

    def __init__(self, interleaved):
        super().__init__()
        self.interleaved, self.cell, self.start = interleaved, nn.GRUCell(5, 6), nn.Linear(5, 6)

    def forward(self, x):
        states = [self.start(sequence[:1]) for sequence in x]
        places = [(t, b) for t in range(x.shape[1]) for b in range(len(x))]
        for t, b in places if self.interleaved else sorted(places, key=lambda place: place[1]):
            states[b] = self.cell(x[b, t : t + 1], states[b])
        return torch.cat(states)


@pytest.mark.parametrize("interleaved", [True, False])
def test_sequences_by_turns_are_sequences_of_their_own(interleaved):
    lines, batch = list[LayerStart](), offset_batch()
    critical_(Turns(interleaved), batch=batch, report=lines.append)
    assert [line.length for line in lines] == [T]
    torch.testing.assert_close(lines[0].input.means, batch.double().mean((0, 1)))


def test_all_sequences_of_a_module_are_measured():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 4, batch_first=True)

        def forward(self, x):
            return self.rnn(x)[0], self.rnn(10 * x[:, :20] + 50)[0]

    lines, batch = list[LayerStart](), offset_batch()
    critical_(Twice(), batch=batch, report=lines.append)
    rows = torch.cat([batch.double().flatten(0, 1), 10 * batch[:, :20].double().flatten(0, 1) + 50])
    assert lines[0].length == T
    torch.testing.assert_close(lines[0].input.means, rows.mean(0), rtol=1e-6, atol=1e-6)
    assert lines[0].input.variance == pytest.approx(float(rows.var(0, correction=0).mean()), rel=1e-6)


class Standardising(nn.GRU):
    """Its weights do not receive what it is called with."""

    def forward(self, x, hx=None):
        return super().forward((x - x.mean()) / x.std(), hx)


class StandardisingByItself(nn.GRU):
    """The same without its class's forward, so that nothing shows what its weights receive."""

    def forward(self, x):  # type: ignore[override]
        directions = 1 + self.bidirectional
        hx = x.new_zeros(directions * self.num_layers, x.shape[1], self.hidden_size)
        options = True, self.num_layers, 0.0, False, self.bidirectional, False
        return torch.gru((x - x.mean()) / x.std(), hx, list(self._flat_weights), *options)


class Packing(nn.GRU):
    """A forward of its own that leaves the input as it is."""

    def forward(self, x, hx=None):
        return super().forward(x + 0.0, hx)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_a_forward_that_changes_the_input_warns(options):
    batch = 300 + 1000 * torch.randn(60, 8, 3)
    with pytest.warns(UserWarning, match="0: its forward is its own, and does not return what its weights make"):
        critical_(nn.Sequential(StandardisingByItself(3, 16, **options)), batch=batch)
    critical_(nn.Sequential(Packing(3, 16, **options)), batch=batch)
    starts = list[LayerStart]()
    critical_(nn.Sequential(Standardising(3, 16, **options)), batch=batch, report=starts.append)
    assert starts[0].input.variance == pytest.approx(1, rel=0.01)


class Forecaster(nn.Module):
    """An encoder and a decoder that reads the targets in training, and what it forecast itself else."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(1, 8, batch_first=True), nn.GRUCell(1, 8)
        self.head, self.dropout = nn.Linear(8, 1), nn.Dropout()
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, x, y):
        h, out = self.encoder(self.dropout(x))[1][0], []
        step = x[:, -1]
        for t in range(y.shape[1]):
            h = self.decoder(step, h)
            out.append(self.head(h))
            step = y[:, t] if self.training else out[-1]
        return torch.stack(out, 1)


def test_a_decoder_that_reads_targets_in_training_warns():
    x, y = torch.randn(16, 20, 1), torch.randn(16, 10, 1)
    model, starts = Forecaster(), list[LayerStart]()
    with pytest.warns(UserWarning, match=r"decoder: it is set for its input in eval mode, .*model\.train") as caught:
        critical_(model, batch=(x, y))
    assert len(caught) == 1 and model.training and model.dropout.training
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(model, batch=lambda model: model.train()(x, y), report=starts.append)
    assert starts[1].input.variance == pytest.approx(1, rel=0.3)
    with pytest.warns(UserWarning, match="decoder: it is set for its input in eval mode"):
        isornn.diagnosis.redraw_(model, "decoder", 10, (x, y))


class Generator(nn.Module):
    """An encoder and a decoder that reads targets in training, and five steps of its own else."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder, self.head = nn.GRU(4, 16), nn.GRU(4, 16), nn.Linear(16, 4)

    def forward(self, x, y):
        h, step = self.encoder(x)[1], x[-1:]
        if self.training:
            return self.decoder(y, h)[0]
        for _ in range(5):
            _, h = self.decoder(step, h)
        return h


def test_a_decoder_that_has_more_steps_in_training_warns():
    x, y = torch.randn(30, 8, 4, generator=seeded()), torch.randn(100, 8, 4, generator=seeded(1))
    with pytest.warns(UserWarning, match=r"decoder: it is set for its 5 steps in eval mode; .* these are 100\. If"):
        critical_(Generator(), batch=(x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        critical_(Generator(), 50, batch=(x, y))
        critical_(Generator(), batch=(x, y[:8]))
        with pytest.raises(UserWarning, match="decoder: it is set for its 5 steps"):
            critical_(Generator(), batch=(x, y))


def test_sequences_of_one_step_need_a_length():
    model, batch = nn.Sequential(nn.Linear(4, 3), nn.LSTM(3, 16)), torch.randn(1, 64, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="batch: 1 is given sequences of one step; give length="):
        critical_(model, batch=batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    critical_(model, 20, batch=batch)


def test_a_hook_that_waits_for_the_first_training_step_is_not_called():
    torch.manual_seed(0)
    model, calls = Loop(), list[bool]()

    def once(module: nn.Module, *_: object) -> None:
        calls.append(module.training)
        handle.remove()

    handle = model.register_forward_hook(once)
    critical_(model, batch=(offset_batch(), torch.zeros(12, 6)))
    assert calls and not any(calls) and handle.id in model._forward_hooks


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("batch", [None, torch.randn(4, T, 5)])
def test_what_cannot_be_set_is_named_beside_what_is(batch):
    model = torch.ao.quantization.quantize_dynamic(nn.ModuleDict({"q": nn.LSTM(5, 8), "g": nn.GRU(5, 8)}), {nn.LSTM})
    model.forward = lambda x: model["g"](x)[0]
    with pytest.warns(UserWarning, match="q: left as it was; it is quantised") as warned:
        critical_(model, T, batch=batch, input=None if batch is not None else Input())
    assert len([one for one in warned if "left as it was" in str(one.message)]) == 1
