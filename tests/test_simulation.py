"""Random networks give the exact theory's figures, and closed forms where a cell is simple enough to have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn.cells import (
    CELLS,
    GRU,
    LSTM,
    TRNN,
    BiasLaw,
    Cell,
    Gate,
    Input,
    Minimal,
    Peephole,
    Reads,
    Spec,
    Values,
    Vanilla,
)
from isornn.nn.random_network import RandomNetwork
from isornn.simulation import Estimate, _Trace, jacobian_singular_values, simulate


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gate(weight_var: float, input_var: float, bias_var: float = 0.0, bias_mean: float = 0.0) -> Gate:
    return Gate(weight_var=weight_var, input_var=input_var, bias_var=bias_var, bias_mean=bias_mean)


LSTM_ROW_1 = Spec(LSTM(), {"i": gate(1, 0.5), "f": gate(1, 0.5, 0, 1), "g": gate(1, 0.5), "o": gate(1, 0.5)})
PEEPHOLE = Spec(Peephole(), {"i": gate(2, 0.5, 0, 0.5), "f": gate(4, 1, 0.1, 2), "g": gate(3, 0.5)})


def within(found: Estimate, expected: float, relative: float) -> bool:
    """Near by the relative tolerance, and not refuted by the measurement's own error (of a few networks: 5 of it)."""
    off = abs(found.value.item() - expected)
    return off < relative * abs(expected) and off < 5 * found.stderr.item()


