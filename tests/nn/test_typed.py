"""Learnware, firmware and pooling: what Balduzzi & Ghifary 2016 prove of strongly typed cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isornn import cells
from isornn.cells import SCRN, TGRU, TLSTM, TMR, TRNN, Cell, Reads, Values
from isornn.nn import RNN
from isornn.nn.typed import firm, learn, pooling_weights, symmetric_matrix, weights_over_steps

POOLING = [TRNN(), TLSTM(), TGRU()]
EACH = pytest.mark.parametrize("cell", POOLING, ids=lambda cell: cell.name)
T, B, D, N = 12, 3, 4, 6


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(*shape: int, source: torch.Generator | None = None) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=source or generator())


def layer_of(cell: Cell, **options: Any) -> RNN:
    torch.manual_seed(0)
    return RNN(cell, D, N, dtype=torch.float64, **options)


def features_of(cell: Cell) -> dict[str, Tensor]:
    source = generator()
    return {name: 2 * normal(T, B, N, source=source) for name in cell.gates}


def content(cell: Cell, u: dict[str, Tensor]) -> Tensor:
    """What theorem 1 takes the mean or the sum of."""
    return u["z"] * torch.tanh(u["o"]) if isinstance(cell, TGRU) else u["z"]


def state_of(out: Tensor, cell: Cell, u: dict[str, Tensor]) -> Tensor:
    """The T-LSTM's output is ``tanh(u_o) c``."""
    return out / torch.tanh(u["o"]) if isinstance(cell, TLSTM) else out


# -- theorem 1 --------------------------------------------------------------------------------------------------------


@EACH
def test_the_state_is_the_weighted_sum_of_features_at_every_step(cell: Cell) -> None:
    u, started = features_of(cell), 3 * normal(B, N)
    out, _ = firm(cell, u, started)
    for t in range(1, T + 1):
        now = {gate: value[:t] for gate, value in u.items()}
        summed = torch.cat([started[None], content(cell, now)])
        found = (weights_over_steps(cell, now) * summed).sum(0)
        torch.testing.assert_close(found, state_of(out[:t], cell, now)[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", [TRNN(), TLSTM()], ids=lambda cell: cell.name)
def test_the_weights_are_a_distribution_once_the_first_state_counts(cell: Cell) -> None:
    weights = weights_over_steps(cell, features_of(cell))
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(0), torch.ones(B, N, dtype=torch.float64))
    assert bool((weights[0] > 1e-12).any()), "equation 47 alone would sum to less than 1"


def test_equation_47_step_by_step() -> None:
    u = features_of(TRNN())
    f = torch.sigmoid(u["f"])
    expected = torch.ones(1, B, N, dtype=torch.float64)
    for t in range(T):
        expected = torch.cat([f[t] * expected, (1 - f[t])[None]])
    torch.testing.assert_close(weights_over_steps(TRNN(), u), expected)


def test_equation_50_has_the_next_steps_gate() -> None:
    u = features_of(TGRU())
    f = torch.sigmoid(u["f"])
    weights = weights_over_steps(TGRU(), u)
    for s in range(T):
        torch.testing.assert_close(weights[s + 1], f[s + 1 :].prod(0))
    assert bool((weights[T] == 1).all())


def test_weights_stay_exact_where_gates_close_and_open() -> None:
    """A closed gate forgets all before it, an open one keeps all: zeros and ones, and gradients that are finite."""
    f = torch.tensor([[0.0], [-800.0], [800.0]], dtype=torch.float64, requires_grad=True)
    weights = weights_over_steps(TRNN(), {"f": f, "z": torch.ones_like(f)})
    assert weights.squeeze().tolist() == [0.0, 0.0, 1.0, 0.0]
    weights[1].sum().backward()
    assert f.grad is not None and bool(f.grad.isfinite().all())


def test_scrn_weighs_the_past_geometrically() -> None:
    weights = weights_over_steps(SCRN(alpha=0.5), {"z": normal(3, 1)})
    assert weights.squeeze().tolist() == [0.125, 0.25, 0.5, 1.0]


@dataclass(frozen=True)
class Squashed(Cell):
    """A typed cell of one's own, coupled, with a squashed candidate."""

    name = "squashed"
    gates = {"k": Reads(state=False), "n": Reads(state=False)}
    remember, write = "k", "k"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        k = torch.sigmoid(u.k)
        return {"h": k * s.h + (1 - k) * torch.tanh(u.n)}


def test_a_cell_of_ones_own_is_pooled_too() -> None:
    cell = Squashed()
    u, started = features_of(cell), normal(B, N)
    out, last = firm(cell, u, started)
    found = (weights_over_steps(cell, u) * torch.cat([started[None], torch.tanh(u["n"])])).sum(0)
    torch.testing.assert_close(found, out[-1])
    torch.testing.assert_close(found, last)


# -- corollary 2 ------------------------------------------------------------------------------------------------------


def rows(weight: Tensor, loss: Tensor) -> Tensor:
    """The norm of each unit's own gradient: unit i of a typed cell has only its own rows of weights."""
    (grad,) = torch.autograd.grad(loss, weight, retain_graph=True)
    return grad.reshape(grad.shape[0], -1).norm(dim=1)


def typed_gains(cell: Cell, scale: float, steps: int) -> dict[str, Tensor]:
    """By gate, the largest gradient of a last output over the bound that corollary 2 implies.

    The weights P(s) of a mean give |dh/dU_z| <= max |x|. Gate f at step r moves the mean by
    ``f_r (1-f_r) f_(r+1) ... f_t (h_(r-1) - z_r)``, and these weights sum to at most 1: |dh/dU_f| <= 2 max|z| max|x|.
    The T-LSTM's output gate is at most 1 and its slope too: |dh/dU_o| <= max|z| max|x|.
    """
    source = generator()
    x = normal(steps, D, source=source)
    weights = {gate: (scale * normal(N, D, source=source)).requires_grad_() for gate in cell.gates}
    out, _ = firm(cell, {gate: x @ weight.T for gate, weight in weights.items()})
    largest_x, largest_z = x.norm(dim=1).max(), (x @ weights["z"].T).abs().amax(0).detach()
    bounds = {"z": largest_x.expand(N), "f": 2 * largest_z * largest_x, "o": largest_z * largest_x}
    return {gate: rows(weight, out[-1].sum()) / bounds[gate] for gate, weight in weights.items()}


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("cell", [TRNN(), TLSTM()], ids=lambda cell: cell.name)
def test_gradients_of_averages_cannot_explode(cell: Cell, scale: float) -> None:
    for gains in typed_gains(cell, scale, 400).values():
        assert bool((gains <= 1).all())


def test_the_bound_is_one_that_a_sum_breaks() -> None:
    """The T-GRU drops the factor 1 - f: with open gates its gradient grows with the number of steps."""
    x = normal(400, D).abs()
    weights = {gate: torch.full((N, D), 3.0, dtype=torch.float64, requires_grad=True) for gate in TGRU().gates}
    out, _ = firm(TGRU(), {gate: x @ weight.T for gate, weight in weights.items()})
    assert bool((rows(weights["z"], out[-1].sum()) > 10 * x.norm(dim=1).max()).all())


@pytest.mark.parametrize(("kind", "scale"), [(nn.RNN, 3.0), (nn.LSTM, 20.0)])
def test_gradients_of_classical_cells_exceed_the_bound_of_the_typed(
    kind: Callable[..., nn.RNNBase], scale: float
) -> None:
    torch.manual_seed(0)
    module = kind(D, 32, dtype=torch.float64)
    x = normal(400, D)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(scale / math.sqrt(32) * torch.randn(weight.shape, dtype=torch.float64))
    weight = module.weight_ih_l0
    assert isinstance(weight, Tensor)
    assert bool((rows(weight, module(x)[0][-1].sum()) > 1e6 * x.norm(dim=1).max()).any())


# -- theorem 3 --------------------------------------------------------------------------------------------------------

TARGETS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda h, z: h * z,
    "maximum": torch.maximum,
    "wave": lambda h, z: torch.sin(3 * h) * torch.cos(2 * z),
}


