"""Cells of later papers: their layers against the papers' equations, written out in loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from isornn.cells import Cell, Gate, OptionError, ParametersSpread, Spec, Values, drawn_parameters, initial_parameters
from isornn.cells.cifg import CIFG
from isornn.cells.ind_rnn import IndRNN
from isornn.cells.linear import LRU, RGLRU
from isornn.cells.mgu import MGU
from isornn.cells.min_rnn import MinGRU, MinLSTM
from isornn.cells.mut1 import MUT1
from isornn.cells.refine import URGRU, URLSTM
from isornn.cells.sru import SRU
from isornn.cells.typed import TMR, TRNN
from isornn.nn import RNN
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze
from isornn.theory.population.drawn_parameters import with_drawn_parameters
from isornn.theory.population.engine import Population

D, N, B, T = 5, 6, 3, 11
sigmoid, tanh = torch.sigmoid, torch.tanh


def layer_of(cell: Cell, inputs: int = D) -> RNN:
    torch.manual_seed(0)
    layer = RNN(cell, inputs, N, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith(("weight", "bias")):
                parameter.mul_(2.0)
    return layer


def sequence(inputs: int = D) -> Tensor:
    return torch.randn(T, B, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class Lines:
    """``lines.f(x)`` is ``U_f x + b_f``, ``lines.f(x, h)`` adds ``W_f h``: the affine maps that papers write out."""

    def __init__(self, layer: RNN) -> None:
        self._layer = layer

    def __getattr__(self, gate: str) -> Callable[..., Tensor]:
        own = self._layer.gate_parameters(gate)

        def line(x: Tensor, h: Tensor | None = None) -> Tensor:
            assert own.input is not None
            total = x @ own.input.T + sum(own.biases)
            if h is not None:
                assert own.recurrent is not None
                total = total + h @ own.recurrent.T
            return total

        return line


def assert_is(layer: RNN, x: Tensor, expected: list[Tensor]) -> None:
    torch.testing.assert_close(layer(x)[0], torch.stack(expected), rtol=1e-10, atol=1e-10)


def zeros() -> Tensor:
    return torch.zeros(B, N, dtype=torch.float64)


def test_mgu_is_equations_6a_to_6c() -> None:
    layer, x, h, out = layer_of(MGU()), sequence(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        f = sigmoid(lines.f(x_t, h))
        candidate = tanh(lines.n(x_t, f * h))
        h = (1 - f) * h + f * candidate
        out.append(h)
    assert_is(layer, x, out)


def test_mut1_is_that_of_the_search() -> None:
    layer, x, h, out = layer_of(MUT1(), N), sequence(N), zeros(), []
    lines, own = Lines(layer), layer.gate_parameters("n")
    assert own.input is None and own.recurrent is not None
    for x_t in x:
        z, r = sigmoid(lines.z(x_t)), sigmoid(lines.r(x_t, h))
        candidate = tanh((r * h) @ own.recurrent.T + sum(own.biases) + tanh(x_t))
        h = candidate * z + h * (1 - z)
        out.append(h)
    assert_is(layer, x, out)


def test_cifg_is_greffs_lstm_with_one_gate_for_two() -> None:
    layer, x, y, c, out = layer_of(CIFG()), sequence(), zeros(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        f = sigmoid(lines.f(x_t, y))
        i = 1 - f
        c = tanh(lines.g(x_t, y)) * i + c * f
        y = tanh(c) * sigmoid(lines.o(x_t, y))
        out.append(y)
    assert_is(layer, x, out)


def effective(f: Tensor, r: Tensor) -> Tensor:
    """The refine gate as the paper's first form has it: ``g = f + f (1 - f) (2 r - 1)``."""
    return f + f * (1 - f) * (2 * r - 1)


