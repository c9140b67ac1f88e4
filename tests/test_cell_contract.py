"""One contract for every cell: the catalogue's, and two that the library has never seen.

Each row is a function of a cell. A cell that fails a row is listed in `EXCEPTIONS` with the reason, and must fail it.
"""

from __future__ import annotations

import copy
import io
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import isornn
from contract_cells import ALL, SECOND, B, D, N, T, flat, inputs, layer_of, name_of, seeded, sequence, spec_for
from contract_theory import (
    chi_is_finite_networks,
    closed_form_is_quadrature,
    population_is_finite_network,
    quadrature_is_population,
)
from isornn.cells import Cell, Spec, SpecError, Values
from isornn.cells.graph_values import at_start
from isornn.cells.openings import retention_signs, set_by
from isornn.cells.roles import roles_of
from isornn.cells.starts import start
from isornn.cells.structure import NotPolynomial
from isornn.cells.trace import graph_of
from isornn.cli import app
from isornn.init import apply_, chrono_, critical_, spec_of, standard_, uniform_gate_
from isornn.nn import RNN
from isornn.theory.critical_points.costs import GateStatistics
from isornn.theory.quantity import Quantity

# -- layer ------------------------------------------------------------------------------------------------------------


def layer_is_loop(cell: Cell) -> None:
    layer, x = layer_of(cell), sequence(cell, T, B)
    states = {name: torch.zeros(B, N, dtype=torch.float64) for name in cell.states}
    before, out = torch.zeros_like(x[0]), []
    for x_t in x:
        u = Values(**{name: getattr(layer, f"{name}_l0") for name in cell.parameters})
        for gate, reads in cell.gates.items():
            own = layer.gate_parameters(gate)
            total = sum(own.biases)
            if reads.input:
                total = total + x_t @ own.input.T
            if reads.previous_input:
                total = total + before @ own.previous_input.T
            if reads.state:
                total = total + cell.read(gate, Values(**states), u) @ own.recurrent.T
            setattr(u, gate, total)
        states, before = cell.update(Values(**states), u, x_t), x_t
        out.append(cell.output(Values(**states), u))
    found, last = layer(x)
    torch.testing.assert_close(found, torch.stack(out), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close([value[0] for value in flat(last)], list(states.values()), rtol=1e-10, atol=1e-12)


def _as_function(layer: RNN) -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]:
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def run(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        out, last = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))
        return (out, *flat(last))

    return run, parameters


def gradcheck(cell: Cell) -> None:
    run, parameters = _as_function(layer_of(cell))
    assert torch.autograd.gradcheck(run, (sequence(cell, 3, 1).requires_grad_(), *parameters), fast_mode=True)


def gradgradcheck(cell: Cell) -> None:
    run, parameters = _as_function(layer_of(cell))
    assert torch.autograd.gradgradcheck(run, (sequence(cell, 3, 1).requires_grad_(), *parameters), fast_mode=True)


def vmap(cell: Cell) -> None:
    layer, many = layer_of(cell), sequence(cell, 3, T)
    found = torch.func.vmap(lambda x: layer(x)[0])(many)
    torch.testing.assert_close(found, torch.stack([layer(x)[0] for x in many]), rtol=0, atol=1e-12)


def jacrev(cell: Cell) -> None:
    layer, x = layer_of(cell), sequence(cell, T)
    found = torch.func.jacrev(lambda x: layer(x)[0])(x)
    expected = torch.autograd.functional.jacobian(lambda x: layer(x)[0], x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def export_with_any_length(cell: Cell) -> None:
    layer, steps = layer_of(cell).eval(), torch.export.Dim("steps", min=2, max=4096)
    with torch.no_grad():
        program = torch.export.export(layer, (sequence(cell, T, B),), dynamic_shapes=({0: steps},))
        longer = sequence(cell, 11, B)
        torch.testing.assert_close(program.module()(longer), layer(longer), rtol=0, atol=1e-12)


def compile_in_one_graph(cell: Cell) -> None:
    torch.compiler.reset()
    layer, x = layer_of(cell), sequence(cell, T, B)
    found = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-12)


def data_parallel(cell: Cell) -> None:
    layer, x = layer_of(cell), sequence(cell, T, B)
    layer(x)[0].sum().backward()
    gradients = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    out, _ = torch.nn.parallel.DistributedDataParallel(layer)(x)
    out.sum().backward()
    found = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, gradients)


def copies(cell: Cell) -> None:
    layer, x = layer_of(cell, num_layers=2), sequence(cell, T, B)
    expected = layer(x)[0]
    other, file = RNN(cell, inputs(cell), N, 2, dtype=torch.float64), io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        torch.testing.assert_close(twin(x)[0], expected, rtol=0, atol=0)