def tmr_features(width: int, h: Tensor, z: Tensor) -> Tensor:
    """The T-MR's state after inputs (h, 0, 0) and (0, z, 1): ``relu(b h + a z + c)`` for every unit's own a, b, c.

    Rows of W are (1, a, c), so the first step puts h >= 0 into every unit.
    """
    source = generator()
    a, b, c = normal(3, width, source=source)
    first = h[:, None].expand(-1, width)
    second = a * z[:, None] + c
    out, _ = firm(TMR(), {"z": torch.stack([first, second]), "scale": 2 * b})
    return out[-1]


@pytest.mark.parametrize("name", TARGETS)
def test_the_minimal_typed_cell_fits_continuous_binary_functions(name: str) -> None:
    source = generator()
    h, z = torch.rand(2, 4000, dtype=torch.float64, generator=source)
    z, target = 2 * z - 1, TARGETS[name](h, 2 * z - 1)
    fit, held_out = slice(0, 2000), slice(2000, None)
    errors = []
    for width in (8, 32, 128):
        features = tmr_features(width, h, z)
        readout = torch.linalg.lstsq(features[fit], target[fit, None], driver="gelsd").solution
        error = (features[held_out] @ readout)[:, 0] - target[held_out]
        errors.append(float(error.square().mean().sqrt()))
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.02


# -- a layer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [*POOLING, TMR(), SCRN()], ids=lambda cell: cell.name)
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}, {"before": "first"}], ids=str)
def test_a_layer_is_its_firmware_after_its_learnware(cell: Cell, options: dict[str, Any]) -> None:
    layer, x, started = layer_of(cell, **options), normal(T, B, D), normal(B, N)
    given = x.transpose(0, 1) if "batch_first" in options else x
    out, last = firm(cell, learn(layer, given), started)
    expected, state = layer(given, started[None])
    torch.testing.assert_close(out, expected.transpose(0, 1) if "batch_first" in options else expected)
    torch.testing.assert_close(last, state[0])


