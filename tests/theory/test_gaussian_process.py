"""The Gaussian-process kernel: against networks, brute force, published formulas, and what a kernel has to be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from checked import CHO, PEEPHOLE, law
from isornn.cells import (
    GRU,
    LSTM,
    TLSTM,
    Cell,
    Gate,
    Input,
    Minimal,
    Reads,
    Spec,
    Values,
    Vanilla,
    initial_parameters,
)
from isornn.cells.bias_laws import BiasLaw
from isornn.nn.random_network import RandomNetwork
from isornn.nn.step import step
from isornn.tasks import load_digits
from isornn.theory import TheoryMissing, kernel, kernel_estimate
from isornn.theory.tied.moments import sampled_output_moments
from isornn.theory.tied.paths import TiedLaws, root

VANILLA = Spec(Vanilla(), law(h=(2, 0.5, 0.1, 0.2)))
MINIMAL = Spec(Minimal(), law(u=(3, 2, 0.5, 1)))
GRU_SPEC = Spec(GRU(), law(r=(2, 0.5, 0, 0), z=(3, 1, 0, 1), nx=(0, 0.5, 0, 0), nh=(4, 0, 0, 0)))
LSTM_SPEC = Spec(LSTM(), law(i=(2, 1, 0, 0.5), f=(4, 0.5, 0.1, 2), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5)))
TLSTM_SPEC = Spec(
    TLSTM(), {"f": Gate(0, 1, 0.5, 1), "z": Gate(0, 1, 1, bias_var=0.2), "o": Gate(0, 1, 0.5, bias_mean=0.5)}
)
CHRONO = Spec(
    LSTM(),
    {
        "i": Gate(1, 1, bias_law=BiasLaw("chrono", 1.0, 9.0, sign=-1)),
        "f": Gate(1, 0.5, bias_law=BiasLaw("chrono", 1.0, 9.0)),
        "g": Gate(1, 1),
        "o": Gate(1, 1),
    },
)
ORTHOGONAL = Spec(
    GRU(),
    {
        "r": Gate(2, 0.5, ensemble="orthogonal"),
        "z": Gate(3, 1, bias_mean=1, ensemble=0.5),
        "nx": Gate(0, 0.5),
        "nh": Gate(4, ensemble="orthogonal"),
    },
)
RELU = Spec(Vanilla("relu"), law(h=(1.5, 0.7, 0.3, 0)))


@cache
def digits(count: int) -> Tensor:
    """Handwritten digits as 8 rows of 8 pixels."""
    return load_digits().train_images[:count].reshape(count, 8, 8).double()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- networks ---------------------------------------------------------------------------------------------------------


def network_outputs(spec: Spec, x: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """Outputs ``(T, B, N)`` of one tied network; an input that enters pointwise goes through a random feature map."""
    cell = spec.cell
    if cell.input_enters_pointwise:
        x = x @ torch.randn(x.shape[-1], width, dtype=torch.float64, generator=generator) / math.sqrt(x.shape[-1])
    network = RandomNetwork.drawn(spec, width, x.shape[-1], generator)
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    states = Values(**{name: torch.zeros(len(x), width, dtype=torch.float64) for name in cell.states})

    def times(matrix: Tensor | None, value: Tensor) -> Tensor:
        return torch.zeros(len(x), width, dtype=torch.float64) if matrix is None else value @ matrix.T

    shown = []
    for t in range(x.shape[1]):
        drive = {
            gate: network.biases[gate]
            + times(network.inputs[gate], x[:, t])
            + times(network.previous[gate], before[:, t])
            for gate in cell.gates
        }
        states, u = step(
            cell,
            states,
            drive,
            lambda gate, r: times(network.recurrent[gate], r),
            x[:, t] if cell.input_enters_pointwise else None,
            initial_parameters(cell),
        )
        shown.append(cell.output(states, u))
    return torch.stack(shown)


@pytest.mark.parametrize(
    "spec",
    [VANILLA, MINIMAL, GRU_SPEC, LSTM_SPEC, CHO, PEEPHOLE, TLSTM_SPEC, CHRONO, ORTHOGONAL],
    ids=["vanilla", "minimal", "gru", "lstm", "gru_cho", "peephole", "t_lstm", "chrono", "orthogonal"],
)
def test_it_is_the_covariance_of_networks_outputs_on_digits(spec: Spec) -> None:
    """E[o_a o_b] by 24 networks of 256 units, both readouts; networks of that width are off by some 1/256."""
    x, generator = digits(3), seeded(5)
    last, mean = [], []
    for _ in range(24):
        o = network_outputs(spec, x, 256, generator)
        last.append(o[-1] @ o[-1].T / 256)
        mean.append(o.mean(0) @ o.mean(0).T / 256)
    for readout, samples in (("last", last), ("mean", mean)):
        found = kernel_estimate(spec, x, readout=readout, units=2048)  # type: ignore[arg-type]
        measured = torch.stack(samples)
        noise = (found.stderr**2 + measured.var(0) / len(measured)).sqrt()
        assert bool(((found.value - measured.mean(0)).abs() <= 3.5 * noise).all()), readout
        assert bool((found.stderr <= 0.03 * found.value.diagonal().max()).all())


@pytest.mark.parametrize("spec", [GRU_SPEC, LSTM_SPEC.replace("f.bias_var", 0.0)], ids=["gru", "lstm"])
def test_a_replicate_is_in_law_a_network_of_as_many_units(spec: Spec) -> None:
    """At 8 units, where outputs' second moments vary much from network to network: their mean and mean square."""
    x, generator = digits(2)[:, 2:5], seeded(1)
    gram = torch.einsum("atd,bsd->tasb", x, x) / 8
    found = sampled_output_moments(TiedLaws.of(spec), gram, False, 8, 8000, generator)
    o = torch.stack([network_outputs(spec, x, 8, generator)[-1] for _ in range(800)])
    measured = o @ o.mT / 8
    for one, other in ((found, measured), (found.square(), measured.square())):
        noise = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
        assert bool(((one.mean(0) - other.mean(0)).abs() <= 3.5 * noise).all())


