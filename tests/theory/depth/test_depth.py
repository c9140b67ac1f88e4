"""Stacks of layers: against closed forms of linear stacks, and against simulated stacks of networks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from checked import law
from isornn import analyze, simulate
from isornn.cells import (
    GRU,
    LSTM,
    TRNN,
    Cell,
    ChoGRU,
    Gate,
    Input,
    Minimal,
    Peephole,
    Reads,
    Spec,
    Values,
    Vanilla,
    cell_named,
)
from isornn.cells.bias_laws import BiasLaw
from isornn.cells.errors import SpecError
from isornn.cells.sru import SRU
from isornn.nn.random_network import RandomNetwork
from isornn.nn.step import step
from isornn.theory import Bidirectional, TheoryMissing, analyze_stack
from isornn.theory.depth.analysis import tied_stack
from isornn.theory.depth.input_law import InputLaw
from isornn.theory.depth.layerwise import external_input, output_law, solved
from isornn.theory.depth.stack import NO_INPUT_LAW, checked
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import IDENTITY, NOT_CONVERGED, NOT_POINTWISE, PAIR_TOO_SOON, REDRAWN_BESIDE_SPREAD

VANILLA = Spec(Vanilla(), law(h=(2, 0.5, 0.1, 0.2)))
CHO = Spec(ChoGRU(), law(z=(3, 1, 0, 1), r=(2, 0.5, 0.1, 0.5), n=(4, 0.5, 0, 0)))
PEEPHOLE = Spec(Peephole(), law(i=(1, 1, 0, 0.5), f=(1, 1, 0, 1), g=(1, 1, 0, 0), o=(1, 1, 0, 1)))
LSTM_SPEC = Spec(LSTM(), law(i=(1, 0.5, 0, 0), f=(1, 0.5, 0, 1), g=(1, 0.5, 0, 0), o=(1, 0.5, 0, 0)))
GRU_SPEC = Spec(GRU(), law(r=(1, 0.5, 0, 0), z=(1, 1, 0, 1), nx=(0, 1, 0, 0), nh=(2, 0, 0, 0)))


def linear(weight_var: float, input_var: float, **options: Any) -> Spec:
    return Spec(Vanilla(nonlinearity="identity"), {"h": Gate(weight_var, input_var, **options)})


def answers(weight_var: float, input_var: float, length: int) -> Tensor:
    """A linear layer's response to its input: E[h_a h_b] has it at once and keeps ``weight_var`` of it per step."""
    return input_var * weight_var ** torch.arange(length + 1, dtype=torch.float64)


def convolved(one: Tensor, other: Tensor) -> Tensor:
    return torch.stack([(one[: t + 1] * other[: t + 1].flip(0)).sum() for t in range(len(one))])


# -- closed forms -----------------------------------------------------------------------------------------------------


def test_a_linear_stack_is_known_in_closed_form() -> None:
    """Q = (input_var R + bias_var) / (1 - weight_var), layer after layer; kernels are geometric."""
    stack = [linear(0.5, 0.8, bias_var=0.3), linear(0.7, 0.6), linear(0.2, 2.0)]
    answer = analyze_stack(stack, length=20)
    expected, r = [], 1.0
    for w, v, b in ((0.5, 0.8, 0.3), (0.7, 0.6, 0.0), (0.2, 2.0, 0.0)):
        r = (v * r + b) / (1 - w)
        expected.append(r)
    assert [layer.fixed_point.second_moment.number() for (layer,) in answer.layers] == pytest.approx(expected)
    assert answer.chi.number() == pytest.approx(0.7)
    kernel = convolved(convolved(answers(0.5, 0.8, 20), answers(0.7, 0.6, 20)), answers(0.2, 2.0, 20))
    assert torch.allclose(answer.forward.profile.value, kernel, rtol=1e-9)
    assert answer.backward is None
    level, top = float(kernel.max()) / torch.e, int(kernel.argmax())
    after = next(t for t in range(top, 21) if kernel[t] < level)
    part = float((kernel[after - 1] / level).log() / (kernel[after - 1] / kernel[after]).log())
    assert top > 0 and answer.reach.number() == pytest.approx(after - 1 + part)