def test_a_single_sequence_and_the_input_before_it() -> None:
    layer, x, previous = layer_of(TLSTM()), normal(T, D), normal(D)
    out, _ = firm(layer.cell, learn(layer, x, previous))
    torch.testing.assert_close(out, layer(x, previous=previous)[0])


def test_numbers_per_unit_may_be_parametrised() -> None:
    layer, x = layer_of(TMR()), normal(T, B, D)
    nn.utils.parametrize.register_parametrization(layer, "scale_l0", nn.Sigmoid())
    torch.testing.assert_close(firm(layer.cell, learn(layer, x))[0], layer(x)[0])


@EACH
def test_pooling_weights_of_a_layer(cell: Cell) -> None:
    layer, x = layer_of(cell), normal(T, B, D)
    started = normal(B, N)
    u = learn(layer, x)
    found = (pooling_weights(layer, x) * torch.cat([started[None], content(cell, u)])).sum(0)
    torch.testing.assert_close(found, layer(x, started[None])[1][0])


def test_learnware_may_be_deep() -> None:
    @dataclass(frozen=True)
    class Deep(Cell):
        name = "deep"
        gates = {"a": Reads(state=False), "z": Reads(input=False)}

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return torch.relu(u.a)

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"h": 0.9 * s.h + u.z}

    layer, x = layer_of(Deep()), normal(T, B, D)
    torch.testing.assert_close(firm(layer.cell, learn(layer, x))[0], layer(x)[0])


def test_several_states() -> None:
    @dataclass(frozen=True)
    class Twice(Cell):
        name = "twice"
        states = ("h", "c")
        gates = {"z": Reads(state=False)}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            c = 0.5 * s.c + u.z
            return {"h": 0.5 * s.h + c, "c": c}

    layer, x, started = layer_of(Twice()), normal(T, B, D), tuple(normal(2, B, N))
    out, last = firm(layer.cell, learn(layer, x), started)
    expected, state = layer(x, tuple(value[None] for value in started))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(last, tuple(value[0] for value in state))
    with pytest.raises(ValueError, match="state: 1 tensors are not allowed; twice has h, c"):
        firm(layer.cell, learn(layer, x), started[0])
    with pytest.raises(ValueError, match="cell: twice is not allowed; .* one state enters affinely"):
        weights_over_steps(layer.cell, learn(layer, x))


# -- symmetric matrices -----------------------------------------------------------------------------------------------


def test_symmetric_matrices_pool_in_their_own_basis() -> None:
    """Equation 12: ``h_t = sum_s P D^(t-s) P^T W x_s``."""
    basis, scale = torch.linalg.qr(normal(N, N)).Q, normal(N).tanh()
    layer, x = layer_of(cells.Vanilla("identity"), bias=False), normal(T, B, D)
    tensors = layer.gate_parameters("h")
    assert tensors.recurrent is not None and tensors.input is not None
    with torch.no_grad():
        tensors.recurrent.copy_(symmetric_matrix(basis, scale))
    z = x @ tensors.input.T @ basis
    powers = scale ** torch.arange(T - 1, -1, -1, dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(layer(x)[0][-1], (powers * z).sum(0) @ basis.T)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals_say_why() -> None:
    x = normal(T, B, D)
    with pytest.raises(ValueError, match="strongly typed cells only, and lstm is weakly typed(.|\n)*W_g reads h"):
        learn(layer_of(cells.LSTM()), x)
    with pytest.raises(ValueError, match="strongly typed cells only, and vanilla is not typed"):
        firm(cells.Vanilla(), {"h": x})
    with pytest.raises(ValueError, match="one layer and direction"):
        learn(layer_of(TRNN(), num_layers=2), x)
    with pytest.raises(ValueError, match="weights that are the same at all steps"):
        learn(layer_of(TRNN(), untied=True), x)
    with pytest.raises(ValueError, match="previous: t_rnn reads no previous input"):
        learn(layer_of(TRNN()), x, x[0])
    with pytest.raises(ValueError, match="features: z missing; t_rnn has f, z"):
        firm(TRNN(), {"f": x})
    with pytest.raises(ValueError, match=r"features: shape \(0, 5, 3\) is not allowed; .* at least one step"):
        firm(TRNN(), {"f": torch.zeros(0, 5, 3), "z": torch.zeros(0, 5, 3)})
    with pytest.raises(ValueError, match="cell: t_mr is not allowed; .* one state enters affinely"):
        weights_over_steps(TMR(), learn(layer_of(TMR()), x))


def test_an_input_that_enters_pointwise_is_no_learned_feature() -> None:
    @dataclass(frozen=True)
    class Pointwise(TRNN):
        name = "pointwise"
        input_enters_pointwise = True

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return {"h": self.sigma(u.f) * s.h + u.z * x}

    layer = RNN(Pointwise(), N, N, dtype=torch.float64)
    with pytest.raises(ValueError, match="input of pointwise enters pointwise"):
        learn(layer, normal(T, B, N))