# -- closed forms and published formulas ------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErfRNN(Cell):
    """The network of Yang 2019's first kernel."""

    name = "erf_rnn"
    gates = {"h": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.erf(u.h)}


@dataclass(frozen=True)
class ErfGRU(Cell):
    """The network of Yang 2019's second kernel: Cho's GRU with gates (1 + erf) / 2; z lets new content in."""

    name = "erf_gru"
    gates = {"z": Reads(), "r": Reads(), "n": Reads()}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return (1 + torch.erf(u.r)) / 2 * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = (1 + torch.erf(u.z)) / 2
        return {"h": (1 - z) * s.h + z * torch.erf(u.n)}


def agrees(spec: Spec, x: Tensor, exact: Tensor, readout: str = "last") -> None:
    """Four estimates of 8 replicates together, since 8 alone tell their own spread roughly."""
    found = [
        kernel_estimate(spec, x, readout=readout, units=2048, generator=seeded(seed))  # type: ignore[arg-type]
        for seed in range(4)
    ]
    value = torch.stack([one.value for one in found]).mean(0)
    error = torch.stack([one.stderr for one in found]).square().sum(0).sqrt() / len(found)
    assert bool((error > 0).all())
    assert bool((error <= 0.01 * exact.diagonal().max()).all())
    assert bool(((value - exact).abs() <= 3.5 * error).all())


def erf_moments(covariance: Tensor) -> Tensor:
    """``E[erf erf] = 2/pi arcsin(2 c_ab / sqrt((1 + 2 c_aa)(1 + 2 c_bb)))``. Source: Williams 1997."""
    scale = (1 + 2 * covariance.diagonal()).sqrt()
    return 2 / math.pi * torch.arcsin(2 * covariance / (scale[:, None] * scale))


def unrolled(x: Tensor, weight: float, drive: float, bias: float, moments: Callable[[Tensor], Tensor]) -> Tensor:
    """States' second moments at all steps of all sequences together, ``(T B, T B)``, grown from the first step on."""
    steps, count = x.shape[1], x.shape[0]
    tokens = x.movedim(1, 0).reshape(steps * count, -1)
    gram = drive * tokens @ tokens.T / x.shape[-1] + bias
    states = torch.zeros_like(gram)
    for _ in range(steps):
        before = torch.zeros_like(gram)
        before[count:, count:] = states[:-count, :-count]
        states = moments(weight * before + gram)
    return states


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_the_erf_network_has_yangs_kernel(readout: str) -> None:
    x = digits(3)[:, :5]
    whole = unrolled(x, 1.5, 0.8, 0.2, erf_moments).reshape(5, 3, 5, 3)
    exact = whole[-1, :, -1] if readout == "last" else whole.mean((0, 2))
    agrees(Spec(ErfRNN(), law(h=(1.5, 0.8, 0.2, 0))), x, exact, readout)


