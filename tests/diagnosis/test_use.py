"""What a model does with its recurrent layers: results that nothing uses, states kept, dropped and cut off."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import isornn
import known_models
from isornn.capture.batches import tensors_in
from isornn.diagnosis import Monitor, findings, measure


def kinds(model, batch, **options):
    return {finding.kind for finding in findings(measure(model, batch, **options))}


OF_USE = {"unused", "not_reached", "state_carried", "state_not_carried", "not_detached", "truncated"}


class Net(nn.Module):
    """A critical LSTM, and a forward of the test's own."""

    def __init__(self, forward, kind=nn.LSTM, **options):
        super().__init__()
        self.rnn, self.head = kind(3, 16, **options), nn.Linear(16, 2)
        isornn.init.critical_(self.rnn, 60)
        self.own = forward

    def forward(self, *x):
        return self.own(self, *x)


X = torch.randn(60, 4, 3, generator=torch.Generator().manual_seed(0))


def chained(net, x):
    state = None
    outputs = []
    for part in x.chunk(4):
        out, state = net.rnn(part, state)
        outputs.append(out)
    return net.head(torch.cat(outputs)[-1])


def by_hand(net, x):
    h = None
    for row in x:
        h = net.rnn(row, h)
    return net.head(h[0])


def two_texts(net, x):
    return net.head(net.rnn(x[:30])[0][-1] + net.rnn(x[30:])[0][-1])


def keeps_for_a_look(net, x):
    out, net.seen = net.rnn(x)
    return net.head(out[-1])


def learned_start(net, x):
    if not hasattr(net, "h0"):
        net.h0 = nn.Parameter(torch.randn(1, 1, 16))
    h = net.h0.expand(1, 4, 16).contiguous()
    return net.head(net.rnn(x, (h, torch.zeros_like(h)))[0][-1])


def encoder_state(net, x):
    """A decoder goes on from its own encoder's state."""
    _, state = net.rnn(x[:40])
    return net.head(net.rnn(x[40:], state)[0][-1])


def to_numpy(net, x):
    return net.head(net.rnn(x)[0][-1]).numpy()


def without_gradients(net, x):
    with torch.no_grad():
        out = net.rnn(x)[0]
    return net.head(out[-1])


def frozen(net, x):
    return net.head(net.rnn(x)[0][-1].detach())


@pytest.mark.parametrize(
    ("forward", "kind"),
    [
        *((forward, nn.LSTM) for forward in (chained, two_texts, keeps_for_a_look, learned_start, encoder_state)),
        *((forward, nn.LSTM) for forward in (to_numpy, without_gradients, frozen)),
        (by_hand, nn.LSTMCell),
    ],
)
def test_usual_ways_are_not_called(forward, kind):
    torch.manual_seed(0)
    net = Net(forward, kind)
    net.rnn.requires_grad_(forward is not frozen)
    assert not kinds(net, X) & OF_USE


def test_a_frozen_copy_that_the_run_does_not_call_is_no_finding():
    """As the target network of Q-learning, which the loss calls and no update trains."""
    torch.manual_seed(0)
    net = Net(keeps_for_a_look)
    target = net.target = copy.deepcopy(net.rnn).requires_grad_(False)
    measured = measure(net, X, theory=False)
    assert [(one.module, one.called, one.trained) for one in measured.unmeasured] == [("target", False, False)]
    assert "not_reached" not in {finding.kind for finding in findings(measured)}
    target.requires_grad_(True)
    assert "not_reached" in kinds(net, X)


def test_sentences_of_a_text_are_not_called():
    torch.manual_seed(0)
    words = torch.randn(6, 10, 4, 3)

    def forward(net, words):
        return net.head(torch.stack([net.rnn(words[s])[1][0][0] for s in range(6)]).mean(0))

    assert not kinds(Net(forward), words, length=10) & OF_USE


@pytest.mark.parametrize(("axis", "called"), [(0, set()), (1, {"state_not_carried"})])
def test_pieces_of_a_batch_are_not_called_and_those_of_sequences_are(axis, called):
    torch.manual_seed(0)

    def pieces(net, x):
        return net.head(torch.cat([net.rnn(part)[0][:, -1] for part in x.chunk(4, axis)]))

    assert kinds(Net(pieces, batch_first=True), X.transpose(0, 1).contiguous().repeat(2, 1, 1)) & OF_USE == called


