"""What a start costs, against simulated networks, sampled gates and scipy's own distance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from checked import MGU, PEEPHOLE, law
from isornn.cells import LSTM, BiasLaw, Gate, Minimal, Peephole, Spec, Vanilla, cell_named
from isornn.cells.roles import NO_GATES, roles_of
from isornn.nn.random_network import RandomNetwork
from isornn.simulation import simulate
from isornn.theory import COSTS, Quantity, costs
from isornn.theory.critical_points.costs import NO_UNIT_TIME, UNBOUNDED, GateStatistics, distance_from_uniform
from isornn.theory.reasons import NOT_CONVERGED

STRONG = Spec(LSTM(), law(i=(2, 1, 0, 0.5), f=(4, 0.5, 0.1, 2), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5)))
SPREAD = (
    replace(STRONG, biases="fixed").replace("f.bias_law", BiasLaw("timescale", 1.0, 15.0)).replace("f.bias_mean", 0)
)
SPREAD = SPREAD.replace("f.bias_var", 0.0).replace("f.weight_var", 1.0)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def agree(cost: Quantity, samples: list[float], part: float) -> None:
    """Within three standard errors of both, or a part that finite width may be off."""
    value, error = float(np.mean(samples)), float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    allowed = max(3 * math.hypot(error, cost.error()), part * abs(value))
    assert abs(cost.number() - value) <= allowed, (cost.number(), value, error)


# -- isometry and variance --------------------------------------------------------------------------------------------


def test_one_state_against_networks() -> None:
    found = costs(PEEPHOLE, 20, generator=seeded())
    network = simulate(PEEPHOLE, width=300, steps=25, networks=3, singular_values=True, generator=seeded(1))
    moments = network.spectrum
    assert found["isometry"].number() == pytest.approx(20 * abs(float(moments.mean.value) - 1), rel=0.1)
    assert found["variance"].number() == pytest.approx(20 * float(moments.variance.value), rel=0.05)


def slow_map_of_network(spec: Spec, seed: int, width: int = 200, warmup: int = 40) -> torch.Tensor:
    """Squared singular values of dc'/dc of one network, h = o tanh(c) moved along."""
    generator = seeded(seed)
    network = RandomNetwork.drawn(spec, width, width, generator)
    h, c = torch.zeros(2, width, dtype=torch.float64)
    for _ in range(warmup):
        h, c = network.advance(*torch.randn(2, width, dtype=torch.float64, generator=generator))(h, c)
        network = network.redrawn(generator)
    advance = network.advance(*torch.randn(2, width, dtype=torch.float64, generator=generator))
    o = h / c.tanh()
    jacobian = torch.func.jacfwd(lambda c: advance(o * c.tanh(), c)[1])(c)
    return torch.linalg.svdvals(jacobian).square()


@pytest.mark.parametrize("spec", [STRONG, SPREAD], ids=["redrawn", "fixed"])
def test_the_slow_state_against_networks(spec: Spec) -> None:
    found = costs(spec, 50, generator=seeded())
    values = [slow_map_of_network(spec, seed) for seed in range(4)]
    agree(found["isometry"], [50 * (1 - float(v.mean())) for v in values], 0.01)
    agree(found["variance"], [50 * float(v.var(correction=0)) for v in values], 0.03)


def haar(normal: torch.Tensor) -> torch.Tensor:
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal().sign()


def test_orthogonal_matrices_take_from_the_variance_of_the_slow_map() -> None:
    gates = {"i": Gate(2.0, 0.5), "f": Gate(2.0, 0.5, bias_mean=1.0), "g": Gate(4.0, 0.5), "o": Gate(1.0, 0.5)}
    spec, width = Spec(LSTM(), gates), 300
    alike = Spec(LSTM(), {name: replace(gate, ensemble="orthogonal") for name, gate in gates.items()})
    normal, orthogonal = (costs(one, 1, generator=seeded())["variance"].number() for one in (spec, alike))
    gaps = []
    for seed in range(6):
        # c, h and gates of a network at step 12; Gaussian and orthogonal matrices multiply the same units
        generator = seeded(seed)
        h, c, along = torch.zeros(3, width, dtype=torch.float64)
        for _ in range(12):
            drawn = {k: torch.randn(width, width, generator=generator).double() / width**0.5 for k in gates}
            noise = torch.randn(4, width, generator=generator).double() * 0.5**0.5
            pairs = zip(gates.items(), noise, strict=True)
            u = {k: gate.weight_var**0.5 * drawn[k] @ h + gate.bias_mean + x for (k, gate), x in pairs}
            i, f, o = (torch.sigmoid(u[k]) for k in "ifo")
            g, moved = torch.tanh(u["g"]), along
            slopes = {"i": i * (1 - i) * g, "f": f * (1 - f) * c, "g": i * (1 - g**2)}
            c = f * c + i * g
            h, along = o * torch.tanh(c), o * (1 - torch.tanh(c) ** 2)
        second = []
        for draw in (lambda matrix: matrix, haar):
            parts = [gates[k].weight_var ** 0.5 * slope[:, None] * draw(drawn[k]) for k, slope in slopes.items()]
            values = torch.linalg.svdvals(torch.diag(f) + sum(parts) * moved)
            second.append(float(values.pow(4).mean()))
        gaps.append(second[0] - second[1])
    error = float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
    assert normal - orthogonal == pytest.approx(float(np.mean(gaps)), abs=4 * error)
    assert normal - orthogonal > 4 * error