def gaussian_expectation(covariance: Tensor, factors: Sequence[Callable[[Tensor], Tensor]], nodes: int) -> float:
    """``E[prod_i f_i(u_i)]`` of a centred Gaussian u, by a product of Gauss-Hermite rules."""
    z, w = (torch.from_numpy(part) for part in np.polynomial.hermite_e.hermegauss(nodes))
    values, vectors = torch.linalg.eigh(covariance)
    grid = torch.stack(torch.meshgrid(*[z] * len(factors), indexing="ij")).reshape(len(factors), -1)
    weight = torch.stack(torch.meshgrid(*[w / w.sum()] * len(factors), indexing="ij")).reshape(len(factors), -1).prod(0)
    u = vectors * values.clamp(min=0).sqrt() @ grid
    return float((torch.stack([f(row) for f, row in zip(factors, u, strict=True)]).prod(0) * weight).sum())


def yangs_gru(x: Tensor, laws: dict[str, Gate]) -> Tensor:
    """``E[h_a h_b]`` after the last step, as Yang 2019 writes it out:

    h^t = sum_a z^a (1 - z^(a+1)) ... (1 - z^t) erf(n^a), whose gate and content parts are independent, and
    Cov(n^t, n^s) = weight_var E[h^(t-1) h^(s-1)] E[r^t r^s] + input part + bias_var.
    """
    count, steps = x.shape[:2]
    places = [(i, t) for t in range(steps) for i in range(count)]
    zero = {
        (p, q): 0.0 for p in [(i, -1) for i in range(count)] + places for q in [(i, -1) for i in range(count)] + places
    }
    states, content = dict(zero), dict(zero)
    gates: dict[str, dict[Any, float]] = {"z": {}, "r": {}, "n": {}}

    def opened(u: Tensor) -> Tensor:
        return (1 + torch.erf(u)) / 2

    def shut(u: Tensor) -> Tensor:
        return (1 - torch.erf(u)) / 2

    def covariance(gate: str, here: list[tuple[int, int]]) -> Tensor:
        return torch.tensor([[gates[gate][p, q] for q in here] for p in here], dtype=torch.float64)

    for late in range(steps):
        news = [(p, q) for p in places for q in places if max(p[1], q[1]) == late]
        for p, q in news:
            (i, t), (j, s) = p, q
            past, input = states[(i, t - 1), (j, s - 1)], float(x[i, t] @ x[j, s]) / x.shape[-1]
            for gate in ("z", "r"):
                own = laws[gate]
                gates[gate][p, q] = own.weight_var * past + own.input_var * input + own.bias_var  # type: ignore[assignment]
        for p, q in news:
            (i, t), (j, s) = p, q
            past, input = states[(i, t - 1), (j, s - 1)], float(x[i, t] @ x[j, s]) / x.shape[-1]
            reset = gaussian_expectation(covariance("r", [p, q]), [opened, opened], 24)
            own = laws["n"]
            gates["n"][p, q] = own.weight_var * past * reset + own.input_var * input + own.bias_var  # type: ignore[assignment]
        for p, q in news:
            content[p, q] = float(erf_moments(covariance("n", [p, q]))[0, 1])
        for (i, t), (j, s) in news:
            total = 0.0
            for a in range(t + 1):
                for b in range(s + 1):
                    here = [(i, k) for k in range(a, t + 1)] + [(j, k) for k in range(b, s + 1)]
                    factors = [opened, *[shut] * (t - a), opened, *[shut] * (s - b)]
                    kept = gaussian_expectation(covariance("z", here), factors, 12 if len(here) < 6 else 8)
                    total += kept * content[(i, a), (j, b)]
            states[(i, t), (j, s)] = total
    return torch.tensor([[states[(i, steps - 1), (j, steps - 1)] for j in range(count)] for i in range(count)])