def three_dtypes(cell: Cell) -> None:
    layer, x = layer_of(cell), sequence(cell, T, B)
    expected = layer(x)[0]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        out, _ = layer.to(dtype)(x.to(dtype))
        out.sum().backward()
        assert out.dtype == dtype and all(
            bool(parameter.grad.isfinite().all()) for parameter in layer.parameters() if parameter.grad is not None
        )
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
        layer.zero_grad()
        layer.double()


# -- starts, diagnosis, files, command line ---------------------------------------------------------------------------


def gradient_by_step(layer: RNN) -> Tensor:
    """Norm of the last output's gradient with respect to the input of each step."""
    x = torch.randn(20, 2, 8, generator=seeded(1), requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0][-1].square().sum(), x)
    return gradient.flatten(1).norm(dim=1)


def kept_at_start(cell: Cell, layer: RNN) -> list[Tensor]:
    """By retained state, what each unit keeps of it in a step by its biases alone."""
    states = roles_of(cell).gated
    biases = {
        gate: torch.stack(layer.gate_parameters(gate).biases).sum(0) for state in states for gate in set_by(state)
    }
    return [
        state.coefficient(at_start(cell, {gate: biases[gate].detach().double() for gate in set_by(state)}))
        for state in states
    ]


def critical_start(cell: Cell) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* does not meet ", UserWarning)  # what is asked here is less
        layer = critical_(RNN(cell, 8, 8), 20, generator=seeded())
    assert bool((gradient_by_step(layer) > 0).all())


def chrono_start(cell: Cell) -> None:
    draws = [kept_at_start(cell, chrono_(RNN(cell, 8, 256, features=None), 100, generator=seeded(k))) for k in range(4)]
    found = [float(torch.cat(kept).logit().mean()) for kept in zip(*draws, strict=True)]
    assert found == [pytest.approx(3.64, abs=0.15)] * len(found) and found  # E ln U(1, 99)


def uniform_gate_start(cell: Cell) -> None:
    found = kept_at_start(cell, uniform_gate_(RNN(cell, 8, 256, features=None), generator=seeded()))
    assert [float(kept.mean()) for kept in found] == [pytest.approx(0.5, abs=0.06)] * len(found) and found
    assert [float(kept.var()) for kept in found] == [pytest.approx(1 / 12, rel=0.2)] * len(found)


def standard_start(cell: Cell) -> None:
    layer = standard_(RNN(cell, 8, 8), generator=seeded())
    assert float(gradient_by_step(layer)[-1]) > 0
    signs = retention_signs(cell)
    assert {name: gate.bias_mean for name, gate in spec_of(layer).gates.items()} == {
        gate: signs.get(gate, 0) for gate in cell.gates
    }


def costs_or_their_reasons(cell: Cell) -> None:
    statistics = GateStatistics.of(spec_for(cell), 20.0)
    for found in (statistics.time_scales(Quantity.of(SECOND)), statistics.saturation(Quantity.of(SECOND))):
        assert found.number() is not None or "\n" not in str(found.reason())


def reads_back(cell: Cell) -> None:
    spec = spec_for(cell)
    found = spec_of(apply_(RNN(cell, 64, 64), spec, generator=seeded()))
    assert found.cell == cell
    for name, gate in spec.gates.items():
        assert found.gates[name].weight_var == pytest.approx(gate.weight_var, rel=0.1)
        assert found.gates[name].input_var == pytest.approx(gate.input_var, rel=0.1)


def diagnosed(cell: Cell) -> None:
    model = torch.nn.Sequential(RNN(cell, N, N, batch_first=True))
    report = isornn.diagnose(model, torch.randn(4, 12, N, generator=seeded()), theory=False)
    assert name_of(cell) in json.dumps(report.to_json())


def spec_file(cell: Cell) -> None:
    spec = spec_for(cell)
    assert Spec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def command_line(cell: Cell, folder: Path) -> None:
    name = name_of(cell)
    assert all(f"gate {gate} reads" in _run("cells", name) for gate in cell.gates)
    # identity matrices: an answer at once, which says that the theory has none
    unanswered = spec_for(cell).replace(f"{next(iter(cell.gates))}.ensemble", "identity")
    assert "def forward_update(" in _run("cells", name, "--kernel")
    file = folder / "spec.json"
    file.write_text(json.dumps(unanswered.to_json()), encoding="utf-8")
    found = json.loads(_run("analyze", file, "--json"))
    assert found["spec"] == unanswered.to_json()


