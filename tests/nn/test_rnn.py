"""The layer as torch.nn's: depth, directions, packed and padded sequences, state dicts, precision, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from isornn import analyze, init, nn
from isornn.cells import GRU, LSTM, Cell, Gate, OptionError, Peephole, Reads, Spec, Values, Vanilla
from isornn.nn.options import Features
from isornn.nn.untied import ShuffledUnits, shuffled_matrices
from small_layers import KINDS, B, D, Made, N, every_kind, flat, made, seeded, sequence, started

PEERS: list[tuple[Made, Any, dict[str, int]]]
PEERS = [(nn.LSTM, torch.nn.LSTM, {}), (nn.GRU, torch.nn.GRU, {}), (nn.VanillaRNN, torch.nn.RNN, {})]
PEERS += [(nn.LSTM, torch.nn.LSTM, {"proj_size": 2})]
with_peer = pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    PEERS,
    ids=lambda value: getattr(value, "__name__", None) or "-".join(value) or "plain",
)
# torch says at each call of an LSTM with projections that oneDNN does not know it
quiet = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


@quiet
@with_peer
@pytest.mark.parametrize("depth", [{}, {"num_layers": 3, "bidirectional": True, "batch_first": True}, {"bias": False}])
def test_torchs_layer_with_the_same_state_dict(ours: Made, theirs: Any, options: dict, depth: dict) -> None:
    mine, peer = ours(D, N, **options, **depth), theirs(D, N, **options, **depth)
    for first, second in ((mine, peer), (peer, mine)):
        for parameter in first.parameters():
            torch.nn.init.normal_(parameter, std=0.4)  # larger weights are chaotic: rounding grows from step to step
        second.load_state_dict(first.state_dict())
        x, state = sequence(7, B, D, dtype=torch.float32), started(mine)
        x = x.transpose(0, 1) if mine.batch_first else x
        results = []
        for layer in (mine, peer):
            layer.zero_grad()
            leaf = x.clone().requires_grad_()
            out, last = layer(leaf, state)
            values = (out, *flat(last))
            sum(((k + 1) * value.square().sum() for k, value in enumerate(values)), torch.zeros(())).backward()
            gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
            results.append((values, gradients | {"x": leaf.grad}))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-6)
        for name, gradient in results[1][1].items():
            scale = float(gradient.abs().max())
            torch.testing.assert_close(results[0][1][name], gradient, rtol=0, atol=1e-5 * max(scale, 1.0))


@with_peer
def test_equal_seeds_give_torchs_own_start(ours: Made, theirs: Any, options: dict) -> None:
    torch.manual_seed(3)
    mine = ours(D, N, 2, bidirectional=True, **options)
    torch.manual_seed(3)
    peer = theirs(D, N, 2, bidirectional=True, **options)
    torch.testing.assert_close(mine.state_dict(), peer.state_dict(), rtol=0, atol=0)


@quiet
@with_peer
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences_as_torchs(ours: type[nn.RNN], theirs: Any, options: dict, enforce_sorted: bool) -> None:
    mine, peer = made(ours, num_layers=2, bidirectional=True, **options), None
    peer = theirs(D, N, 2, bidirectional=True, dtype=torch.float64, **options)
    peer.load_state_dict(mine.state_dict())
    lengths = [7, 4, 1] if enforce_sorted else [4, 7, 4]
    packed = pack_padded_sequence(sequence(7, B, D), torch.tensor(lengths), enforce_sorted=enforce_sorted)
    state = started(mine)
    (out, last), (expected, expected_last) = mine(packed, state), peer(packed, state)
    assert isinstance(out, PackedSequence)
    torch.testing.assert_close(tuple(out), tuple(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(flat(last), flat(expected_last), rtol=0, atol=1e-12)


@every_kind
@pytest.mark.parametrize("depth", [{}, {"num_layers": 2, "bidirectional": True}])
def test_lengths_are_each_sequence_alone_and_padding_never_leaks(kind: type[nn.RNN], depth: dict) -> None:
    layer = made(kind, **depth)
    x, state, lengths = sequence(6, B, D), started(layer), [6, 1, 3]
    poisoned = x.clone()
    for b, length in enumerate(lengths):
        poisoned[length:, b] = torch.nan
    poisoned.requires_grad_()
    out, last = layer(poisoned, state, lengths=lengths)
    for b, length in enumerate(lengths):
        own = tuple(value[:, b] for value in flat(state))
        alone, alone_last = layer(x[:length, b], own if len(own) > 1 else own[0])
        torch.testing.assert_close(out[:length, b], alone, rtol=0, atol=1e-12)
        assert bool((out[length:, b] == 0).all())
        torch.testing.assert_close(tuple(v[:, b] for v in flat(last)), flat(alone_last), rtol=0, atol=1e-12)
    (out.sum() + sum(value.sum() for value in flat(last))).backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())
    assert bool(poisoned.grad.isfinite().all())
    assert bool((poisoned.grad[1:, 1] == 0).all())
    packed_out, packed_last = layer(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False), state)
    torch.testing.assert_close(pad_packed_sequence(packed_out)[0], out)
    torch.testing.assert_close(packed_last, last)


@every_kind
def test_a_sequence_without_steps_keeps_its_state(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    state = started(layer)
    out, last = layer(sequence(4, B, D), state, lengths=torch.tensor([0, 4, 0]))
    assert bool((out[:, 0] == 0).all())
    for first, end in zip(flat(state), flat(last), strict=True):
        torch.testing.assert_close(end[:, ::2], first[:, ::2], rtol=0, atol=0)


@every_kind
def test_the_other_direction_reads_backwards(kind: type[nn.RNN]) -> None:
    both, one = made(kind, bidirectional=True), made(kind)
    with torch.no_grad():
        for name, parameter in one.named_parameters():
            parameter.copy_(getattr(both, name + "_reverse"))
    x = sequence(5, B, D)
    out, last = both(x)
    alone, alone_last = one(x.flip(0))
    torch.testing.assert_close(out[..., N:], alone.flip(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(tuple(v[1:] for v in flat(last)), flat(alone_last), rtol=0, atol=1e-12)


@every_kind
def test_layers_are_stacked(kind: Made) -> None:
    deep = made(kind, num_layers=2)
    torch.manual_seed(0)
    parts = [made(kind), kind(N, N, dtype=torch.float64)]
    with torch.no_grad():
        for k, part in enumerate(parts):
            for name, parameter in part.named_parameters():
                parameter.copy_(getattr(deep, name.replace("_l0", f"_l{k}")))
    x = sequence(5, B, D)
    first, _ = parts[0](x)
    torch.testing.assert_close(deep(x)[0], parts[1](first)[0], rtol=0, atol=1e-12)


@every_kind
def test_dropout_acts_between_layers_in_training_alone(kind: type[nn.RNN]) -> None:
    layer, x = made(kind, num_layers=2, dropout=0.5), sequence(5, B, D)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    torch.testing.assert_close(layer(x)[0], made(kind, num_layers=2)(x)[0], rtol=0, atol=0)


def test_dropout_of_one_layer_warns_as_torchs() -> None:
    with pytest.warns(UserWarning, match="between layers"):
        nn.LSTM(D, N, dropout=0.5)


@every_kind
@pytest.mark.parametrize("shape", [(1, 1), (1, B), (7, 1)])
def test_first_and_second_derivatives(kind: type[nn.RNN], shape: tuple[int, int]) -> None:
    layer = made(kind)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    states = tuple(value.requires_grad_() for value in flat(started(layer, shape[1])))

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given, weights = rest[: len(states)], dict(zip(names, rest[len(states) :], strict=True))
        out, last = torch.func.functional_call(layer, weights, (x, given if len(given) > 1 else given[0]))
        return (out, *flat(last))

    inputs = (sequence(*shape, D).requires_grad_(), *states, *parameters)
    assert torch.autograd.gradcheck(run, inputs)
    if shape != (7, 1):
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)  # along random directions


@every_kind
def test_half_precision_is_single_rounded(kind: type[nn.RNN]) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        layer = made(kind, dtype=torch.float32)
        x = sequence(9, B, D, dtype=torch.float32)
        expected = copy.deepcopy(layer).to(dtype).to(torch.float32)(x.to(dtype).float())[0]
        out, last = layer.to(dtype)(x.to(dtype))
        assert out.dtype == dtype
        assert flat(last)[0].dtype == dtype
        torch.testing.assert_close(out.float(), expected, rtol=0, atol=12 * torch.finfo(dtype).eps)


def check_autocast(layer: nn.RNN, x: torch.Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = layer(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), layer(x)[0], rtol=0, atol=0.05)
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


@every_kind
def test_autocast(kind: type[nn.RNN]) -> None:
    layer, x = made(kind, dtype=torch.float32), sequence(6, B, D, dtype=torch.float32)
    check_autocast(layer, x)


@pytest.mark.parametrize("steps", [1, 2, 9])
def test_autocast_of_a_projected_state(steps: int) -> None:
    layer, x = made(nn.LSTM, proj_size=2, dtype=torch.float32), sequence(steps, B, D, dtype=torch.float32)
    check_autocast(layer, x)


@every_kind
@pytest.mark.parametrize("size", [1000.0, -1000.0])
def test_gates_exactly_open_or_shut(kind: type[nn.RNN], size: float) -> None:
    layer = made(kind)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("bias"):
                parameter.fill_(size)
    x = sequence(5, B, D).requires_grad_()
    out, _ = layer(x, started(layer))
    out.sum().backward()
    assert bool(out.isfinite().all())
    assert bool(x.grad.isfinite().all())
    assert all(bool(parameter.grad.isfinite().all()) for parameter in layer.parameters())


@every_kind
def test_an_empty_batch(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    for lengths in (None, list[int]()):
        out, last = layer(torch.zeros(4, 0, D, dtype=torch.float64), lengths=lengths)
        assert out.shape == (4, 0, N)
        assert flat(last)[0].shape == (1, 0, N)
    assert layer(torch.zeros(4, 0, D, dtype=torch.float64), started(layer, 0))[0].shape == (4, 0, N)


def test_a_gate_that_reads_another_state_takes_no_projection() -> None:
    def read(self: Cell, gate: str, s: Values, u: Values) -> Any:
        return s.c if gate == "g" else s.h

    def update(self: Cell, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.f), "c": torch.tanh(u.g)}

    own = {"name": "two", "states": ("h", "c"), "gates": {"f": Reads(), "g": Reads()}, "read": read, "update": update}
    kind: Any = type("Two", (Cell,), own)
    cell: Cell = dataclass(frozen=True)(kind)()
    assert nn.RNN(cell, 3, 6)(torch.zeros(2, 1, 3))[0].shape == (2, 1, 6)
    with pytest.raises(ValueError, match="proj_size: two's gate g does not read"):
        nn.RNN(cell, 3, 6, proj_size=4)


def test_an_output_of_wider_states_takes_no_projection() -> None:
    kind: Any = type("Both", (LSTM,), {"name": "both", "output": lambda self, s, u: s.h + s.c})
    assert nn.RNN(kind(), D, N)(torch.zeros(2, 1, D))[0].shape == (2, 1, N)
    with pytest.raises(ValueError, match="proj_size: both's output reads c, wider than the projected state"):
        nn.RNN(kind(), D, N, proj_size=2)


@pytest.mark.parametrize("option", [{"proj_size": 2}, {"h_detach": 0.5}])
def test_options_that_depend_on_what_an_update_reads_are_refused_where_that_is_not_known(option: Any) -> None:
    def update(self: Any, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return GRU.update(self, s, u, x) if bool((u.z > 1e6).any()) else {"h": torch.tanh(u.nx) + s.h}

    kind: Any = type("Branching", (GRU,), {"name": "branching", "update": update})
    assert nn.RNN(kind(), D, N)(torch.zeros(2, 1, D))[0].shape == (2, 1, N)
    with pytest.raises(ValueError, match=rf"{next(iter(option))}: what branching.update reads is not known: "):
        nn.RNN(kind(), D, N, **option)


def test_an_output_of_its_own_reads_the_projected_state() -> None:
    kind: Any = type("Readout", (LSTM,), {"name": "readout", "output": lambda self, s, u: s.h.tanh()})
    layer = nn.RNN(kind(), D, N, proj_size=2).double()
    peer = torch.nn.LSTM(D, N, proj_size=2).double()
    peer.load_state_dict(layer.state_dict())
    x = sequence(5, 3, D)
    torch.testing.assert_close(layer(x)[0], peer(x)[0].tanh())


def test_a_projected_state_has_second_derivatives() -> None:
    layer = made(nn.LSTM, proj_size=2)
    x = sequence(4, 2, D).requires_grad_()
    given = [value[:, :2].clone().requires_grad_() for value in started(layer)]
    assert torch.autograd.gradcheck(lambda x, *hx: layer(x, hx)[0], (x, *given))
    assert torch.autograd.gradgradcheck(lambda x, *hx: layer(x, hx)[0], (x, *given))


@every_kind
def test_untied_weights_are_fresh_at_every_step_and_train(kind: type[nn.RNN]) -> None:
    layer = made(kind, untied=True, num_layers=2, bidirectional=True)
    x = sequence(5, B, D)
    out, _ = layer(x)
    assert not torch.equal(out, layer(x)[0])
    out.square().sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in layer.parameters())
    torch.manual_seed(4)
    first = layer(x)[0]
    torch.manual_seed(4)
    torch.testing.assert_close(layer(x)[0], first, rtol=0, atol=0)


def test_untied_layers_follow_the_theory_of_untied_networks() -> None:
    gates = {"i": Gate(2, 0.5, bias_mean=0.5), "f": Gate(4, 1, bias_var=0.1, bias_mean=2), "g": Gate(3, 0.5)}
    spec = Spec(Peephole(), gates)
    expected = analyze(spec).fixed_point.second_moment.number()
    size, steps, x = 128, 60, torch.randn(1, 1, 128, dtype=torch.float64, generator=seeded())
    x = (x / x.square().mean().sqrt()).expand(steps, 1, size)
    found = []
    for seed in range(16):
        torch.manual_seed(seed)
        layer = nn.PeepholeLSTM(size, size, dtype=torch.float64, untied=True)
        init.apply_(layer, spec, generator=seeded(seed))
        _, c = layer(x)
        found.append(float(c.detach().square().mean()))
    q = torch.tensor(found)
    error = float(q.std()) / len(found) ** 0.5
    assert error < 0.05 * expected
    assert abs(float(q.mean()) - expected) < 4 * error


def test_shuffled_matrices_keep_singular_values_and_biases_their_partners() -> None:
    stack = torch.randn(3 * N, N, dtype=torch.float64, generator=seeded())
    many = shuffled_matrices(stack, N, steps=7)
    for gate in range(3):
        rows = slice(gate * N, (gate + 1) * N)
        wanted = torch.linalg.svdvals(stack[rows]).expand(7, N)
        torch.testing.assert_close(torch.linalg.svdvals(many[:, rows]), wanted)
    assert not torch.equal(many[0], many[1])
    biases = ShuffledUnits(stack, N, 7)(torch.cat([stack[:N, 0], -stack[:N, 0]]))
    torch.testing.assert_close(biases[:, :N], -biases[:, N:], rtol=0, atol=0)


def test_the_feature_map_of_minimal_rnn() -> None:
    maps: dict[Features, Callable[[Tensor], Tensor]] = {"linear": lambda value: value, "tanh": torch.tanh}
    for features, function in maps.items():
        torch.manual_seed(0)
        layer = nn.MinimalRNN(D, N, dtype=torch.float64, features=features)
        inner = nn.MinimalRNN(N, N, dtype=torch.float64)
        with torch.no_grad():
            for name, parameter in inner.named_parameters():
                parameter.copy_(getattr(layer, name))
        x = sequence(5, B, D)
        z = function(x @ layer.weight_phi_l0.mT + layer.bias_phi_l0)
        torch.testing.assert_close(layer(x)[0], inner(z)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.TLSTM, nn.TGRU])
def test_the_first_previous_input(kind: type[nn.RNN]) -> None:
    zero, first = made(kind), made(kind, before="first")
    x = sequence(4, B, D)
    torch.testing.assert_close(first(x)[0], zero(x, previous=x[0])[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(zero(x)[0], zero(x, previous=torch.zeros_like(x[0]))[0], rtol=0, atol=1e-12)


class MappedPrevious(Cell):
    """Reads the previous input through a matrix and this one as it is."""

    name = "mapped_previous"
    gates = {"f": Reads(previous_input=True)}
    input_enters_pointwise = True

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": f * s.h + (1 - f) * x}


@pytest.mark.parametrize(("inputs", "features"), [(D, "linear"), (N, "tanh")])
def test_the_previous_input_has_the_features_of_all_others(inputs: int, features: Features) -> None:
    torch.manual_seed(0)
    layer = nn.RNN(MappedPrevious(), inputs, N, features=features, dtype=torch.float64)
    x = sequence(5, B, inputs)
    _, state = layer(x[:2])
    torch.testing.assert_close(layer(x[2:], state, previous=x[1])[0], layer(x)[0][2:], rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.gate_inputs(x[2:], previous=x[1]), layer.gate_inputs(x)[2:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("nonlinearity", ["identity", "relu", "prelu", "leaky_relu", "modrelu", "oplu"])
def test_nonlinearities_of_vanilla(nonlinearity: str) -> None:
    torch.manual_seed(0)
    layer = nn.VanillaRNN(D, 6, dtype=torch.float64, nonlinearity=nonlinearity)
    u = (sequence(1, B, D)[0] @ layer.weight_ih_l0.mT + layer.bias_ih_l0 + layer.bias_hh_l0).detach()
    if nonlinearity == "modrelu":
        torch.nn.init.constant_(layer.offset_l0, -0.1)
    pairs = u.unflatten(-1, (-1, 2)).sort(-1, descending=True).values.flatten(-2)
    expected = {
        "identity": u,
        "relu": u.clamp(min=0),
        "prelu": torch.nn.functional.prelu(u, torch.tensor(0.25, dtype=torch.float64)),
        "leaky_relu": torch.nn.functional.leaky_relu(u, 0.25),
        "modrelu": torch.nn.functional.softshrink(u, 0.1),
        "oplu": pairs,
    }
    torch.testing.assert_close(layer(sequence(1, B, D))[0][0], expected[nonlinearity], rtol=0, atol=1e-12)
    layer(sequence(4, B, D))[0].square().sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in layer.parameters())


def test_oplu_needs_pairs_and_has_no_theory() -> None:
    with pytest.raises(OptionError, match="5 are not even"):
        nn.VanillaRNN(D, 5, nonlinearity="oplu")(torch.zeros(2, B, D))
    spec = Spec(Vanilla("oplu"), {"h": Gate(weight_var=1.0)})
    assert "several units together" in str(analyze(spec).xi.reason())


def test_a_step_of_training_moves_every_parameter() -> None:
    for kind in KINDS:
        layer = made(kind, num_layers=2, bidirectional=True)
        before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
        layer(sequence(5, B, D))[0].square().sum().backward()
        torch.optim.SGD(layer.parameters(), 0.1).step()
        assert all(not torch.equal(parameter, before[name]) for name, parameter in layer.named_parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: made(nn.LSTM)(torch.zeros(0, B, D, dtype=torch.float64)), r"input: shape \(0, 3, 4\)"),
        (lambda: made(nn.LSTM)(torch.zeros(2, B, D, 1, dtype=torch.float64)), r"input: shape \(2, 3, 4, 1\)"),
        (
            lambda: made(nn.LSTM)(torch.zeros(2, B, D)),
            "input: torch.float32 is not allowed; the layer is torch.float64",
        ),
        (
            lambda: made(nn.MinimalRNN)(torch.zeros(2, B, D)),
            "input: torch.float32 is not allowed; the layer is torch.float64",
        ),
        (lambda: made(nn.GRU)(sequence(2, B, D), torch.zeros(1, B, N)), r"hx.h: torch.float32"),
        (lambda: made(nn.LSTM, batch_first=True)(torch.zeros(2, 3, 7)), r"it must be \(batch, steps, 4\)"),
        (lambda: made(nn.GRU, num_layers=2)(sequence(2, B, D), torch.zeros(1, B, N)), r"it must be \(2, 3, 5\)"),
    ],
)
def test_wrong_shapes_name_what_is_expected_and_found(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("kind", [nn.VanillaRNN, nn.LSTM, nn.TLSTM])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "num_layers": 2, "bidirectional": True}])
def test_the_last_state_is_not_computed_from_the_outputs_given_out(kind: type[nn.RNN], options: Any) -> None:
    out, state = made(kind, **options)(sequence(6, B, D))
    out.retain_grad()
    (out.mean() + sum(value.sum() for value in flat(state))).backward()
    torch.testing.assert_close(out.grad, torch.full_like(out, 1 / out.numel()))


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_of_any_whole_type(kind: torch.dtype) -> None:
    layer = nn.GRU(3, 4)
    x = torch.randn(6, 2, 3)
    torch.testing.assert_close(
        layer(x, lengths=torch.tensor([6, 2], dtype=kind)), layer(x, lengths=[6, 2]), rtol=0, atol=0
    )


@pytest.mark.parametrize("state", [None, "a", 1.0])
def test_states_that_are_none_are_named(state: Any) -> None:
    with pytest.raises(
        ValueError, match=r"hx: (NoneType|str|float) is not allowed; it must be a tensor for each of h, c"
    ):
        nn.LSTM(3, 4)(torch.randn(6, 2, 3), (torch.zeros(1, 2, 4), state))
    if state is not None:
        with pytest.raises(ValueError, match="hx: "):
            nn.LSTM(3, 4)(torch.randn(6, 2, 3), state)


def test_inputs_that_are_no_tensor_are_named() -> None:
    with pytest.raises(ValueError, match="input: list is not allowed; it must be a tensor or a PackedSequence"):
        nn.LSTM(3, 4)([[1.0]])