def test_the_erf_gru_has_yangs_kernel() -> None:
    x = digits(2)[:, 2:5]
    laws = law(z=(0.8, 0.5, 0.1, 0), r=(1.0, 0.6, 0.2, 0), n=(2.0, 1.0, 0.1, 0))
    agrees(Spec(ErfGRU(), laws), x, yangs_gru(x, laws))


def relu_moments(covariance: Tensor) -> Tensor:
    """The arc-cosine kernel by its integral ``s_a s_b int cos(t) cos(theta - t) dt / pi``, midpoint rule."""
    scale = covariance.diagonal().sqrt()
    angle = torch.arccos((covariance / (scale[:, None] * scale)).clamp(-1, 1))
    # relu relu is positive on the directions t that make an acute angle with both, from angle - pi/2 to pi/2.
    parts = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    width = math.pi - angle
    t = (angle - math.pi / 2)[..., None] + width[..., None] * parts
    integral = (t.cos() * (t - angle[..., None]).cos()).mean(-1) * width
    return scale[:, None] * scale * integral / math.pi


@pytest.mark.parametrize("readout", ["last", "mean"])
def test_relu_is_the_arc_cosine_kernel(readout: str) -> None:
    x = digits(3)[:, :4]
    whole = unrolled(x, 1.5, 0.7, 0.3, relu_moments).reshape(4, 3, 4, 3)
    exact = whole[-1, :, -1] if readout == "last" else whole.mean((0, 2))
    found = kernel_estimate(RELU, x, readout=readout)  # type: ignore[arg-type]
    assert torch.allclose(found.value, exact, rtol=1e-6)
    assert not bool(found.stderr.any())


@pytest.mark.parametrize(("name", "phi"), [("tanh", torch.tanh), ("sigmoid", torch.sigmoid)])
@pytest.mark.parametrize("weight", [0.5, 9.0])
def test_smooth_transitions_are_exact(name: str, phi: Callable[[Tensor], Tensor], weight: float) -> None:
    """Against a product of trapezoid rules over both pre-activations."""
    z = torch.linspace(-9, 9, 601, dtype=torch.float64)
    w = torch.exp(-z.square() / 2)
    w = w / w.sum()

    def moments(covariance: Tensor) -> Tensor:
        found = torch.empty_like(covariance)
        for a in range(len(covariance)):
            for b in range(len(covariance)):
                s, t = covariance[a, a].sqrt(), covariance[b, b].sqrt()
                c = (covariance[a, b] / (s * t)).clamp(-1, 1)
                other = c * z[:, None] + (1 - c.square()).sqrt() * z
                found[a, b] = w @ (phi(0.4 + s * z)[:, None] * phi(0.4 + t * other)) @ w
        return found

    x = digits(2)[:, 1:4]
    exact = unrolled(x, weight, 1.0, 0.1, moments).reshape(3, 2, 3, 2)[-1, :, -1]
    found = kernel_estimate(Spec(Vanilla(name), law(h=(weight, 1.0, 0.1, 0.4))), x)
    assert not bool(found.stderr.any())
    assert torch.allclose(found.value, exact, rtol=1e-10)


def test_a_linear_network_is_known_in_closed_form() -> None:
    """W^k U x_(t-k) are orthogonal at different k, and so are W^k b."""
    x = digits(3)
    inner = torch.einsum("atd,btd->abt", x, x) / 8
    decay = 0.8 ** torch.arange(7, -1, -1, dtype=torch.float64)
    exact = (0.5 * inner * decay).sum(-1) + 0.3 * decay.sum()
    assert torch.allclose(kernel(Spec(Vanilla("identity"), law(h=(0.8, 0.5, 0.3, 0))), x), exact)


@pytest.mark.parametrize("cell", [Vanilla(), Vanilla("relu"), Vanilla("identity")])
def test_outputs_that_have_nearly_vanished_keep_their_precision(cell: Vanilla) -> None:
    """A pulse and zeros: what is left of it has fallen far below rounding, where tanh is linear."""
    kept = 0.5 if cell.nonlinearity == "relu" else 1.0
    x = torch.zeros(1, 120, 2, dtype=torch.float64)
    x[0, 0] = 1e-9
    exact = kept * 0.3 * 1e-18 * (kept * 0.5) ** 119
    assert float(kernel(Spec(cell, law(h=(0.5, 0.3, 0, 0))), x)) == pytest.approx(exact, rel=1e-10)
    assert float(kernel(Spec(cell, law(h=(0.5, 0.3, 0, 0))), 0 * x)) < 1e-200