@pytest.mark.parametrize(
    ("states", "called"),
    [
        (None, {"state_not_carried"}),
        (lambda x: [x.new_zeros(4, 16)] * 5, {"state_not_carried"}),  # which the loop should have replaced
        (lambda x: x.new_zeros(5, 4, 16).unbind(0), set()),  # of five agents, at their first step
    ],
)
def test_steps_of_one_tensor_from_state_0_are_one_sequence_and_agents_are_not(states, called):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 16)

        def forward(self, x):
            given = [None] * len(x) if states is None else states(x)
            return torch.stack([self.cell(x_t, h) for x_t, h in zip(x, given, strict=True)])

    assert kinds(Steps(), torch.randn(5, 4, 3)) & OF_USE == called


@pytest.mark.parametrize(("exchanged", "called"), [(True, True), (False, False)])
def test_states_that_are_exchanged_at_each_step(exchanged, called):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTMCell(3, 16), nn.Linear(16, 2)

        def forward(self, x):
            h = c = x.new_zeros(x.shape[1], 16)
            for x_t in x:
                h, c = self.cell(x_t, (h, c))[:: -1 if exchanged else 1]
            return self.head(h)

    found = {one.kind: one for one in findings(measure(Steps(), X))}
    assert ("states_exchanged" in found) == called
    if called:
        assert "59 calls of 60" in found["states_exchanged"].sentence
        assert "cannot_tell" not in found


@pytest.mark.parametrize("exchanged", [True, False])
def test_states_that_are_exchanged_between_an_encoder_and_a_decoder(exchanged):
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder, self.head = nn.LSTM(3, 16), nn.LSTM(3, 16), nn.Linear(16, 2)

        def forward(self, x):
            state = self.encoder(x)[1]
            return self.head(self.decoder(x, state[::-1] if exchanged else state)[0])

    found = [one.layer for one in findings(measure(Translator(), X)) if one.kind == "states_exchanged"]
    assert found == (["decoder l0"] if exchanged else [])


def test_leaves_of_a_tree_are_no_sequence():
    class Leaves(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTMCell(3, 16)

        def forward(self, leaves):
            return torch.stack([self.cell(leaf)[0] for leaf in leaves]).sum(0)

    assert not kinds(Leaves(), [[torch.randn(1, 3) for _ in range(5)]]) & OF_USE


def test_a_layer_is_used_where_the_output_is_a_gradient():
    """As forces are, of an energy that a recurrent layer computes."""

    def force(net, x):
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(net.head(net.rnn(x)[0][-1]).sum(), x, create_graph=True)[0]

    assert "unused" not in kinds(Net(force), X)
    isornn.init.critical_(Net(force), batch=X)


def test_a_state_that_the_caller_passes_is_not_carried():
    net = Net(lambda net, x, h, c: net.head(net.rnn(x, (h, c))[0][-1]))
    state = tuple(torch.randn(1, 4, 16) for _ in range(2))
    assert not kinds(net, (X, *state)) & OF_USE


def test_the_loss_decides_where_there_is_one():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.GRU(3, 8), nn.GRU(3, 8)

        def forward(self, x):
            return self.a(x)[0], self.b(x)[0]

    torch.manual_seed(0)
    model = Two()
    assert not kinds(model, X) & OF_USE
    (found,) = (f for f in findings(measure(model, X, target=lambda out: out[0].square().sum())) if f.kind in OF_USE)
    assert (found.kind, found.layer) == ("unused", "b l0") and "from the loss" in found.sentence


def test_a_head_that_begins_with_weights_of_zero_uses_its_layer():
    """Only the first update has no gradient; the graph leads to the layer."""

    def doubled(net, x):
        return net.head(net.rnn(x)[0][-1]) * 2

    model = Net(doubled)
    for parameter in model.head.parameters():
        nn.init.zeros_(parameter)
    assert not kinds(model, X, target=lambda out: (out - 1).square().sum()) & OF_USE


def test_the_remedy_of_a_state_that_is_not_detached_fits_states_of_one_tensor_and_of_two():
    for kind in (nn.GRU, nn.LSTM):

        def kept(net, x):
            out, net.state = net.rnn(x, net.state)
            return net.head(out[-1])

        model = Net(kept, kind)
        model.state = None
        (found,) = (f for f in findings(measure(model, X)) if f.kind == "not_detached")
        before = model(X)
        exec(found.remedy, {"self": model})
        assert not any(part.requires_grad for part in tensors_in(model.state))
        assert model(X).shape == before.shape


def test_a_state_detached_at_every_step_is_to_be_detached_after_more():
    model = Net(lambda net, x: net.head(stepped(net, x)))
    (found,) = (f for f in findings(measure(model, X)) if f.kind == "truncated")
    *_, last = found.remedy.splitlines()
    assert "not after 1 step" in found.remedy and "critical_" not in found.remedy
    assert int(last.removeprefix("steps_between_detaches = ")) > 1


def stepped(net, x):
    h = torch.zeros(1, 4, 16), torch.zeros(1, 4, 16)
    for row in x:
        out, h = net.rnn(row[None], tuple(part.detach() for part in h))
    return out[0]


@pytest.mark.parametrize("made", [known_models.kept_state, known_models.kept_graph], ids=lambda made: made.__name__)
def test_a_run_for_the_state_leaves_no_trace(made):
    model = made().model
    batch = made().batch
    measure(model, batch)
    assert vars(model)["state"] is None
    model(batch)
    before = [part.clone() for part in model.state]
    measure(model, batch)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state, strict=True))


