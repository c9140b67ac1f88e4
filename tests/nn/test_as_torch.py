"""What torch's tools do with torch.nn's recurrent layers they do with ours: see the table in docs/layers.md."""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradgradcheck
from torch.utils.flop_counter import FlopCounterMode

from isornn import nn
from isornn.cells import CELLS, FURTHER_CELLS, Cell, Reads, Values, cell_named

T, B, D, N = 4, 2, 3, 5
KINDS = (nn.LSTM, nn.GRU, nn.VanillaRNN, nn.TRNN, nn.PeepholeLSTM, nn.TLSTM, nn.MinimalRNN)
every_kind = pytest.mark.parametrize("kind", KINDS)
PEERS = {nn.LSTM: torch.nn.LSTM, nn.GRU: torch.nn.GRU, nn.VanillaRNN: torch.nn.RNN}
with_peer = pytest.mark.parametrize(("ours", "theirs"), PEERS.items())
DEEP: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}


def seeded(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(kind: Callable[..., Any], *given: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(*given, D, N, **({"dtype": torch.float64} | options))


def sequence(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*(shape or (T, B, D)), dtype=dtype, generator=seeded())


def flat(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def output_of(layer: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: layer(x)[0]


# Arguments


@with_peer
def test_positional_arguments_are_torchs(ours: Any, theirs: Any) -> None:
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
    values: dict[str, Any] = {"input_size": 2, "hidden_size": 3, "num_layers": 2, "bias": False}
    values |= {"batch_first": True, "dropout": 0.25, "bidirectional": True}
    if ours is nn.VanillaRNN:
        names.insert(3, "nonlinearity")
        values["nonlinearity"] = "relu"
    for count in range(2, len(names) + 1):
        given = [values[name] for name in names[:count]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # dropout of a single layer
            mine, peer = ours(*given), theirs(*given)
        assert {name: getattr(mine, name) for name in names} == {name: getattr(peer, name) for name in names}
        assert mine.mode == peer.mode
        mine.load_state_dict(peer.state_dict())
        x = torch.randn(4, 5, 2, generator=seeded())
        mine.eval(), peer.eval()
        torch.testing.assert_close(mine(x), peer(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["bias", "batch_first", "bidirectional", "untied"])
@pytest.mark.parametrize("value", ["False", 1, None])
def test_switches_are_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value!r} is not allowed; it must be True or False"):
        nn.GRU(D, N, **{name: value})


@pytest.mark.parametrize("name", ["dropout", "h_detach"])
@pytest.mark.parametrize("value", [True, "0.5", None, float("nan"), -0.1])
def test_probabilities_are_numbers_from_0_to_1(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value!r} is not allowed; it must be a probability"):
        nn.GRU(D, N, 2, **{name: value})


@pytest.mark.parametrize("value", [True, "2", 1.0, -1, N])
def test_proj_size_is_a_whole_number_below_hidden_size(value: Any) -> None:
    with pytest.raises(ValueError, match=f"proj_size: {value!r} is not allowed"):
        nn.LSTM(D, N, proj_size=value)


def test_nonlinearity_is_the_fourth_argument() -> None:
    assert nn.SpectralRNN(D, N, 1, "relu").nonlinearity == "relu"
    with pytest.raises(ValueError, match="nonlinearity: False"):
        nn.VanillaRNN(D, N, 1, False)  # type: ignore[arg-type]


@every_kind
def test_inputs_and_states_by_torchs_keywords(kind: Any) -> None:
    layer, x = made(kind), sequence()
    _, state = layer(x)
    expected = layer(x, state)
    torch.testing.assert_close(layer(input=x, hx=state), expected, rtol=0, atol=0)
    torch.testing.assert_close(layer(x, hx=state, lengths=[T, T]), expected, rtol=0, atol=1e-12)
    assert list(inspect.signature(layer.forward).parameters)[:2] == ["input", "hx"]


# What torch's layers have


@with_peer
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_attributes_of_torchs_layers(ours: Any, theirs: Any, options: dict) -> None:
    mine, peer = made(ours, **options), made(theirs, **options)
    assert (mine.mode, mine.proj_size, mine.flatten_parameters()) == (peer.mode, 0, None)
    names = {id(parameter): name for name, parameter in mine.named_parameters()}
    peers = {id(parameter): name for name, parameter in peer.named_parameters()}
    found = [[names[id(weight)] for weight in place] for place in mine.all_weights]
    assert found == [[peers[id(weight)] for weight in place] for place in peer.all_weights]


def test_modes_and_nonlinearities() -> None:
    assert nn.VanillaRNN(D, N, nonlinearity="relu").mode == torch.nn.RNN(D, N, nonlinearity="relu").mode
    assert nn.VanillaRNN(D, N, nonlinearity="relu").nonlinearity == "relu"
    assert nn.VanillaRNN(D, N, nonlinearity="prelu").mode == "vanilla"  # torch has no such mode
    assert nn.LSTM(D, N, gate="hard_sigmoid").mode == "lstm"
    assert nn.PeepholeLSTM(D, N).mode == "peephole"
    assert not hasattr(nn.LSTM(D, N), "nonlinearity")
    assert not hasattr(torch.nn.LSTM(D, N), "nonlinearity")


def test_all_weights_has_every_parameter_parametrised_ones_too() -> None:
    for kind in KINDS:
        layer = made(kind, num_layers=2, bidirectional=True)
        listed = [id(weight) for place in layer.all_weights for weight in place]
        assert sorted(listed) == sorted(id(parameter) for parameter in layer.parameters())
    layer = torch.nn.utils.parametrizations.weight_norm(nn.LSTM(D, N), "weight_hh_l0")
    torch.testing.assert_close(layer.all_weights[0][1], layer.weight_hh_l0)


# Derivatives


@every_kind
def test_batched_gradients_are_those_one_by_one(kind: Any) -> None:
    layer, x = made(kind, **DEEP), sequence().requires_grad_()
    out, last = layer(x)
    results, sources = [out, *flat(last)], [x, *layer.parameters()]
    many = [torch.randn(3, *value.shape, dtype=value.dtype, generator=seeded(2)) for value in results]
    found = torch.autograd.grad(results, sources, many, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(results, sources, list(one), retain_graph=True) for one in zip(*many, strict=True)]
    for batched, alone in zip(found, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(batched, torch.stack(alone), rtol=0, atol=1e-12)


@dataclass(frozen=True)
class ConstantState(Cell):
    """A state that is the same after every step, from which no gradient comes back, beside one that is not."""

    name = "constant_state"
    states = ("h", "one")
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) * s.one, "one": torch.ones_like(s.one)}


@dataclass(frozen=True)
class ConstantOutput(ConstantState):
    """Its output is always 0."""

    name = "constant_output"

    def output(self, s: Values, u: Values) -> Any:
        return torch.zeros_like(s.h)


@pytest.mark.parametrize("cell", [ConstantState(), ConstantOutput()], ids=lambda cell: cell.name)
def test_second_and_batched_derivatives_where_a_result_is_constant(cell: Cell) -> None:
    layer, x = made(nn.RNN, cell), sequence().requires_grad_()
    states = tuple(torch.rand(1, B, N, dtype=torch.float64, generator=seeded(k)).requires_grad_() for k in (2, 3))

    def run(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        out, last = layer(x, states)
        return out, *last

    assert gradgradcheck(run, (x, *states))
    results = run(x, *states)
    many = [torch.randn(3, *value.shape, dtype=value.dtype, generator=seeded(4)) for value in results]
    batched = torch.autograd.grad(results, x, many, is_grads_batched=True, retain_graph=True)[0]
    each = [torch.autograd.grad(results, x, list(one), retain_graph=True)[0] for one in zip(*many, strict=True)]
    torch.testing.assert_close(batched, torch.stack(each), rtol=0, atol=1e-12)


@every_kind
def test_a_retained_graph_gives_the_same_gradients_again(kind: Any) -> None:
    layer, x = made(kind, **DEEP), sequence().requires_grad_()
    out, sources = layer(x)[0], [x, *layer.parameters()]
    arriving = torch.randn(out.shape, dtype=out.dtype, generator=seeded(2))
    first, *others = [torch.autograd.grad(out, sources, arriving, retain_graph=True) for _ in range(3)]
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_the_operations_write_to_nothing() -> None:
    layer, x = made(nn.LSTM), sequence()
    tensors = [x, layer.weight_ih_l0, layer.bias_ih_l0, layer.weight_hh_l0, None, None]
    tensors = [None if tensor is None else tensor.detach() for tensor in tensors]
    initial = [x.new_zeros(B, N), x.new_zeros(B, N)]
    with torch.no_grad():
        h, c, *kept = torch.ops.isornn.recurrence(layer.layout.key, *tensors, None, [], initial, True)
        copies = [value.clone() for value in kept]
        given = (layer.layout.key, *tensors, [], initial, [h, c], kept, [torch.ones_like(h)], [0], True)
        first, again = (torch.ops.isornn.recurrence_backward(*given) for _ in range(2))
    assert all(torch.equal(value, copy) for value, copy in zip(kept, copies, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@every_kind
def test_vectorised_jacobians_and_hessians(kind: Any) -> None:
    layer, x = made(kind), sequence(3, 1, D)
    functional, out = torch.autograd.functional, output_of(layer)
    expected = functional.jacobian(out, x)
    torch.testing.assert_close(functional.jacobian(out, x, vectorize=True), expected, rtol=0, atol=1e-12)
    forward = functional.jacobian(out, x, vectorize=True, strategy="forward-mode")
    torch.testing.assert_close(forward, expected, rtol=0, atol=1e-12)

    def loss(x: Tensor) -> Tensor:
        return out(x).square().sum()

    hessian = functional.hessian(loss, x)
    torch.testing.assert_close(functional.hessian(loss, x, vectorize=True), hessian, rtol=0, atol=1e-11)


@every_kind
@pytest.mark.parametrize("recording", [True, False])
def test_forward_mode_derivatives(kind: Any, recording: bool) -> None:
    layer, x = made(kind, num_layers=2), sequence()
    direction = torch.randn(x.shape, dtype=x.dtype, generator=seeded(2))
    expected = torch.func.jvp(output_of(layer), (x,), (direction,))[1]
    tiny = 1e-6
    apart = (layer(x + tiny * direction)[0] - layer(x - tiny * direction)[0]) / (2 * tiny)
    torch.testing.assert_close(expected, apart, rtol=0, atol=1e-8)
    with forward_ad.dual_level(), torch.set_grad_enabled(recording):
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, direction))[0]).tangent
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert forward_ad.unpack_dual(layer(x)[0]).tangent is None
        # A tangent of a weight alone arrives as well.
        weight = layer.weight_ih_l0
        given = forward_ad.make_dual(weight.detach(), torch.ones_like(weight))
        moved = torch.func.functional_call(layer, {"weight_ih_l0": given}, (x,))[0]
        assert bool((forward_ad.unpack_dual(moved).tangent != 0).any())


@every_kind
@pytest.mark.parametrize("options", [{}, DEEP, {"checkpoint_every": 3}])
@pytest.mark.parametrize("change", [lambda out: out.mul_(2), torch.relu_, lambda out: out[0].zero_()])
def test_outputs_can_be_changed_in_place(kind: Any, options: dict, change: Callable[[Tensor], object]) -> None:
    found = []
    for in_place in (True, False):
        layer, x = made(kind, **options), sequence().requires_grad_()
        out, last = layer(x)
        values = [out, *flat(last)]
        values = values if in_place else [value.clone() for value in values]
        for value in values:
            change(value)
        loss = sum(value.sum() for value in values)
        gradients = torch.autograd.grad(loss, [x, *layer.parameters()], create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(gradients[0].square().sum(), x)
        found.append((values, gradients, second))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


# Devices, dtypes, tracers


@every_kind
@pytest.mark.parametrize("lengths", [None, [T, 1]])
def test_shapes_on_the_meta_device(kind: Any, lengths: list[int] | None) -> None:
    real, meta = made(kind, **DEEP), made(kind, **DEEP, device="meta")
    x = sequence(B, T, D)
    out, last = meta(x.to("meta"), lengths=lengths)
    expected, expected_last = real(x, lengths=lengths)
    assert (out.device.type, out.shape, out.stride()) == ("meta", expected.shape, expected.stride())
    assert [value.shape for value in flat(last)] == [value.shape for value in flat(expected_last)]
    out.sum().backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in meta.parameters())
    with torch.device("meta"):
        assert nn.GRU(D, N)(torch.empty(T, B, D))[0].is_meta


# torch's own words of its own tools
old_tracer = pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")


@old_tracer
@pytest.mark.parametrize("kind", [nn.LSTM, nn.VanillaRNN, nn.MinimalRNN])
def test_traces_run_with_any_length_and_batch(kind: Any) -> None:
    layer = made(kind, num_layers=2, bidirectional=True).eval()
    traced = torch.jit.trace(layer, sequence())
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    x, loaded = sequence(T + 3, B + 1, D), torch.jit.load(file)
    torch.testing.assert_close(loaded(x), layer(x), rtol=0, atol=1e-12)
    found = torch.autograd.grad(loaded(x)[0].square().sum(), loaded.parameters())
    torch.testing.assert_close(found, torch.autograd.grad(layer(x)[0].square().sum(), layer.parameters()))


@old_tracer
def test_traces_of_projected_states_do_not_warn() -> None:
    layer = made(nn.LSTM, proj_size=2)
    traced = torch.jit.trace(layer, (sequence(),))
    x = sequence(T + 2, B + 1, D)
    torch.testing.assert_close(traced(x), layer(x))


@old_tracer
def test_traces_take_lengths() -> None:
    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = made(nn.GRU, bidirectional=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return self.rnn(x, lengths=lengths)[0]

    model = Reader().eval()
    traced = torch.jit.trace(model, (sequence(), torch.tensor([T, 2])))
    given = sequence(T + 3, 3, D), torch.tensor([T + 3, 1, 3])
    torch.testing.assert_close(traced(*given), model(*given), rtol=0, atol=1e-12)


@old_tracer
def test_the_graph_for_tensorboard(tmp_path: Any) -> None:
    from torch.utils.tensorboard import SummaryWriter

    model = torch.nn.Sequential(nn.LSTM(D, N))
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(model, torch.zeros(T, B, D))
    (file,) = tmp_path.iterdir()
    assert b"isornn::recurrence" in file.read_bytes()


@with_peer
def test_floating_point_operations_are_counted(ours: Any, theirs: Any) -> None:
    counts = []
    for layer in (made(ours), made(nn.GRU if theirs is torch.nn.LSTM else theirs)):
        x, state = sequence().requires_grad_(), [torch.zeros(1, B, N, dtype=torch.float64, requires_grad=True)]
        state = state * len(getattr(getattr(layer, "cell", None), "states", "h"))
        with FlopCounterMode(display=False) as forward:
            out, _ = layer(x, tuple(state) if len(state) > 1 else state[0])
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
        counts.append((forward.get_total_flops(), backward.get_total_flops()))
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.VanillaRNN: 1}[ours]
    assert counts[0] == (2 * gates * T * B * N * (D + N), 4 * gates * T * B * N * (D + N))
    if ours is not nn.LSTM:  # torch counts nothing in its own on a CPU
        assert counts[1] == counts[0]


@with_peer
def test_dtypes_under_autocast(ours: Any, theirs: Any) -> None:
    layer, x = made(ours, dtype=torch.float32), sequence(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, last = layer(x)
        again, _ = layer(x, last)
    dtypes = {value.dtype for value in (out, again, *flat(last))}
    assert dtypes == {torch.bfloat16}
    if theirs is torch.nn.RNN:  # oneDNN has no bfloat16 LSTM on many CPUs, and torch's list of operations no GRU
        peer = made(theirs, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            assert {value.dtype for value in peer(x)} == dtypes


@with_peer
def test_autocast_leaves_float64(ours: Any, theirs: Any) -> None:
    layer, peer, x = made(ours), made(theirs), sequence()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), peer(x))


def test_autocast_refuses_whole_numbers() -> None:
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"input: torch.int64 is not allowed"):
        made(nn.LSTM, dtype=torch.float32)(torch.ones(T, B, D, dtype=torch.long))


@with_peer
def test_complex_numbers(ours: Any, theirs: Any) -> None:
    layer, peer = (made(kind, dtype=torch.complex128) for kind in (ours, theirs))
    x = torch.complex(sequence(), sequence().flip(0))
    torch.testing.assert_close(layer(x), peer(x))


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@every_kind
def test_dynamic_quantisation_says_what_it_leaves(kind: Any) -> None:
    model = torch.nn.Sequential(made(kind, dtype=torch.float32))
    quantize = torch.ao.quantization.quantize_dynamic
    with pytest.warns(UserWarning, match=f"{kind.__name__} stays in floating point"):
        found = quantize(model, {kind}, dtype=torch.qint8)
    x = sequence(dtype=torch.float32)
    torch.testing.assert_close(found(x)[0], model(x)[0], rtol=0, atol=0)
    assert quantize(torch.nn.Sequential(model, torch.nn.Linear(N, 2)), {torch.nn.Linear}, dtype=torch.qint8)


# Export


@old_tracer
@pytest.mark.parametrize(("kind", "dynamic"), [(nn.LSTM, True), (nn.GRU, False), (nn.MinimalRNN, False)])
def test_programs_for_onnx_are_torchs_operations_of_any_length(
    kind: Any, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What `torch.onnx.export` says to the modules that it exports; onnxscript itself need not be installed.
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    layer = made(kind).eval()
    shapes = ({0: torch.export.Dim("steps", min=2, max=4096)},) if dynamic else None
    program = torch.export.export(layer, (sequence(),), dynamic_shapes=shapes, strict=False)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert "scan" in names
    assert not [name for name in names if name.startswith("isornn")]
    x = sequence(T + 3 * dynamic, B, D)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=0, atol=1e-12)


@old_tracer
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")  # the exporter's own
@pytest.mark.parametrize("kind", [nn.LSTM, nn.MinimalRNN])
def test_onnx(kind: Any) -> None:
    pytest.importorskip("onnxscript")
    layer = made(kind, dtype=torch.float32, num_layers=2, bidirectional=True).eval()
    for shapes in (None, ({0: torch.export.Dim("steps", min=2, max=4096)},)):
        program = torch.onnx.export(
            layer, (sequence(dtype=torch.float32),), dynamo=True, dynamic_shapes=shapes, verbose=False
        )
        assert program is not None
        x = sequence(T + 3 if shapes else T, B, D, dtype=torch.float32)
        found = program(x)
        expected = layer(x)
        torch.testing.assert_close(tuple(found), (expected[0], *flat(expected[1])), rtol=0, atol=1e-5)


@old_tracer
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")  # the exporter's own
@pytest.mark.parametrize("name", CELLS | FURTHER_CELLS)
def test_onnx_runtime_gives_every_cells_outputs_of_another_length(name: str) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    layer = nn.RNN(cell_named(name), D, N, dtype=torch.float32).eval()
    shapes = ({0: torch.export.Dim("steps", min=2, max=4096)},)
    x = sequence(7, B, D, dtype=torch.float32)
    program = torch.onnx.export(layer, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    x = sequence(11, B, D, dtype=torch.float32)
    output, state = layer(x)
    torch.testing.assert_close(tuple(program(x)), (output, *flat(state)), rtol=0, atol=2e-6)