@pytest.mark.parametrize(
    "spec",
    [
        Spec(Vanilla(), law(h=(400, 1, 0.1, 0))),
        Spec(Vanilla("relu"), law(h=(1, 1, 0.1, 0.5))),
        Spec(Vanilla("prelu"), law(h=(1, 1, 0.1, 0))),
        Spec(Vanilla(), {"h": Gate(1, 1, bias_law=BiasLaw("uniform_gate"))}),
    ],
    ids=["steep", "relu with a mean", "prelu", "bias law"],
)
def test_what_has_no_closed_form_is_sampled(spec: Spec) -> None:
    found = kernel_estimate(spec, digits(2), units=512)
    assert bool((found.stderr > 0).all())


# -- what a kernel has to be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [VANILLA, MINIMAL, GRU_SPEC, LSTM_SPEC, RELU], ids=lambda spec: str(spec.cell))
@pytest.mark.parametrize("readout", ["last", "mean"])
def test_it_is_symmetric_and_positive_semi_definite(spec: Spec, readout: str) -> None:
    """With a sequence that comes twice, one that is all 0, and one that parts from another late."""
    x = torch.cat((digits(12), digits(2), torch.zeros(1, 8, 8)))
    x = torch.cat((x, torch.cat((x[:1, :6], x[1:2, 6:]), 1)))
    k = kernel(spec, x, readout=readout, units=256)  # type: ignore[arg-type]
    assert torch.equal(k, k.T) and k.dtype == torch.float64
    assert float(torch.linalg.eigvalsh(k)[0]) >= -1e-10 * float(k.trace())
    assert torch.allclose(k[0], k[12], rtol=1e-9)


def test_a_second_argument_gives_the_block_between() -> None:
    x = digits(5)
    for spec in (VANILLA, GRU_SPEC):
        whole = kernel_estimate(spec, x, units=300)
        block = kernel_estimate(spec, x[:3], x[3:], units=300)
        assert torch.equal(block.value, whole.value[:3, 3:]) and torch.equal(block.stderr, whole.stderr[:3, 3:])


def test_errors_tell_how_far_estimates_lie_apart() -> None:
    x = digits(2)[:, 2:5]
    found = [kernel_estimate(GRU_SPEC, x, units=128, generator=seeded(seed)) for seed in range(24)]
    spread = torch.stack([one.value for one in found]).std(0)
    told = torch.stack([one.stderr for one in found]).square().mean(0).sqrt()
    assert bool(((spread / told - 1).abs() < 0.5).all())


def test_equal_generators_give_equal_kernels() -> None:
    x = digits(2).float()
    one, other = (kernel(LSTM_SPEC, x, units=200, generator=seeded(seed)) for seed in (0, 1))
    assert torch.equal(one, kernel(LSTM_SPEC, x, units=200)) and not torch.equal(one, other)


@pytest.mark.parametrize("cell", [LSTM(), Minimal()], ids=lambda cell: cell.name)
def test_the_specs_own_input_law_does_not_matter(cell: Cell) -> None:
    gates = {name: Gate(float(reads.state), float(reads.input)) for name, reads in cell.gates.items()}
    x = torch.randn(2, 3, 2, generator=seeded())
    laws = Input(), Input(0.0), Input(2.0, 0.5, mean=3.0, autocorrelation=0.5)
    one, *others = (kernel(Spec(cell, gates, law, "fixed"), x, units=64, generator=seeded()) for law in laws)
    assert all(torch.equal(one, other) for other in others)