def test_two_directions_answer_before_and_after() -> None:
    """A backward layer reads its input in reverse; concatenated outputs average."""
    one, other, top = linear(0.5, 0.8), linear(0.7, 0.6), linear(0.3, 1.0)
    answer = analyze_stack([Bidirectional(one, other), top], length=12)
    r = (0.8 / 0.5 + 0.6 / 0.3) / 2
    ((forward, backward), (above,)) = answer.layers
    assert (forward.chi.number(), backward.chi.number()) == pytest.approx((0.5, 0.7))
    assert above.fixed_point.second_moment.number() == pytest.approx(r / 0.7)
    lags = torch.arange(-60, 61, dtype=torch.float64)
    below = (torch.where(lags >= 0, 0.8 * 0.5**lags, 0.0) + torch.where(lags <= 0, 0.6 * 0.7**-lags, 0.0)) / 2
    after = torch.tensor([sum(0.3**k * below[60 + t - k] for k in range(61 + t)) for t in range(-12, 13)])
    assert torch.allclose(answer.forward.profile.value, after[12:].double(), rtol=1e-6)
    assert answer.backward is not None
    assert torch.allclose(answer.backward.profile.value, after[:13].flip(0).double(), rtol=1e-6)
    assert answer.backward.chi.number() == pytest.approx(0.7)
    assert answer.forward.chi.number() == pytest.approx(0.5)


@dataclass(frozen=True)
class Delayed(Cell):
    """Linear, and it reads the previous input as well."""

    name = "delayed"
    gates = {"u": Reads(previous_input=True)}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": u.u}


def test_the_input_before_is_answered_one_step_later() -> None:
    spec = Spec(Delayed(), {"u": Gate(0.5, 0.4, previous_input_var=0.3)})
    answer = analyze_stack([spec], length=10)
    later = torch.cat((torch.zeros(1, dtype=torch.float64), answers(0.5, 0.3, 9)))
    assert torch.allclose(answer.forward.profile.value, answers(0.5, 0.4, 10) + later, rtol=1e-9)