def test_a_library_in_the_output_is_not_searched():
    found = tensors_in({"y": torch.ones(1), "library": torch, "kind": nn.GRU})
    assert [tensor.tolist() for tensor in found] == [[1.0]]


def test_windows_longer_than_the_memory_are_long_enough():
    def windows(net, x):
        state = None
        for part in x.chunk(4):
            out, state = net.rnn(part, state)
            state = tuple(part.detach() for part in state)
        return net.head(out[-1])

    torch.manual_seed(0)
    net = Net(windows)
    layer = measure(net, X).layers[0]
    assert layer.use.windows == (15, 15, 15, 15)
    assert "truncated" in kinds(net, X)
    net.rnn.reset_parameters()  # which sees a step or two
    assert "truncated" not in kinds(net, X)


def trained(forward, kind=nn.LSTM, updates=3, **options):
    """Sentences that a monitor has after some updates."""
    torch.manual_seed(0)
    net = Net(forward, kind, **options)
    optimiser = torch.optim.SGD(net.parameters(), 1e-3)
    with Monitor(net, every=1) as monitor:
        for _ in range(updates):
            optimiser.zero_grad()
            net(X).square().sum().backward(retain_graph=True)
            optimiser.step()
            monitor.step()
    return monitor.record.findings


def kept(detached):
    def forward(net, x):
        out, state = net.rnn(x, getattr(net, "state", None))
        net.state = tuple(part.detach() for part in state) if detached else tuple(2 * part for part in state)
        return net.head(out[-1])

    return forward


def test_a_monitor_sees_a_state_that_is_not_detached():
    def forward(net, x):
        out, state = net.rnn(x, getattr(net, "state", None))
        net.state = tuple(part.clone() for part in state)
        return net.head(out[-1])

    torch.manual_seed(0)
    net = Net(forward)
    with Monitor(net, every=1) as monitor:
        for _ in range(2):
            net(X).square().sum().backward(retain_graph=True)
            monitor.step()
    assert any("rnn l0: It is given a state whose graph is older" in line for line in monitor.record.findings)


def test_a_monitor_sees_truncated_windows():
    (line,) = trained(kept(detached=True))
    assert line.startswith("rnn l0: It is given a state without a gradient. If that continues an earlier batch: ")
    assert "Backpropagation is truncated to 60 steps, shorter than the memory: " in line


def test_a_monitor_sees_windows_within_an_update():
    def windows(net, x):
        state, outputs = None, []
        for part in x.chunk(4):
            out, state = net.rnn(part, state)
            state = tuple(part.detach() for part in state)
            outputs.append(out)
        return net.head(torch.cat(outputs).mean(0))

    (line,) = trained(windows)
    assert line.startswith("rnn l0: Backpropagation is truncated to 15 steps, shorter than the memory: ")