def test_sight_is_what_is_missing() -> None:
    spec = Spec(Minimal(), {"u": Gate(bias_mean=3.0)})
    xi = -1 / (2 * math.log(1 / (1 + math.exp(-3.0))))
    assert costs(spec, 100, generator=seeded())["sight"].number() == pytest.approx(math.log(100 / xi))
    assert costs(spec, 5, generator=seeded())["sight"].number() == 0


@pytest.mark.parametrize("biases", ["redrawn", "fixed"])
def test_the_sight_of_what_keeps_nothing_is_infinitely_short(biases: Literal["fixed", "redrawn"]) -> None:
    """A network without recurrent weights: nothing of a displacement is left after one step."""
    sight = costs(Spec(Vanilla(), {"h": Gate(input_var=1.0)}, biases=biases), 100, generator=seeded())["sight"]
    assert sight.number() is None and bool(sight.value.isinf()) and "the reach is 0" in (sight.reason() or "")
    drawn, inputs = np.random.default_rng(0).normal(size=(2, 1000))
    assert not np.any(np.tanh(inputs + 0 * drawn) - np.tanh(inputs))


def test_few_units_and_many_agree() -> None:
    assert all(cost.error() == 0 for cost in costs(PEEPHOLE, 30, generator=seeded()).values())
    sampled = costs(STRONG, 30, generator=seeded())
    careful = costs(STRONG, 30, generator=seeded(5), careful=True)
    for name in COSTS:
        gap, error = sampled[name].number() - careful[name].number(), sampled[name].error()
        assert abs(gap) <= 5 * math.hypot(error, careful[name].error()) + 1e-6, name
        assert error >= 0.3 * careful[name].error()


# -- time scales ------------------------------------------------------------------------------------------------------


def uniform_logs(length: float, count: int = 400_000) -> np.ndarray:
    return np.log(1 + (length - 1) * (np.arange(count) + 0.5) / count)


@pytest.mark.parametrize("length", [2.5, 100.0, 1e5])
@pytest.mark.parametrize("spread", [0.0, 1.5])
def test_the_distance_is_scipys(length: float, spread: float) -> None:
    """Of a normal law by the trapezoid rule's nodes, and of units that are all alike."""
    z = torch.linspace(-8.5, 8.5, 137, dtype=torch.float64) if spread else torch.zeros(1, dtype=torch.float64)
    share = (-(z**2) / 2).exp()
    found = distance_from_uniform(2.0 + spread * z, share / share.sum(), length)
    logs = 2.0 + spread * np.random.default_rng(0).normal(0, 1, 400_000)
    assert float(found) == pytest.approx(wasserstein_distance(logs, uniform_logs(length)), rel=0.01)


def test_chrono_is_at_no_distance() -> None:
    """The gate's own time scale 1/ln(1 + 1/r) is r + 1/2 to first order."""
    spec = Spec(Minimal(), {"u": Gate(bias_law=BiasLaw("chrono", 1.0, 999.0))}, biases="fixed")
    found = costs(spec, 1000, generator=seeded())["time_scales"].number()
    assert 0 < found < 0.01
    alike = Spec(Minimal(), {"u": Gate(bias_mean=math.log(500.0))})
    assert costs(alike, 1000, generator=seeded())["time_scales"].number() > 0.5


@pytest.mark.parametrize("biases", ["fixed", "redrawn"])
def test_statistics_of_gates_against_drawn_ones(biases: Literal["fixed", "redrawn"]) -> None:
    """The gate's pre-activations drawn by hand, the state's moment taken from networks."""
    spec = Spec(Peephole(), law(i=(0.5, 1, 0, -2), f=(1, 0.5, 0.5, 2), g=(1, 1, 0, 0)), biases=biases)
    found = costs(spec, 60, generator=seeded())
    network = simulate(spec, width=300, steps=40, warmup=40, networks=2, tangents=1, generator=seeded(3))
    second = float(network.second_moment.value.mean())
    generator = np.random.default_rng(1)

    def draws(gate: str, units: int, times: int) -> np.ndarray:
        g = spec.gates[gate]
        own = generator.normal(0, g.bias_var**0.5, (units, 1 if biases == "fixed" else times))
        noise = generator.normal(0, (g.weight_var * second + g.input_var) ** 0.5, (units, times))
        return 1 / (1 + np.exp(-(g.bias_mean + own + noise)))

    kept = draws("f", 2000, 200)
    mean = kept.mean(1) if biases == "fixed" else kept.mean(keepdims=True).ravel()
    distance = wasserstein_distance(np.log(-1 / np.log(mean)), uniform_logs(60, 20_000))
    assert found["time_scales"].number() == pytest.approx(distance, rel=0.03)
    slopes = [(4 * gate * (1 - gate)) ** 2 for gate in (draws("i", 2000, 200), kept, draws("o", 10, 10))]
    flatness = -np.mean([np.log(s.mean()) / 2 for s in slopes])
    assert found["saturation"].number() == pytest.approx(flatness, rel=0.03)