def test_units_that_keep_their_biases_answer_at_their_own_rates() -> None:
    """t_rnn with r/(1+r) kept per step, r ~ U(10, 50): a layer answers by ``input_var E[(1-f)^2 f^(2t)]``."""
    gates = {"f": Gate(bias_law=BiasLaw("timescale", 10.0, 50.0)), "z": Gate(input_var=0.7)}
    spec = Spec(TRNN(), gates, biases="fixed")
    answer = analyze_stack([spec, spec], length=120)
    f = 1 / (1 + 1 / (10 + 40 * (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000))
    times = torch.arange(121, dtype=torch.float64)
    one = 0.7 * ((1 - f) ** 2 * f ** (2 * times[:, None])).mean(1)
    # late lags are sums of exponentials at fixed rates
    assert torch.allclose(answer.forward.profile.value, convolved(one, one), rtol=2e-3)
    assert answer.xi.number() is None and answer.reach.number() == pytest.approx(34.25, rel=1e-3)


def test_one_layer_is_analyze() -> None:
    answer, alone = analyze_stack([CHO]), analyze(CHO)
    assert answer.xi.number() == alone.xi.number()
    assert answer.reach.number() == pytest.approx(alone.reach.number(), abs=5 * answer.reach.error() + 1e-6)


def test_linear_tied_stacks_are_known_in_closed_form() -> None:
    """h_t = sum_k W^k U o_(t-k), whose parts are orthogonal: Q_2(t) = sum_k w_2^k v_2 Q_1(t - k)."""
    answer = analyze_stack([linear(0.5, 0.8), linear(0.7, 0.6)], length=1, tied=True, steps=12)
    assert answer.tied is not None
    below = [sum(0.8 * 0.5**k for k in range(t)) for t in range(1, 13)]
    above = [sum(0.6 * 0.7**k * below[t - k] for k in range(t + 1)) for t in range(12)]
    for (layer,), exact in zip(answer.tied, (below, above), strict=True):
        known = torch.tensor(exact, dtype=torch.float64)
        gap = (layer.second_moment.value - known).abs()
        # Beside standard errors a thousandth: of a square's means over 2048 evenly spread variates two thirds are below
        # it, by up to 6e-4, and few far above, so that eight of them may agree on less.
        assert bool((gap <= 4 * layer.second_moment.stderr + 1e-3 * known).all())


# -- uncertainty ------------------------------------------------------------------------------------------------------


def test_what_is_not_known_of_the_input_shows_in_every_number() -> None:
    """Q = input_var R / (1 - weight_var) is linear in R, and so is E[h_a h_b] in R Sigma_z."""
    r, c, e_r, e_c = (torch.tensor(value, dtype=torch.float64) for value in (0.5, 0.4, 0.01, 0.02))
    found = solved(linear(0.5, 0.8), InputLaw(r, c, e_r, e_c, torch.tensor(True)), 5, torch.Generator().manual_seed(0))
    point = found.analysis.fixed_point
    assert point.second_moment.error() == pytest.approx(0.8 / 0.5 * 0.01)
    assert point.correlation.error() == pytest.approx(0.02, rel=1e-6)
    above = output_law([found])
    assert float(above.variance_error) == pytest.approx(0.8 / 0.5 * 0.01)
    assert float(above.correlation_error) == pytest.approx(0.02, rel=1e-6)


def weak_writer(weight_var: float) -> Spec:
    """A peephole LSTM with f = sigma(2), i = sigma(-4) and o = 1/2 fixed, so that its output is c/2 to 1e-4."""
    gates = {"i": Gate(bias_mean=-4.0), "f": Gate(bias_mean=2.0), "g": Gate(weight_var, 0.02), "o": Gate()}
    return Spec(Peephole(), gates)


def weak_writers_copies(weight_var: float) -> float:
    """The C* < 1 of `weak_writer`, where Q = i^2 E[tanh^2] / (1 - f^2) and E[c_a c_b] likewise, on a grid."""
    grid = np.linspace(-7, 7, 401)
    density = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()
    write, keep = 1 / (1 + np.exp(4.0)), 1 / (1 + np.exp(-2.0))

    def fed(variance: float, correlation: float) -> float:
        first = grid * variance**0.5
        second = correlation * first[:, None] + (1 - correlation**2) ** 0.5 * first
        return float(write**2 / (1 - keep**2) * density @ (np.tanh(first) * (np.tanh(second) @ density)))

    q = brentq(lambda q: fed(weight_var * q + 0.02, 1.0) - q, 1e-6, 0.1)
    variance = weight_var * q + 0.02
    return float(brentq(lambda c: fed(variance, 1 - weight_var * q * (1 - c) / variance) / q - c, 0.0, 0.999))


def test_the_copies_of_an_output_have_approached_each_other() -> None:
    """At xi = 129 steps, with chi_1 = 1.0099: ended when block means agreed, it was .26 +- .016 for .609."""
    spec = weak_writer(1236.0)
    found = solved(spec, external_input(spec), 5, torch.Generator().manual_seed(1)).output["correlation"]
    assert 0 < found.error() < 0.03
    assert found.number() == pytest.approx(weak_writers_copies(1236.0), abs=3 * found.error())


def test_where_copies_approach_too_slowly_nothing_is_said_above() -> None:
    spec = weak_writer(1075.0)
    found = solved(spec, external_input(spec), 5, torch.Generator().manual_seed(0))
    assert found.analysis.fixed_point.correlation.number() < 0.999
    assert found.output["correlation"].reason() == PAIR_TOO_SOON
    assert not bool(output_law([found]).known)
    assert found.driven.missing[PAIR_TOO_SOON]


def test_errors_of_a_sampled_layer_reach_the_one_above() -> None:
    """Quadrature knows the upper layer exactly given its input; all of its error is the LSTM's."""
    lower, upper = (layer for (layer,) in analyze_stack([LSTM_SPEC, VANILLA], length=5).layers)
    assert upper.engine == "quadrature"
    error = lower.fixed_point.second_moment.error()
    beside = [
        analyze(VANILLA.replace("input.variance", lower.fixed_point.second_moment.number() + sign * error))
        for sign in (-1, 1)
    ]
    low, high = (answer.fixed_point.second_moment.number() for answer in beside)
    assert upper.fixed_point.second_moment.error() == pytest.approx((high - low) / 2, rel=0.05)
    of_profile = (beside[1].profile[:6] - beside[0].profile[:6]).abs() / 2
    torch.testing.assert_close(upper.profile_stderr, of_profile, rtol=0.1, atol=1e-9)
    torch.testing.assert_close(upper.state_profiles_stderr["h"], of_profile, rtol=0.1, atol=1e-9)


def test_a_layer_above_may_be_a_batch() -> None:
    weight_vars = torch.tensor([0.3, 0.6], dtype=torch.float64)
    answer = analyze_stack([VANILLA, VANILLA.replace("h.weight_var", weight_vars)], length=5)
    singly = [
        analyze_stack([VANILLA, VANILLA.replace("h.weight_var", float(one))], length=5).layers[1][0]
        for one in weight_vars
    ]
    ((below,), (above,)) = answer.layers
    assert answer.reach.value.shape == below.chi.value.shape == (2,)
    torch.testing.assert_close(above.chi.value, torch.stack([one.chi.value for one in singly]))
    torch.testing.assert_close(above.profile, torch.stack([one.profile for one in singly]))


# -- networks ---------------------------------------------------------------------------------------------------------

Stack = Sequence[Spec | Bidirectional]


def network_stack(layers: Stack, width: int, steps: int, tied: bool, seed: int) -> list[Tensor]:
    """E[h^2] of every direction of every layer of one stack over time, (T,) each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(steps, width, generator=generator, dtype=torch.float64)
    found = []
    for layer in layers:
        specs = [layer] if isinstance(layer, Spec) else [layer.forward, layer.backward]
        outputs = []
        for turn, spec in enumerate(specs):
            squares, out = network_layer(spec, x.flip(0) if turn else x, width, tied, generator)
            found.append(squares)
            outputs.append(out.flip(0) if turn else out)
        x = torch.cat(outputs, -1)
    return found


def network_layer(spec: Spec, x: Tensor, width: int, tied: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    network = RandomNetwork.drawn(spec, width, x.shape[-1], generator)
    states = Values(**{name: torch.zeros(width, dtype=torch.float64) for name in spec.cell.states})
    squares, outputs = [], []
    for t, now in enumerate(x):
        if t > 0 and not tied:
            network = network.redrawn(generator)
        drive = {name: network.biases[name] + _product(network.inputs[name], now, width) for name in spec.gates}

        def read(name: str, value: Tensor, matrices: Mapping[str, Any] = network.recurrent) -> Tensor:
            return _product(matrices[name], value, width)

        states, u = step(spec.cell, states, drive, read)
        squares.append(getattr(states, spec.cell.states[0]).square().mean())
        outputs.append(spec.cell.output(states, u))
    return torch.stack(squares), torch.stack(outputs)


def _product(matrix: Tensor | None, value: Tensor, width: int) -> Tensor:
    return torch.zeros(width, dtype=torch.float64) if matrix is None else matrix @ value


@pytest.mark.parametrize(
    "layers",
    [[PEEPHOLE, CHO], [CHO, VANILLA, VANILLA], [Bidirectional(CHO, VANILLA), VANILLA]],
    ids=["output that is not the state", "three layers", "bidirectional"],
)
def test_second_moments_are_those_of_untied_stacks(layers: Stack) -> None:
    answer = analyze_stack(layers, length=5)
    quantities = [layer.fixed_point.second_moment for directions in answer.layers for layer in directions]
    runs = [[q[14:].mean() for q in network_stack(layers, 250, 36, False, seed)] for seed in range(6)]
    measured = torch.tensor(runs)
    error = measured.std(0) / len(runs) ** 0.5
    for place, quantity in enumerate(quantities):
        noise = (float(error[place]) ** 2 + quantity.error() ** 2) ** 0.5
        # Six stacks tell their own spread roughly.
        assert abs(float(measured[:, place].mean()) - quantity.number()) <= 4.5 * noise


@pytest.mark.parametrize(
    "layers",
    [[GRU_SPEC, LSTM_SPEC], [PEEPHOLE, VANILLA], [Bidirectional(CHO, VANILLA), CHO]],
    ids=["gru, lstm", "output that is not the state", "bidirectional"],
)
def test_second_moments_are_those_of_tied_stacks(layers: Stack) -> None:
    tied = tied_stack(checked(layers), 16, torch.Generator().manual_seed(0))
    quantities = [layer.second_moment for directions in tied for layer in directions]
    runs = [torch.stack(network_stack(layers, 300, 16, True, seed)) for seed in range(12)]
    measured = torch.stack(runs)
    error = measured.std(0) / len(runs) ** 0.5
    for place, quantity in enumerate(quantities):
        noise = (error[place] ** 2 + quantity.stderr**2).sqrt()
        assert bool(((measured[:, place].mean(0) - quantity.value).abs() <= 4.5 * noise).all()), place


# -- what does not exist, and what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gates"),
    [
        ("minimal", {"u": Gate(1.0, 1.0, bias_mean=1.0)}),
        ("mut1", {"z": Gate(0.0, 1.0, bias_mean=1.0), "n": Gate(1.0)}),
    ],
)
def test_a_first_layer_may_read_its_input_pointwise(name: str, gates: dict[str, Gate]) -> None:
    first = Spec(cell_named(name), gates)
    alone = simulate(first, width=500, steps=10, warmup=60, networks=6, generator=torch.Generator().manual_seed(0))
    below, above = analyze_stack([first, VANILLA], length=10).layers
    measured = alone.second_moment.value[1:].mean().item()
    assert below[0].fixed_point.second_moment.number() == pytest.approx(measured, rel=0.05)
    assert above[0].fixed_point.second_moment.number() is not None and above[0].reach.number() is not None


def test_above_a_layer_without_a_fixed_point_nothing_is_known() -> None:
    answer = analyze_stack([linear(1.5, 0.5), VANILLA], length=5)
    ((below,), (above,)) = answer.layers
    assert below.fixed_point.second_moment.reason() == NOT_CONVERGED
    assert above.fixed_point.second_moment.reason() == NO_INPUT_LAW == above.chi.reason()
    assert bool(above.profile.isnan().all()) and bool(above.state_profiles["h"].isnan().all())
    assert answer.xi.reason() == answer.reach.reason() == NOT_CONVERGED
    json.dumps(answer.to_json(), allow_nan=False)


def test_a_layer_that_no_engine_covers_is_answered_with_its_reason_as_analyze_does() -> None:
    """Weights per unit that are kept, beside biases that are redrawn."""
    uncovered = Spec(SRU(), {"f": Gate(bias_var=torch.tensor([0.1, 0.2]))})
    reason = analyze(uncovered).chi.reasons[0][0]
    assert reason == REDRAWN_BESIDE_SPREAD
    answer = analyze_stack([VANILLA, Bidirectional(uncovered, VANILLA), VANILLA], length=5, tied=True)
    (below,), (forward, backward), (above,) = answer.layers
    alone = analyze(VANILLA).chi.number()
    assert below.chi.value.tolist() == pytest.approx([alone, alone])
    assert bool(backward.chi.defined.all())
    assert answer.backward is not None and answer.tied is None
    for quantity, missing in (
        (forward.chi, reason),
        (above.chi, NO_INPUT_LAW),
        (answer.chi, reason),
        (answer.reach, reason),
        (answer.backward.profile, reason),
    ):
        assert quantity.value.shape[:1] == (2,)
        assert [(text, bool(where.all())) for text, where in quantity.reasons] == [(missing, True)]


def test_a_stack_of_one_layer_that_no_engine_covers() -> None:
    answer = analyze_stack([Spec(SRU(), {"f": Gate(bias_var=0.1)})], length=5)
    assert answer.xi.reason() == answer.layers[0][0].xi.reason() == REDRAWN_BESIDE_SPREAD
    json.dumps(answer.to_json(), allow_nan=False)


def test_a_stack_that_does_not_read_its_input_has_no_reach() -> None:
    deaf = Spec(Vanilla(), {"h": Gate(0.5, 0.0, bias_var=0.1)})
    answer = analyze_stack([deaf, VANILLA], length=5)
    assert answer.reach.reason() is not None and float(answer.forward.profile.value.abs().max()) == 0
    assert answer.xi.number() is not None


def test_batches_are_single_stacks_side_by_side() -> None:
    both = VANILLA.replace("h.weight_var", torch.tensor([0.5, 2.0]))
    batch = analyze_stack([both, CHO], length=5)
    for place, weight in enumerate((0.5, 2.0)):
        single = analyze_stack([VANILLA.replace("h.weight_var", weight), CHO], length=5)
        assert float(batch.xi.value[place]) == pytest.approx(single.xi.number(), rel=1e-6)
        gap = (batch.forward.profile.value[place] - single.forward.profile.value).abs()
        noise = (batch.forward.profile.stderr[place] ** 2 + single.forward.profile.stderr**2).sqrt()
        assert bool((gap <= 5 * noise + 1e-12).all())


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "layers: .* at least one"),
        (VANILLA, "layers: .* sequence"),
        ([VANILLA, Spec(Vanilla(), VANILLA.gates, Input(2.0))], r"layers\[1\].input: .* left out"),
        ([VANILLA, Spec(Minimal(), {"u": Gate(1.0, 1.0)})], r"layers\[1\].cell: 'minimal' .* pointwise"),
        (
            [
                VANILLA.replace("h.weight_var", torch.tensor([1.0, 2.0])),
                VANILLA.replace("h.bias_mean", torch.tensor([1.0, 2.0, 3.0])),
            ],
            r"layers: \[\(2,\), \(3,\)\] .* broadcast",
        ),
    ],
)
def test_what_is_no_stack_is_refused(layers: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        analyze_stack(layers)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (Spec(Vanilla(), {"h": Gate(1.0, 1.0, ensemble="identity")}), IDENTITY),
        (Spec(Vanilla(nonlinearity="oplu"), VANILLA.gates), NOT_POINTWISE),
    ],
)
def test_what_has_no_theory_is_refused(layer: Spec, reason: str) -> None:
    with pytest.raises(TheoryMissing, match=r"layers\[1\]: " + reason):
        analyze_stack([VANILLA, layer])


def test_lengths_and_steps_are_checked() -> None:
    with pytest.raises(ValueError, match="steps"):
        analyze_stack([VANILLA], steps=1)
    with pytest.raises(ValueError, match="length"):
        analyze_stack([VANILLA], length=0)
    assert analyze_stack([VANILLA], steps=2).chi.number() == pytest.approx(analyze_stack([VANILLA]).chi.number())


def test_errors_of_an_output_are_those_of_its_corners() -> None:
    """The cosine is r + C (1 - r) with r = mu^2 / Q; each of the three numbers moves it by its own error."""

    def cosine(mean: float, second: float, correlation: float) -> float:
        r = mean**2 / second
        return r + correlation * (1 - r)

    values, errors = torch.tensor([[0.5, 0.8, 0.4], [1e-4, 2e-4, 3e-4]], dtype=torch.float64)
    names = ("mean", "second_moment", "correlation")
    numbers = {name: Quantity.of(*both, {}) for name, both in zip(names, zip(values, errors, strict=True), strict=True)}
    found = output_law([cast(Any, SimpleNamespace(output=numbers))])
    corners = [values + errors * torch.tensor(signs) for signs in itertools.product((-1, 1), repeat=3)]
    middle = cosine(*values.tolist())
    assert float(found.correlation) == pytest.approx(middle, rel=1e-12)
    assert float(found.correlation_error) == pytest.approx(
        max(abs(cosine(*corner.tolist()) - middle) for corner in corners), rel=1e-3
    )
    assert float(found.variance_error) == pytest.approx(2e-4)