def known_on_any_device(cell: Cell) -> None:
    """A layer may be built first where tensors have no values: what the caches then hold is the same."""
    with torch.device("meta"):
        graph, roles = graph_of.__wrapped__(cell), roles_of.__wrapped__(cell)
        assert all(parameter.is_meta for parameter in RNN(cell, inputs(cell), N).parameters())
    assert graph.reads.keys() == graph_of(cell).reads.keys() and graph.untraced == graph_of(cell).untraced
    assert (roles.retained, roles.candidates, roles.read_out) == (
        roles_of(cell).retained,
        roles_of(cell).candidates,
        roles_of(cell).read_out,
    )


def every_named_start(cell: Cell) -> None:
    for name in ("torch", "standard", "orthogonal", "glorot", "identity"):
        assert start(name, cell, N, D).cell == cell


ROWS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        closed_form_is_quadrature,
        quadrature_is_population,
        population_is_finite_network,
        chi_is_finite_networks,
        layer_is_loop,
        gradcheck,
        gradgradcheck,
        vmap,
        jacrev,
        export_with_any_length,
        compile_in_one_graph,
        data_parallel,
        copies,
        three_dtypes,
        every_named_start,
        known_on_any_device,
        critical_start,
        chrono_start,
        uniform_gate_start,
        standard_start,
        costs_or_their_reasons,
        reads_back,
        diagnosed,
        spec_file,
        command_line,
    )
}

# cells, rows that they fail, the error that says so, and why
EXCEPTIONS: tuple[tuple[str, str, type[Exception], str], ...] = (
    (
        "gru min_lstm mut1 t_mr",
        "closed_form_is_quadrature quadrature_is_population",
        NotPolynomial,
        "a function of several pre-activations, or of a pre-activation and the state or the input: the population "
        "engine answers",
    ),
    (
        "lstm cifg ur_lstm lstm_gers lstm_coupled paired",
        "closed_form_is_quadrature quadrature_is_population",
        NotPolynomial,
        "several states: the population engine answers",
    ),
    (
        "ind_rnn lru rg_lru sru drifting",
        "closed_form_is_quadrature quadrature_is_population",
        NotPolynomial,
        "units start with different parameters: the population engine draws them once per unit",
    ),
    (
        "ind_rnn t_mr",
        "population_is_finite_network chi_is_finite_networks",
        AssertionError,
        "as they start, units near w = 1 accumulate their input: E[h^2] has no stationary value",
    ),
    (
        "lru rg_lru drifting",
        "chi_is_finite_networks",
        AssertionError,
        "units start with different time constants: no one rate, the response profile by lag instead",
    ),
    (
        "vanilla",
        "chrono_start uniform_gate_start",
        SpecError,
        "no gate retains the state; `critical_` sets recurrent weights",
    ),
    (
        "t_mr scrn",
        "critical_start chrono_start uniform_gate_start",
        SpecError,
        "no gate retains the state, and no recurrent matrix reads it",
    ),
    (
        "ind_rnn lru",
        "critical_start chrono_start uniform_gate_start",
        SpecError,
        "no gate retains the state, and no recurrent matrix reads it: a new layer has its start by the law of its own "
        "parameters",
    ),
    (
        "rg_lru",
        "critical_start chrono_start uniform_gate_start",
        SpecError,
        "the law of Lambda leaves what a unit keeps in a step between 0.9 and 1 for every bias: that law is the start",
    ),
    (
        "min_lstm",
        "uniform_gate_start",
        SpecError,
        "at u_f = 0 a unit keeps at least a third in a step, whatever the bias of i",
    ),
    (
        "drifting",
        "uniform_gate_start",
        SpecError,
        "its hard gate is scaled by a parameter of 1/2, so that a unit keeps at least half in a step",
    ),
)


def exceptions() -> dict[tuple[str, str], type[Exception]]:
    return {
        (row, name): error for names, rows, error, _ in EXCEPTIONS for name in names.split() for row in rows.split()
    }


@pytest.fixture(scope="module", autouse=True)
def _process_group() -> Iterator[None]:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in ROWS for name in ALL])
def test_contract(row: str, name: str, tmp_path: Path) -> None:
    arguments = (ALL[name], tmp_path) if row == "command_line" else (ALL[name],)
    expected = exceptions().get((row, ALL[name].name))
    if expected is None:
        ROWS[row](*arguments)
    else:
        with pytest.raises(expected) as refused:
            ROWS[row](*arguments)
        assert expected is AssertionError or "\n" not in str(refused.value)


def test_the_documentation_lists_the_exceptions() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cells.md").read_text(encoding="utf-8")
    wanted = [
        f"| {', '.join(names.split())} | {', '.join(rows.split())} | {why} |" for names, rows, _, why in EXCEPTIONS
    ]
    table = page.partition("| cells | rows | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == wanted