def settled(found: Estimate) -> float:
    """The average over the second half of the steps."""
    return found.value[len(found.value) // 2 :].mean().item()


def test_lstm_row_1_of_the_untied_theory() -> None:
    found = simulate(LSTM_ROW_1, width=300, steps=30, networks=8, generator=seeded())
    assert settled(found.second_moment) == pytest.approx(0.0353, rel=0.03)
    assert within(found.chi_1, 0.5630, 0.02)
    assert found.mean.value[-1].abs() < 4 * found.mean.stderr[-1]


def test_peephole_jacobian_of_the_untied_theory() -> None:
    found = simulate(PEEPHOLE, width=400, steps=30, networks=8, singular_values=True, generator=seeded())
    assert found.spectrum is not None
    assert found.spectrum.singular_values.shape == (8, 400)
    assert within(found.spectrum.mean, 1.14694, 0.05)
    assert within(found.spectrum.second_moment, 2.5998, 0.1)
    assert within(found.spectrum.variance, 2.5998 - 1.14694**2, 0.2)
    assert within(found.chi_1, 1.14694, 0.05)


def test_tied_weights_diverge_where_untied_settle() -> None:
    tied = simulate(PEEPHOLE, width=300, steps=41, networks=6, tied=True, generator=seeded()).second_moment
    untied = simulate(PEEPHOLE, width=300, steps=41, networks=2, generator=seeded()).second_moment
    for t, expected in ((1, 0.108), (3, 0.383), (11, 4.68), (41, 77.3)):
        assert tied.value[t - 1].item() == pytest.approx(expected, rel=0.25)
    for t, expected in ((3, 0.326), (11, 0.66), (41, 0.73)):
        assert untied.value[t - 1].item() == pytest.approx(expected, rel=0.2)


def test_identical_copies_stay_identical_where_small_differences_grow() -> None:
    chaotic = Spec(Vanilla(), {"h": gate(9, 0.1)})
    found = simulate(chaotic, width=100, steps=60, networks=1, generator=seeded())
    assert found.chi_1.value > 1.5
    torch.testing.assert_close(found.correlation.value, torch.ones(60, dtype=torch.float64), rtol=0, atol=1e-12)
    apart = simulate(chaotic, width=100, steps=60, networks=1, initial_variance=1.0, generator=seeded())
    assert apart.correlation.value[-1] < 0.7


def test_correlation_follows_the_inputs_step_by_step() -> None:
    # linear without recurrence: C_t is the input correlation of step t
    spec = Spec(Vanilla("identity"), {"h": gate(0, 1)})
    wanted = torch.tensor([1.0, 0.5, 0.0, -1.0])
    found = simulate(spec, width=2000, steps=4, networks=4, input_correlation=wanted, generator=seeded())
    torch.testing.assert_close(found.correlation.value, wanted.double(), rtol=0, atol=0.06)
    assert found.second_moment.value == pytest.approx(torch.ones(4), rel=0.1)


def test_linear_network_has_the_closed_form() -> None:
    # h = W h + U x: Q -> input_var R / (1 - weight_var), |dh|^2 shrinks by weight_var a step
    spec = Spec(Vanilla("identity"), {"h": gate(0.5, 2)}, Input(variance=0.5))
    found = simulate(spec, width=400, input_size=200, steps=20, networks=6, generator=seeded())
    assert settled(found.second_moment) == pytest.approx(2.0, rel=0.05)
    assert found.response.value[0] == 1
    torch.testing.assert_close(
        found.response.value.log2(), -torch.arange(21, dtype=torch.float64), rtol=0.03, atol=0.15
    )
    assert within(found.chi_1, 0.5, 0.03)


@pytest.mark.parametrize(
    ("ensemble", "low", "high", "square"), [("orthogonal", 1, 1, 1), (0.25, 0.75, 1.25, 1 + 0.25**2 / 3)]
)
def test_ensembles_have_their_singular_values(ensemble: Any, low: float, high: float, square: float) -> None:
    spec = Spec(Vanilla("identity"), {"h": Gate(weight_var=4.0, ensemble=ensemble)})
    for tied in (True, False):
        found = simulate(spec, width=100, steps=3, networks=4, tied=tied, singular_values=True, generator=seeded())
        assert found.spectrum is not None
        s = found.spectrum.singular_values / 2
        assert s.min() > low - 1e-12
        assert s.max() < high + 1e-12
        assert found.spectrum.mean.value.item() / 4 == pytest.approx(square, rel=0.05)


def test_fixed_biases_are_kept_and_redrawn_ones_are_not() -> None:
    # without matrices the state is the bias: h_t = f h + (1-f) z with f = 1/2
    def second_moment(biases: Any, **how: bool) -> float:
        spec = Spec(TRNN(), {"z": Gate(bias_var=1.0)}, biases=biases)
        return (
            simulate(spec, width=4000, steps=30, networks=1, generator=seeded(), **how).second_moment.value[-1].item()
        )

    assert second_moment("fixed") == pytest.approx(1.0, rel=0.1)
    assert second_moment("redrawn") == pytest.approx(1 / 3, rel=0.1)
    assert second_moment("redrawn", tied=True) == pytest.approx(1.0, rel=0.1)


def test_mirrored_bias_laws_share_the_units_variate() -> None:
    law = {"f": Gate(bias_law=BiasLaw("chrono", 1, 99)), "i": Gate(bias_law=BiasLaw("chrono", 1, 99, sign=-1))}
    network = RandomNetwork.drawn(Spec(LSTM(), law), width=50, input_size=5, generator=seeded())
    torch.testing.assert_close(network.biases["f"], -network.biases["i"], rtol=0, atol=0)
    assert network.redrawn(seeded(1)).biases["f"].ne(network.biases["f"]).all()
    kept = RandomNetwork.drawn(Spec(LSTM(), law, biases="fixed"), width=50, input_size=5, generator=seeded())
    assert torch.equal(kept.redrawn(seeded(1)).biases["f"], kept.biases["f"])


def test_block_jacobian_of_several_states_is_the_derivative() -> None:
    network = RandomNetwork.drawn(LSTM_ROW_1, width=6, input_size=6, generator=seeded())
    x = torch.randn(6, dtype=torch.float64, generator=seeded(1))
    advance = network.advance(x, x)
    h, c = torch.randn(2, 6, dtype=torch.float64, generator=seeded(2))
    joined, size = torch.cat([h, c]), 1e-6

    def nudged(amount: Tensor) -> Tensor:
        return torch.cat(advance(*(joined + amount).split(6)))

    unit = size * torch.eye(12, dtype=torch.float64)
    differences = torch.stack([(nudged(e) - nudged(-e)) / (2 * size) for e in unit], dim=1)
    expected = torch.linalg.svdvals(differences)
    torch.testing.assert_close(jacobian_singular_values(advance, (h, c)), expected, rtol=0, atol=1e-8)
    found = simulate(LSTM_ROW_1, width=20, steps=5, networks=3, singular_values=True, generator=seeded())
    assert found.spectrum is not None
    assert found.spectrum.singular_values.shape == (3, 40)


def test_error_falls_with_the_width() -> None:
    """chi_1 - theory behaves as 1/sqrt(N): 16 times the width, about a quarter of the spread."""
    spec = Spec(Vanilla("identity"), {"h": gate(1, 0)})

    def spread(width: int) -> float:
        found = simulate(spec, width=width, steps=8, networks=60, tangents=1, generator=seeded())
        return found.chi_1.stderr.item() * math.sqrt(60)

    assert 0.15 < spread(320) / spread(20) < 0.4


def test_warmup_moves_the_change_to_the_fixed_point() -> None:
    # Q is 0 at the start, where tanh' is 1, and settles where it is less
    spec = Spec(Vanilla(), {"h": gate(2, 1)})
    cold = simulate(spec, width=300, steps=2, networks=4, generator=seeded())
    warm = simulate(spec, width=300, steps=2, networks=4, warmup=20, generator=seeded())
    assert warm.second_moment.value.shape == (2,)
    assert warm.second_moment.value[0] > cold.second_moment.value[0] * 1.1
    assert warm.response.value[1] < cold.response.value[1] * 0.95


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_runs_both_ways(name: str) -> None:
    kind = CELLS[name]
    gates = {
        g: Gate(
            weight_var=0.5 * reads.state,
            input_var=0.5 * reads.input,
            previous_input_var=0.5 * reads.previous_input,
            bias_var=0.1,
        )
        for g, reads in kind.gates.items()
    }
    spec = Spec(kind(), gates, Input(correlation=0.5))
    for tied in (True, False):
        found = simulate(spec, width=30, steps=6, networks=2, tied=tied, singular_values=True, generator=seeded())
        assert found.spectrum is not None
        for estimate in (found.mean, found.second_moment, found.correlation, found.chi_1, found.response):
            assert estimate.value.isfinite().all()
            assert estimate.stderr.isfinite().all()
        assert found.response.value.shape == (7,)


class Oja(Cell):
    """A user's cell: nothing of it is known to the library."""

    name = "oja"
    gates = {"h": Reads()}

    def update(self, s: Any, u: Any, x: Any) -> dict[str, Tensor]:
        return {"h": 0.5 * s.h + 0.5 * torch.sin(u.h)}


def test_a_users_cell_is_simulated() -> None:
    found = simulate(Spec(Oja(), {"h": gate(1, 1)}), width=50, steps=5, networks=2, generator=seeded())
    assert 0 < found.chi_1.value < 1


def test_the_same_seed_gives_the_same_numbers() -> None:
    runs = [simulate(LSTM_ROW_1, width=40, steps=5, networks=2, generator=seeded(s)) for s in (3, 3, 4)]
    assert torch.equal(runs[0].second_moment.value, runs[1].second_moment.value)
    assert not torch.equal(runs[0].second_moment.value, runs[2].second_moment.value)


def test_degenerate_points_are_said_and_do_not_break() -> None:
    still = simulate(Spec(LSTM()), width=10, steps=3, networks=2, generator=seeded())
    assert not still.correlation_defined.any() and (still.correlation.value == 1).all()
    assert still.second_moment.value.eq(0).all()
    forgets = simulate(Spec(Vanilla(), {"h": gate(0, 1)}), width=10, steps=3, networks=2, generator=seeded())
    assert forgets.chi_1.value == 0
    assert forgets.response.value.tolist() == [1, 0, 0, 0]
    saturated = Spec(GRU(), {"z": gate(1e4, 0, 0, 50), "nx": gate(0, 1)})
    assert simulate(saturated, width=20, steps=3, networks=2, generator=seeded()).chi_1.value.isfinite()
    one = simulate(LSTM_ROW_1, width=10, steps=1, networks=1, generator=seeded())
    assert one.chi_1.stderr.isinf()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"width": 0}, "width: 0"),
        ({"steps": 0}, "steps: 0"),
        ({"networks": 0}, "networks: 0"),
        ({"tangents": 0}, "tangents: 0"),
        ({"warmup": -1}, "warmup: -1"),
        ({"input_size": 0}, "input_size: 0"),
        ({"input_size": 2.5}, r"input_size: 2\.5 is not allowed; it must be a whole number"),
        ({"initial_variance": -1.0}, "initial_variance: -1"),
        ({"input_correlation": 1.5}, r"input_correlation: 1\.5"),
        ({"input_correlation": math.nan}, "input_correlation: nan"),
        (
            {"input_correlation": torch.ones(3)},
            r"input_correlation: tensor\(.*; it must be one number or 4, from -1 to 1",
        ),
        ({"input_correlation": "a"}, "input_correlation: 'a'"),
        ({"initial_variance": "a"}, "initial_variance: 'a'"),
    ],
)
def test_errors_name_the_argument(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(LSTM_ROW_1, **({"width": 5, "steps": 4} | how))


def test_errors_name_the_spec() -> None:
    with pytest.raises(ValueError, match=r"batch of shape \(2,\)"):
        simulate(Spec(Vanilla(), {"h": Gate(weight_var=torch.ones(2))}))
    with pytest.raises(ValueError, match="input_size: 3 .* the width, 5"):
        simulate(Spec(Minimal()), width=5, input_size=3)


def test_the_correlation_of_two_states_is_about_their_common_mean() -> None:
    a, b = torch.tensor([0.0, 2.0, 4.0]).double(), torch.tensor([3.0, 3.0, 9.0]).double()
    trace = _Trace()
    trace.record(a, b)
    # the mean is 3.5; deviations -3.5, -1.5, 0.5 and -0.5, -0.5, 5.5
    assert float(trace.mean[0]) == 3.5
    assert float(trace.correlation[0]) == pytest.approx((1.75 + 0.75 + 2.75) / 3 / ((14.75 + 30.75) / 6))


@dataclass(frozen=True)
class Hard(Cell):
    """A leaky integrator with a hard gate, as torch's function, which has no second derivative, or as a clamp."""

    name = "hard"
    gates = {"f": Reads(), "n": Reads()}
    clamped: bool = False

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = (u.f / 6 + 0.5).clamp(0, 1) if self.clamped else torch.nn.functional.hardsigmoid(u.f)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n)}


def test_operations_without_second_derivatives_have_tangents_too() -> None:
    def found(cell: Cell) -> torch.Tensor:
        spec = Spec(cell, {"f": Gate(1.0, 1.0), "n": Gate(1.0, 1.0)})
        return simulate(spec, width=50, steps=5, networks=1, generator=torch.Generator().manual_seed(0)).chi_1.value

    torch.testing.assert_close(found(Hard()), found(Hard(clamped=True)))
