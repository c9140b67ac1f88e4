"""torch's tools around a layer: copies, function transforms, exporters, compilers, parametrisations, wrappers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn import nn
from isornn.cells import Cell, Minimal, Vanilla
from isornn.cells.linear import RGLRU
from isornn.cells.mut1 import MUT1
from small_layers import B, D, Made, N, every_kind, flat, made, sequence, started


@every_kind
def test_copies_pickles_and_saved_weights(kind: Made) -> None:
    layer, x = made(kind, num_layers=2), sequence(4, B, D)
    expected = layer(x)[0]
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x)[0], expected, rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = kind(D, N, 2, dtype=torch.float64)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other(x)[0], expected, rtol=0, atol=0)
    layer.flatten_parameters()


@every_kind
def test_jacobians_and_vmap(kind: type[nn.RNN]) -> None:
    layer, x = made(kind), sequence(4, D)

    def out(x: Tensor) -> Tensor:
        return layer(x)[0]

    jacobian = torch.func.jacrev(out)(x)
    torch.testing.assert_close(jacobian, torch.autograd.functional.jacobian(out, x), rtol=0, atol=1e-12)
    many = sequence(6, 4, D)
    torch.testing.assert_close(torch.func.vmap(out)(many), torch.stack([out(one) for one in many]), rtol=0, atol=1e-12)
    weights: dict[str, Tensor] = dict(layer.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, weights, (x,))[0].square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, many)
    whole = torch.func.grad(lambda w: sum(loss(w, one) for one in many))(weights)
    torch.testing.assert_close({k: v.sum(0) for k, v in each.items()}, dict(whole), rtol=0, atol=1e-11)


@every_kind
def test_export_with_any_length_and_batch(kind: type[nn.RNN]) -> None:
    layer = made(kind, num_layers=2, bidirectional=True).eval()
    steps, batch = torch.export.Dim("steps", min=2, max=4096), torch.export.Dim("batch", min=2, max=512)
    with torch.no_grad():
        program = torch.export.export(layer, (sequence(6, B, D),), dynamic_shapes=({0: steps, 1: batch},))
    longer = sequence(11, 2, D)
    torch.testing.assert_close(program.module()(longer), layer(longer), rtol=0, atol=1e-12)


@every_kind
def test_compile_in_one_graph(kind: type[nn.RNN]) -> None:
    torch.compiler.reset()  # torch compiles one function for eight kinds of layers at most
    layer, x = made(kind), sequence(4, B, D)
    results = []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        layer.zero_grad()
        out, last = run(x, started(layer))
        (out.square().sum() + sum(value.sum() for value in flat(last))).backward()
        results.append((out, flat(last), [parameter.grad.clone() for parameter in layer.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("strict", [False, True])
@every_kind
def test_exported_recurrences_are_one_operation(kind: type[nn.RNN], strict: bool) -> None:
    program = torch.export.export(made(kind).eval(), (sequence(6, B, D),), strict=strict)
    assert [node.target for node in program.graph.nodes].count(torch.ops.isornn.recurrence.default) == 1


@pytest.mark.parametrize(
    "layer", [nn.RNN(Vanilla("oplu"), D, 6), nn.LSTM(D, 6, proj_size=2)], ids=["oplu", "projected"]
)
def test_an_exported_layer_without_a_kernel_under_autocast(layer: nn.RNN) -> None:
    x = torch.randn(5, B, D, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(layer.eval(), (x,)).module()
    with torch.autocast("cpu", torch.bfloat16):
        found = program(x)[0]
    torch.testing.assert_close(found, layer(x)[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("exported", [False, True])
@pytest.mark.parametrize("cell", [Minimal(), RGLRU(), MUT1()], ids=lambda cell: cell.name)
def test_programs_run_in_the_other_mode_of_autocast(cell: Cell, exported: bool) -> None:
    layer, x = nn.RNN(cell, D, 6, 2).eval(), sequence(5, B, D, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, enabled=exported), torch.no_grad():
        program = torch.export.export(layer, (x,)).module()
    with torch.autocast("cpu", torch.bfloat16, enabled=not exported), torch.no_grad():
        found = program(x)[0]
    torch.testing.assert_close(found.float(), layer(x)[0], rtol=0, atol=0.05)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.MinimalRNN])
def test_a_program_whose_layer_is_given_what_autocast_computed(kind: Callable[[int, int], nn.RNN]) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(D, D), kind(D, 6)), sequence(5, B, D, dtype=torch.float32)
    program = torch.export.export(model, (x,)).module()
    with torch.autocast("cpu", torch.bfloat16):
        found = program(x)[0]
    found.sum().backward()
    expected = model(x)[0]
    expected.sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    for parameter, own in zip(program.parameters(), model.parameters(), strict=True):
        assert (parameter.grad - own.grad).norm() < 0.05 * own.grad.norm()


@every_kind
def test_compiled_once_for_all_lengths(kind: type[nn.RNN]) -> None:
    torch.compiler.reset()
    graphs = []

    def counting(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append([node.target for node in graph.graph.nodes].count(torch.ops.isornn.recurrence.default))
        return graph

    layer = made(kind, num_layers=2, bidirectional=True)
    compiled = torch.compile(layer, backend=counting, fullgraph=True, dynamic=True)
    for steps, batch in ((11, 7), (9, 5), (30, 2)):  # unlike the numbers of inputs and units, which are fixed
        x = sequence(steps, batch, D)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=1e-12)
    assert graphs == [4]


@pytest.mark.parametrize("kind", [nn.VanillaRNN, nn.LSTM, nn.TRNN])
def test_a_parametrised_weight_is_used_and_trained(kind: type[nn.RNN]) -> None:
    layer = made(kind)
    name = "weight_ih_l0" if kind is nn.TRNN else "weight_hh_l0"
    before = layer(sequence(5, B, D))[0]
    torch.nn.utils.parametrizations.orthogonal(layer, name)
    out, _ = layer(sequence(5, B, D))
    assert not torch.allclose(out, before)
    out.square().sum().backward()
    old = getattr(layer, name).detach().clone()
    torch.optim.SGD(layer.parameters(), 0.1).step()
    assert not torch.allclose(getattr(layer, name), old)
    w = getattr(layer, name).detach()
    w = w if w.shape[0] >= w.shape[1] else w.mT
    torch.testing.assert_close(w.mT @ w, torch.eye(w.shape[1], dtype=torch.float64), rtol=0, atol=1e-10)


@every_kind
def test_data_parallel_wrappers(kind: type[nn.RNN]) -> None:
    layer, x = made(kind), sequence(4, B, D)
    expected = layer(x)[0]
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in layer.parameters()]
    torch.testing.assert_close(torch.nn.DataParallel(layer, dim=1)(x)[0], expected)
    layer.zero_grad()
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        out, _ = torch.nn.parallel.DistributedDataParallel(layer)(x)
        out.sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close([parameter.grad for parameter in layer.parameters()], gradients)


@pytest.mark.parametrize("change", [lambda out: out.relu_(), lambda out: out.mul_(2).relu_()])
@pytest.mark.parametrize("batch_first", [False, True])
def test_outputs_of_a_compiled_layer_may_be_changed_in_place(change: Any, batch_first: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(D, N, batch_first=batch_first), torch.randn(5, 2, D)
    compiled = torch.compile(layer, backend="aot_eager")
    parameters = list(layer.parameters())
    found = torch.autograd.grad(change(compiled(x)[0]).square().sum(), parameters)
    expected = torch.autograd.grad(change(layer(x)[0].clone()).square().sum(), parameters)
    torch.testing.assert_close(found, expected)


def test_an_activation_in_place_inside_a_compiled_model() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.act = nn.LSTM(D, N), torch.nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.act(self.rnn(x)[0])
            return out

    torch.manual_seed(0)
    model, x = Model(), torch.randn(5, 2, D)
    parameters = list(model.parameters())
    found = torch.autograd.grad(torch.compile(model, backend="aot_eager")(x).square().sum(), parameters)
    torch.testing.assert_close(found, torch.autograd.grad(model(x).square().sum(), parameters))


@pytest.mark.parametrize("layer", [nn.GersLSTM(3, 4), nn.VanillaRNN(3, 4, nonlinearity="prelu")], ids=["gers", "prelu"])
def test_a_parameters_memory_can_still_be_resized(layer: nn.RNN) -> None:
    """As fully sharded training does between steps; numpy pins what it has seen."""
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    assert all(parameter.untyped_storage().resizable() for parameter in layer.parameters())