@pytest.mark.parametrize("forward", [chained, learned_start, encoder_state, keeps_for_a_look])
def test_a_monitor_finds_nothing_in_usual_ways(forward):
    assert trained(forward) == ()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.linear, self.rnn, self.reentrant = nn.Linear(3, 3), nn.LSTM(3, 5), reentrant

    def forward(self, x):
        return checkpoint(lambda x: self.rnn(x)[0][-1], self.linear(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("target", [None, torch.zeros(2, 5)])
def test_what_is_checkpointed_is_used(reentrant, target):
    found = findings(measure(Checkpointed(reentrant), torch.randn(9, 2, 3), target=target, theory=False))
    assert "unused" not in {one.kind for one in found}


class Holding(nn.Module):
    """Keeps a GRU's state in an attribute or buffer of some name."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.out, self.kind, self.hidden = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 1), kind, None
        self.register_buffer("memory", torch.zeros(1, 6, 8))

    def forward(self, x):
        out, state = self.rnn(x, self.memory if self.kind == "memory" else self.hidden)
        if self.kind == "memory":
            self.memory.copy_(state.detach())
        else:
            self.hidden = state.detach()
        return self.out(out[:, -1])


class Outer(nn.Module):
    """Holds it one module further in."""

    def __init__(self, kind):
        super().__init__()
        self.inner = Holding(kind)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("kind", ["hidden", "memory"])
@pytest.mark.parametrize(("made", "place"), [(Holding, ""), (Outer, "inner.")])
def test_the_attribute_that_holds_a_state_is_named(kind, made, place):
    torch.manual_seed(0)
    found = {one.kind: one for one in findings(measure(made(kind), torch.randn(6, 30, 4), theory=False))}
    assert found["state_carried"].remedy.splitlines()[-1] == f"model.{place}{kind} = None"


def row_by_row(net, x):
    return torch.cat([net.head(net.rnn(x[k : k + 1])[0][:, -1]) for k in range(len(x))])


def split_rows(net, x):
    return torch.cat([net.head(net.rnn(row)[0][:, -1]) for row in x.split(1)])


def rows_of_an_embedding(net, x):
    return torch.stack([net.head(net.rnn(row.unsqueeze(0))[0][0, -1]) for row in 2 * x])


@pytest.mark.parametrize("forward", [row_by_row, split_rows, rows_of_an_embedding])
def test_rows_of_a_batch_are_no_parts_of_a_sequence(forward):
    assert not kinds(Net(forward, batch_first=True), X.transpose(0, 1).contiguous()) & OF_USE


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.RNNCell])
def test_a_state_of_zeros_that_is_passed_on_is_carried(kind):
    net = Net(by_hand, kind)
    for parameter in net.rnn.parameters():
        parameter.data.zero_()
    assert "state_not_carried" not in kinds(net, X)


def test_a_module_within_vmap_is_named():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.cell = nn.GRU(3, 8), isornn.nn.GRU(3, 8)

        def forward(self, x):
            many = torch.func.vmap(lambda one: self.cell(one)[0])(torch.stack([x, 2 * x]))
            return self.rnn(x)[0] + many.sum(0)

    diagnosis = measure(Ensemble(), X)
    assert [layer.info.name for layer in diagnosis.layers] == ["rnn l0"]
    assert [(one.module, "within torch.func" in one.reason) for one in diagnosis.unmeasured] == [("cell", True)]
    with pytest.warns(UserWarning, match=r"cell: its input is not known: it is called within torch\.func"):
        isornn.init.critical_(Ensemble(), batch=X)


def test_a_redrawn_module_that_shares_its_weights_warns():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.GRU(8, 8), nn.GRU(8, 8)
            for name, parameter in self.a.named_parameters():
                setattr(self.b, name, parameter)

        def forward(self, x):
            return self.b(self.a(x)[0])[0]

    with pytest.warns(UserWarning, match="b: it shares parameters with a"):
        isornn.diagnosis.redraw_(Tied(), "b l0", 60, torch.randn(60, 4, 8))