def test_ur_lstm() -> None:
    layer, x, h, c, out = layer_of(URLSTM()), sequence(), zeros(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        g = effective(sigmoid(lines.f(x_t, h)), sigmoid(lines.r(x_t, h)))
        c = g * c + (1 - g) * tanh(lines.z(x_t, h))
        h = sigmoid(lines.o(x_t, h)) * tanh(c)
        out.append(h)
    assert_is(layer, x, out)


def test_ur_gru() -> None:
    layer, x, h, out = layer_of(URGRU()), sequence(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        g = effective(sigmoid(lines.f(x_t, h)), sigmoid(lines.r(x_t, h)))
        candidate = tanh(lines.n(x_t, sigmoid(lines.q(x_t, h)) * h))
        h = g * h + (1 - g) * candidate
        out.append(h)
    assert_is(layer, x, out)


def test_min_gru() -> None:
    layer, x, h, out = layer_of(MinGRU()), sequence(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        z = sigmoid(lines.z(x_t))
        h = (1 - z) * h + z * lines.n(x_t)
        out.append(h)
    assert_is(layer, x, out)


def test_min_lstm() -> None:
    layer, x, h, out = layer_of(MinLSTM()), sequence(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        f, i = sigmoid(lines.f(x_t)), sigmoid(lines.i(x_t))
        h = f / (f + i) * h + i / (f + i) * lines.n(x_t)
        out.append(h)
    assert_is(layer, x, out)


@pytest.mark.parametrize("cell", [MinGRU(), MinLSTM()], ids=lambda cell: cell.name)
def test_the_parallel_form(cell: Cell) -> None:
    """``h_t = sum_k (prod_(j>k) a_j) b_k``: the paper's parallel scan of ``h = a h + b``."""
    layer, x = layer_of(cell), sequence()
    lines = Lines(layer)
    if isinstance(cell, MinGRU):
        keep = 1 - sigmoid(lines.z(x))
    else:
        f, i = sigmoid(lines.f(x)), sigmoid(lines.i(x))
        keep = f / (f + i)
    product = keep.cumprod(0)
    assert_is(layer, x, list(product * ((1 - keep) * lines.n(x) / product).cumsum(0)))


def test_min_lstm_with_both_gates_closed_is_finite() -> None:
    far = torch.tensor([-300.0, -110.0], requires_grad=True)
    new = MinLSTM().update(Values(h=torch.ones(2)), Values(f=far, i=far.flip(0), n=torch.zeros(2)), None)["h"]
    new.sum().backward()
    torch.testing.assert_close(new.detach(), torch.tensor([0.0, 1.0]))
    assert far.grad is not None and bool(far.grad.isfinite().all())


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 5e-7), (torch.float64, 1e-15)])
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_min_lstm_keeps_its_precision(scale: float, dtype: torch.dtype, error: float) -> None:
    u_f, u_i = scale * torch.randn(2, 1000, dtype=dtype, generator=torch.Generator().manual_seed(0))

    def kept_and_slopes(f: Tensor, i: Tensor, keep: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [f.clone().requires_grad_(), i.clone().requires_grad_()]
        kept = keep(*leaves)
        return [kept.detach(), *torch.autograd.grad(kept.sum(), leaves)]

    def by_update(f: Tensor, i: Tensor) -> Tensor:
        return MinLSTM().update(Values(h=torch.ones_like(f)), Values(f=f, i=i, n=torch.zeros_like(f)), None)["h"]

    def by_logarithms(f: Tensor, i: Tensor) -> Tensor:
        return torch.softmax(torch.nn.functional.logsigmoid(torch.stack([f, i])), 0)[0]

    found = kept_and_slopes(u_f, u_i, by_update)
    expected = kept_and_slopes(u_f.double(), u_i.double(), by_logarithms)
    for ours, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=error)


def test_min_gru_is_the_t_rnn_with_the_gates_sign_turned() -> None:
    z, n, h = torch.randn(3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours = MinGRU().update(Values(h=h), Values(z=z, n=n), None)["h"]
    torch.testing.assert_close(ours, TRNN().update(Values(h=h), Values(f=-z, z=n), None)["h"])


def test_sru_is_equations_1_to_4() -> None:
    layer, x, c, out = layer_of(SRU()), sequence(), zeros(), []
    lines = Lines(layer)
    v_f, v_r = layer.v_f_l0, layer.v_r_l0
    for x_t in x:
        f, r = sigmoid(lines.f(x_t) + v_f * c), sigmoid(lines.r(x_t) + v_r * c)
        c = f * c + (1 - f) * lines.z(x_t)
        out.append(r * c + (1 - r) * lines.p(x_t))
    assert_is(layer, x, out)


def test_rg_lru() -> None:
    layer, x, h, out = layer_of(RGLRU(), N), sequence(N), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        r, i = sigmoid(lines.r(x_t)), sigmoid(lines.i(x_t))
        a = torch.exp(-8 * torch.log1p(layer.Lambda_l0.exp()) * r)
        h = a * h + torch.sqrt(1 - a**2) * (i * x_t)
        out.append(h)
    assert_is(layer, x, out)


def test_ind_rnn_is_equation_3_and_the_minimal_typed_cell() -> None:
    layer, x, h, out = layer_of(IndRNN()), sequence(), zeros(), []
    lines = Lines(layer)
    for x_t in x:
        h = torch.relu(lines.z(x_t) + layer.w_l0 * h)
        out.append(h)
    assert_is(layer, x, out)
    s, u, w = torch.randn(3, N, generator=torch.Generator().manual_seed(0))
    ours = IndRNN().update(Values(h=s), Values(z=u, w=w), None)
    torch.testing.assert_close(ours, TMR().update(Values(h=s), Values(z=u, scale=w), None))


def test_lru_is_the_complex_recurrence() -> None:
    layer, x = layer_of(LRU()), sequence()
    matrix = torch.complex(*(layer.gate_parameters(part).input for part in ("re", "im")))
    bias = torch.complex(*(layer.gate_parameters(part).biases[0] for part in ("re", "im")))
    eigenvalue = torch.exp(torch.complex(-layer.nu_log_l0.exp(), layer.theta_log_l0.exp()))
    gamma, state, out = layer.gamma_log_l0.exp(), torch.zeros(B, N, dtype=torch.complex128), []
    for x_t in x:
        state = eigenvalue * state + gamma * (x_t.to(matrix.dtype) @ matrix.T + bias)
        out.append(state.real)
    assert_is(layer, x, out)
    re, im = layer(x)[1]
    torch.testing.assert_close(torch.complex(re[0], im[0]), state, rtol=1e-10, atol=1e-10)


def test_two_real_units_give_a_complex_read_out_both_parts() -> None:
    """Units with the same lambda and the input rows (B_re, B_im) and (-B_im, B_re): Re x and -Im x."""
    layer = layer_of(LRU())
    re, im = layer.gate_parameters("re"), layer.gate_parameters("im")
    with torch.no_grad():
        for part, source, sign in ((re, im, -1), (im, re, 1)):
            assert part.input is not None and source.input is not None
            part.input[1], part.biases[0][1] = sign * source.input[0], sign * source.biases[0][0]
        for name in ("nu_log", "theta_log", "gamma_log"):
            parameter = getattr(layer, f"{name}_l0")
            parameter[1] = parameter[0]
    out, (_, imaginary) = layer(sequence())
    torch.testing.assert_close(out[-1, :, 1], -imaginary[0, :, 0])


def test_the_ring() -> None:
    cell = LRU(low=0.5, high=0.9, max_phase=1.0)
    start = drawn_parameters(cell, 100_000, torch.Generator().manual_seed(0))
    modulus, phase = (-start["nu_log"].exp()).exp(), start["theta_log"].exp()
    assert modulus.min() >= 0.5 and modulus.max() <= 0.9
    assert modulus.square().mean().item() == pytest.approx((0.25 + 0.81) / 2, abs=1e-3)
    assert (phase.min().item(), phase.max().item(), phase.mean().item()) == pytest.approx((0, 1, 0.5), abs=0.01)
    assert torch.corrcoef(torch.stack([modulus, phase]))[0, 1].abs() < 0.02
    torch.testing.assert_close(start["gamma_log"].exp(), (1 - modulus.square()).sqrt())


def test_the_starts_of_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.exp(-8 * torch.nn.functional.softplus(drawn_parameters(RGLRU(), 100_000, generator)["Lambda"]))
    assert (a.min().item(), a.mean().item(), a.max().item()) == pytest.approx((0.9, 0.9495, 0.999), abs=1e-3)
    v = drawn_parameters(SRU(), 100_000, generator)
    assert v["v_f"].square().mean().item() == pytest.approx(0.5, abs=0.01)
    assert torch.corrcoef(torch.stack(list(v.values())))[0, 1].abs() < 0.02
    w = drawn_parameters(IndRNN(low=-0.5, high=0.5), 100_000, generator)["w"]
    assert (w.min().item(), w.max().item()) == pytest.approx((-0.5, 0.5), abs=1e-3)


def test_every_layer_and_direction_draws_its_own() -> None:
    layer = RNN(IndRNN(), D, N, num_layers=2, bidirectional=True)
    drawn = torch.stack([getattr(layer, name) for name in ("w_l0", "w_l0_reverse", "w_l1", "w_l1_reverse")])
    assert len(drawn.flatten().unique()) == 4 * N


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LRU, {"low": 0.9, "high": 0.5}, "0 <= low < high < 1"),
        (LRU, {"high": 1.0}, "0 <= low < high < 1"),
        (LRU, {"max_phase": 0.0}, "max_phase > 0"),
        (LRU, {"max_phase": math.inf}, "max_phase > 0, finite"),
        (IndRNN, {"low": 1.0, "high": 0.5}, "low <= high"),
        (IndRNN, {"high": math.inf}, "finite"),
    ],
)
def test_options_outside_their_range(kind: type[Cell], options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        kind(**options)


def lru_spec(cell: Cell) -> Spec:
    return Spec(cell, {"re": Gate(input_var=0.5), "im": Gate(input_var=0.5)})


class Blown(LRU):
    """Without the normalisation."""

    name = "blown"

    @property
    def parameters(self):
        return {**super().parameters, "gamma_log": 0.0}


@pytest.mark.parametrize("cell", [LRU(low=0.5, high=0.95), Blown(low=0.5, high=0.95)], ids=["gamma", "plain"])
def test_proposition_3_3_of_the_lru(cell: LRU) -> None:
    """``E|x|^2 = E|B u|^2 ln((1 - low^2)/(1 - high^2)) / (high^2 - low^2)``, and ``E|B u|^2`` with gamma."""
    blown = math.log((1 - cell.low**2) / (1 - cell.high**2)) / (cell.high**2 - cell.low**2)
    exact = blown if isinstance(cell, Blown) else 1.0
    found = Population(lru_spec(cell), generator=torch.Generator().manual_seed(0))
    stationary = found.settle("identical")
    theory = sum(found.moments_of(stationary, part).second_moment.item() for part in ("re", "im"))
    assert theory == pytest.approx(exact, rel=0.01)
    finite = simulate(
        lru_spec(cell),
        width=200,
        steps=20,
        warmup=60,
        networks=12,
        tangents=1,
        generator=torch.Generator().manual_seed(0),
    ).second_moment
    gap = 2 * finite.value.mean() - exact
    assert abs(gap.item()) < 4 * 2 * finite.stderr.mean().item()


def test_the_memory_of_the_lru_by_lag() -> None:
    """``E|dx_t|^2 = E|lambda|^(2t)``; the unit is displaced in both parts, so E[d re_t^2] is the same of 1."""
    low, high = 0.5, 0.95
    answer = analyze(lru_spec(LRU(low=low, high=high)), length=30)
    t = torch.arange(31, dtype=torch.float64)
    exact = (high ** (2 * t + 2) - low ** (2 * t + 2)) / ((t + 1) * (high**2 - low**2))
    torch.testing.assert_close(answer.profile, exact, rtol=0.02, atol=1e-3)
    assert answer.fixed_point.second_moment.number() == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("cell", "gates"),
    [
        (IndRNN(high=0.8), {"z": Gate(input_var=1.0, bias_mean=0.3)}),
        (SRU(), {"f": Gate(input_var=1.0, bias_mean=1.0), "r": Gate(input_var=1.0), "z": Gate(input_var=2.0)}),
        (RGLRU(), {"r": Gate(input_var=1.0, bias_mean=2.0), "i": Gate(input_var=1.0)}),
    ],
    ids=["ind_rnn", "sru", "rg_lru"],
)
def test_the_theory_draws_each_units_parameters_as_networks_do(cell: Cell, gates: dict[str, Gate]) -> None:
    spec = Spec(cell, gates)
    theory = analyze(spec, length=8)
    finite = simulate(
        spec,
        width=150,
        steps=20,
        warmup=60,
        networks=12,
        tangents=1,
        initial_variance=theory.fixed_point.second_moment.number(),
        generator=torch.Generator().manual_seed(0),
    )
    for name in ("mean", "second_moment"):
        measured, exact = getattr(finite, name), getattr(theory.fixed_point, name)
        gap = measured.value.mean() - exact.value
        assert gap.abs() < 4 * (measured.stderr.mean() + exact.stderr), name


def test_one_value_for_all_units_is_refused() -> None:
    with pytest.raises(ParametersSpread, match="ind_rnn: units start with different w"):
        initial_parameters(IndRNN())


def test_biases_redrawn_beside_parameters_that_are_not() -> None:
    spec = Spec(IndRNN(high=0.5), {"z": Gate(input_var=1.0, bias_var=0.1)})
    with pytest.raises(TheoryMissing, match='biases = "fixed"'):
        with_drawn_parameters(spec)
    assert 'biases = "fixed"' in (analyze(spec).chi.reason() or "")
    assert analyze(spec.replace("biases", "fixed"), length=4).fixed_point.second_moment.number() > 0