def test_a_bare_cell_stands_for_variances_of_1() -> None:
    x = digits(2)
    spec = Spec(GRU(), law(r=(1, 1, 0, 0), z=(1, 1, 0, 0), nx=(0, 1, 0, 0), nh=(1, 0, 0, 0)))
    assert torch.equal(kernel(GRU(), x, units=200), kernel(spec, x, units=200))


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "readout", "paths"),
    [
        (VANILLA, "mean", ["h.weight_var", "h.input_var", "h.bias_var", "h.bias_mean"]),
        (RELU, "last", ["h.weight_var", "h.input_var", "h.bias_var"]),
        (MINIMAL, "mean", ["u.weight_var", "u.input_var", "u.bias_var", "u.bias_mean"]),
        (GRU_SPEC, "last", ["r.weight_var", "z.bias_mean", "nx.input_var", "nh.weight_var"]),
        (LSTM_SPEC, "last", ["f.weight_var", "f.bias_var", "f.bias_mean", "i.input_var", "o.weight_var"]),
        (TLSTM_SPEC, "mean", ["f.previous_input_var", "z.bias_var"]),
    ],
    ids=["vanilla", "relu", "minimal", "gru", "lstm", "t_lstm"],
)
def test_gradients_are_finite_differences(spec: Spec, readout: str, paths: list[str]) -> None:
    """On three sequences, one of them twice: covariances are singular, and stay so."""
    x = digits(2)[[0, 1, 0], 2:5]
    weights = torch.linspace(-1, 2, 9, dtype=torch.float64).reshape(3, 3)

    def value(numbers: dict[str, Any]) -> Tensor:
        changed = spec
        for path, number in numbers.items():
            changed = changed.replace(path, number)
        return (kernel(changed, x, readout=readout, units=32) * weights).sum()  # type: ignore[arg-type]

    numbers = {}
    for path in paths:
        gate, _, field = path.partition(".")
        numbers[path] = torch.tensor(float(getattr(spec.gates[gate], field)), dtype=torch.float64, requires_grad=True)
    gradients = torch.autograd.grad(value(numbers), list(numbers.values()))
    small = 1e-5
    for (path, number), gradient in zip(numbers.items(), gradients, strict=True):
        up, down = (float(value({path: float(number.detach()) + shift})) for shift in (small, -small))
        assert float(gradient) == pytest.approx((up - down) / (2 * small), rel=1e-4, abs=1e-8), path


def test_factors_of_singular_matrices_have_gradients() -> None:
    generator = seeded(2)
    thin = torch.randn(5, 2, dtype=torch.float64, generator=generator)

    def square(scale: Tensor) -> Tensor:
        flat = thin * torch.stack((scale, scale.square()))
        factor = root(flat @ flat.T, flat @ flat.T)
        return factor @ factor.T

    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(square(scale), (thin * torch.tensor([1.3, 1.69])) @ (thin * torch.tensor([1.3, 1.69])).T)
    assert torch.autograd.gradcheck(square, scale)


# -- what does not exist ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": torch.zeros(2, 3)}, "x: shape"),
        ({"x": torch.zeros(2, 0, 3)}, "x: shape"),
        ({"x": torch.zeros(2, 3, 3, dtype=torch.long)}, "x: Tensor"),
        ({"x": torch.full((2, 3, 3), torch.nan)}, "x: values that are not finite"),
        ({"x": torch.zeros(2, 3, 3), "x2": torch.zeros(2, 4, 3)}, "x2: shape"),
        ({"x": torch.zeros(2, 3, 3), "readout": "first"}, "readout: 'first'"),
        ({"x": torch.zeros(2, 3, 3), "units": 0}, "units: 0"),
        ({"cell_or_spec": "lstm", "x": torch.zeros(2, 3, 3)}, "cell_or_spec: 'lstm'"),
        (
            {"cell_or_spec": VANILLA.replace("h.weight_var", torch.ones(2)), "x": torch.zeros(2, 3, 3)},
            "cell_or_spec: a batch",
        ),
    ],
)
def test_what_is_asked_wrongly_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel(**({"cell_or_spec": LSTM()} | arguments))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Spec(Vanilla(), {"h": Gate(1, 1, ensemble="identity")}), "identity matrices"),
        (Spec(Vanilla("oplu"), {"h": Gate(1, 1)}), "several units together"),
        (Spec(Vanilla("identity"), {"h": Gate(1e12, 1)}), "double precision"),
        (Spec(Vanilla("prelu"), {"h": Gate(1e12, 1)}), "double precision"),
    ],
    ids=["identity", "oplu", "grows exactly", "grows in samples"],
)
def test_what_no_theory_covers_is_refused(spec: Spec, reason: str) -> None:
    with pytest.raises(TheoryMissing, match=reason):
        kernel(spec, torch.ones(1, 40, 1), units=50)