def test_errors_of_statistics_are_those_of_a_mean_over_scrambles() -> None:
    spec = Spec(Peephole(), law(i=(0.5, 1, 4, -2), f=(1, 0.5, 4, 2), g=(1, 1, 4, 0)), biases="fixed")
    statistics = GateStatistics.of(spec, 60)
    nodes, second = statistics.nodes, Quantity.of(torch.tensor(0.4).double(), torch.tensor(0.0).double())
    for statistic in ("time_scales", "saturation"):
        single = []
        for place in range(nodes.replicates):
            offset = {gate: value[place : place + 1] for gate, value in nodes.offset.items()}
            alone = replace(statistics, nodes=replace(nodes, offset=offset))
            single.append(getattr(alone, statistic)(second).number())
        found = getattr(statistics, statistic)(second)
        assert found.number() == pytest.approx(np.mean(single), rel=1e-9)
        assert found.error() == pytest.approx(np.std(single, ddof=1) / math.sqrt(len(single)), rel=1e-6)


# -- what does not exist ----------------------------------------------------------------------------------------------


def test_a_cell_without_gates_has_reasons() -> None:
    for cell in (Vanilla(), Vanilla("sigmoid")):
        found = costs(Spec(cell, {"h": Gate(0.9, 0.01)}), 10, generator=seeded())
        assert found["time_scales"].reason() == NO_UNIT_TIME and found["saturation"].reason() == NO_GATES
        assert all(found[name].number() is not None for name in ("sight", "isometry", "variance"))


def test_what_grows_has_no_costs() -> None:
    found = costs(Spec(Vanilla("identity"), {"h": Gate(1.5, 1.0)}), 10, generator=seeded())
    assert found["sight"].number() is None and NOT_CONVERGED in found["sight"].reason()


def test_a_hard_gate_may_be_open_for_ever() -> None:
    spec = Spec(Minimal(gate="hard_sigmoid"), {"u": Gate(0.0, 1e-4, bias_mean=0.0)})
    assert costs(spec, 10, generator=seeded())["saturation"].number() == pytest.approx(0, abs=1e-9)
    opened = costs(spec.replace("u.bias_mean", 9.0), 10, generator=seeded())
    assert opened["time_scales"].number() is None and opened["saturation"].number() is None
    peephole = Spec(Peephole(gate="hard_sigmoid"), {"f": Gate(bias_mean=-9.0), "g": Gate(input_var=1.0)})
    assert costs(peephole, 10, generator=seeded())["time_scales"].reason() == UNBOUNDED


@pytest.mark.parametrize(
    ("name", "gates"),
    [("minimal", "u"), ("gru", "rz"), ("gru_cho", "rz"), ("lstm", "ifo"), ("peephole", "ifo"), ("lstm_gers", "ifo")],
)
def test_gates_are_what_is_squashed(name: str, gates: str) -> None:
    assert tuple(roles_of(cell_named(name)).gates) == tuple(gates)
    hard = roles_of(cell_named(name, {"gate": "hard_sigmoid"})).gates
    assert tuple(hard) == tuple(gates) and all(gate.kinks == (-2.5, 2.5) for gate in hard.values())


def test_a_users_own_cell() -> None:
    """The minimal gated unit of Cell's docstring."""
    found = costs(Spec(MGU(), {"f": Gate(1.0, 0.5, bias_mean=-2), "n": Gate(1.0, 1.0)}), 10, generator=seeded())
    assert all(
        found[name].number() is not None for name in ("sight", "time_scales", "saturation", "isometry", "variance")
    )


def test_a_batch_is_its_specs() -> None:
    spec = PEEPHOLE.replace("f.bias_mean", torch.tensor([[1.0], [2.0]])).replace("f.bias_var", torch.tensor([0.1, 0.5]))
    whole = costs(spec, 20, generator=seeded())
    alone = costs(PEEPHOLE.replace("f.bias_mean", 2.0).replace("f.bias_var", 0.1), 20, generator=seeded())
    for name in COSTS:
        assert whole[name].value.shape == (2, 2)
        assert float(whole[name].value[1, 0]) == pytest.approx(alone[name].number(), rel=1e-6, abs=1e-9)


def test_the_output_moves_with_a_state_that_its_gate_does_not_keep() -> None:
    """A hard gate that is 0 keeps nothing of the old c; h = o tanh(c) moves with the new one all the same."""
    spec = Spec(LSTM("hard_sigmoid"), law(i=(0.2, 0.2, 0, 0.5), f=(0, 0, 0, -9), g=(3, 0.5, 0, 0), o=(2, 0.5, 0, 0.5)))
    found = costs(spec, 50, generator=seeded())
    values = [slow_map_of_network(spec, seed) for seed in range(4)]
    assert np.mean([float(v.mean()) for v in values]) > 0.1
    agree(found["isometry"], [50 * (1 - float(v.mean())) for v in values], 0.01)
