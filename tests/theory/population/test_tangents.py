"""Late lags by the rates of units."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import isornn
from isornn.cells import LSTM, Cell, Gate, Reads, Spec, Values, cell_named, initial_parameters
from isornn.cells.activations import hard_sigmoid
from isornn.theory.population.jacobian import _by_new_state, formed_from, linearise
from isornn.theory.population.renewal import Renewal
from isornn.theory.population.tangents import binned, falls, grid


def test_sums_of_exponentials_are_those_of_the_units() -> None:
    loss = torch.logspace(-8.5, -1.5, 4001, dtype=torch.float64)
    for lags in (0.5, 2.0, 6.0):
        lag = (lags / loss).ceil()  # each unit at a lag of its own, some of its time scales away
        found = (binned(torch.ones(len(loss), 1, dtype=torch.float64), loss[:, None]) * grid() ** lag[:, None]).sum(-1)
        assert float((found / (1 - loss) ** lag - 1).abs().max()) < 1e-4, lags


def test_nothing_is_lost_at_the_ends() -> None:
    loss = torch.tensor([0.0, 1e-12, 1e-9, 0.999, 1.0], dtype=torch.float64)
    shares = binned(torch.ones(5, 1, dtype=torch.float64), loss[:, None])
    assert torch.allclose(shares.sum(-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("loss", "bins"),
    [((0.0, 0.5, 1.0), True), ((-1e-15, 1 + 1e-15), True), ((-1e-6, 0.5), False), ((0.5, 1.001), False)],
)
def test_bins_take_what_falls_up_to_rounding(loss: tuple[float, ...], bins: bool) -> None:
    assert falls(torch.tensor(loss, dtype=torch.float64)) is bins


@pytest.mark.parametrize("followed", [3, 20])
def test_curves_that_fall_at_known_rates_go_on_as_they_began(followed: int) -> None:
    """Both curves are sums of exponentials, so that nothing is lost by following them for a few steps only."""
    rates = torch.tensor([0.9, 0.5], dtype=torch.float64)

    def renewal(steps: int) -> Renewal:
        falling = rates ** torch.arange(steps, dtype=torch.float64)[:, None]  # (T, B)
        parts = torch.tensor([[[0.7, 0.3], [0.05, 0.1]]], dtype=torch.float64)  # rows, displacement and class, B
        displaced, kernel = (falling @ parts[:, i, :, None] for i in range(2))
        kernel[:, 0] = 0  # at once nothing comes back
        late = parts * rates**steps
        within = torch.zeros(1, 1, dtype=torch.float64)
        return Renewal.with_late(displaced[..., 0], kernel[..., 0][:, None], within, late, rates)

    torch.testing.assert_close(renewal(followed).profile(60), renewal(60).profile(60))


@pytest.mark.parametrize(("classes", "followed"), [(1, 4), (2, 7), (3, 150)])
def test_blocks_beyond_what_was_followed_are_the_recursion_of_all_lags(classes: int, followed: int) -> None:
    """Of curves that are sums of exponentials, of either sign, with rows that do not act back."""
    length, rates, draw = 400, torch.tensor([0.99, 0.7, 0.2], dtype=torch.float64), torch.Generator().manual_seed(0)
    parts = torch.rand(2, classes + 2, 1 + classes, 3, generator=draw, dtype=torch.float64) - 0.3
    parts[:, :, 1:] *= 0.03 / classes
    within = 0.2 * torch.rand(2, classes, classes, generator=draw, dtype=torch.float64)

    def renewal(steps: int) -> Renewal:
        curves = torch.einsum("grkb,tb->grkt", parts, rates ** torch.arange(steps, dtype=torch.float64)[:, None])
        curves[:, :, 1:, 0] = 0
        return Renewal.with_late(curves[:, :, 0], curves[:, :, 1:], within, parts * rates**steps, rates)

    whole = renewal(length).profile(length)
    torch.testing.assert_close(renewal(followed).profile(length), whole, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(
        renewal(followed).of_classes().profile(length), whole[:, :classes], rtol=1e-10, atol=1e-13
    )


def test_what_grows_without_bound_beyond_what_was_followed_is_a_huge_number() -> None:
    kernel = torch.full((1, 1, 5), 1e9, dtype=torch.float64)
    late, rates = torch.ones(1, 2, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    growing = Renewal.with_late(kernel[0], kernel, torch.zeros(1, 1, dtype=torch.float64), late, rates)
    found = growing.profile(400)
    assert bool(found.isfinite().all()) and float(found[0, -1]) == 1e250


def test_the_output_moves_with_a_state_of_which_nothing_is_kept() -> None:
    """With f = 0 an LSTM's c is i tanh(g) of independent normal numbers, and dh/dc = o tanh'(c)."""
    gates = {name: Gate(weight_var=2.0, input_var=0.5) for name in "igo"} | {"f": Gate(bias_mean=-9.0)}
    answer = isornn.analyze(Spec(LSTM("hard_sigmoid"), gates), length=3)
    size = math.sqrt(2.0 * answer.fixed_point.second_moment.value + 0.5)
    i, g, o = size * torch.randn(3, 400_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = (hard_sigmoid(o) * (1 - (hard_sigmoid(i) * g.tanh()).tanh() ** 2)) ** 2
    assert float(answer.profile[0]) == pytest.approx(float(moved.mean()), rel=0.01)


@pytest.mark.parametrize("cell", [LSTM(), cell_named("cifg"), cell_named("lstm_gers")], ids=str)
def test_what_is_formed_from_a_state_follows_it(cell: Cell) -> None:
    """By the quotient of both derivatives by the old state, and by the new state's own expression."""
    draw = torch.Generator().manual_seed(0)
    states = {name: torch.randn(50, generator=draw, dtype=torch.float64) for name in cell.states}
    u = {name: torch.randn(50, generator=draw, dtype=torch.float64) for name in cell.gates}
    x = torch.randn(50, generator=draw, dtype=torch.float64)
    given = states, Values(**u, **initial_parameters(cell)), x
    _, carry, _ = linearise(cell, *given)
    found, direct = formed_from(cell, "c", *given, carry), _by_new_state(cell, "c", *given)
    assert found.keys() == direct.keys() == {"h"}
    torch.testing.assert_close(found["h"], direct["h"])


@dataclass(frozen=True)
class Stabilised(Cell):
    """xLSTM's sLSTM: c and n are both formed from the new stabiliser m, of which units with m = u_i keep nothing.

    Source: Beck et al. 2024, arXiv:2405.04517, equations 8 to 17.
    """

    name = "stabilised"
    states = ("h", "c", "n", "m")
    gates = dict.fromkeys("ifzo", Reads())

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        kept = torch.nn.functional.logsigmoid(u.f) + s.m
        m = torch.maximum(kept, u.i)
        i, f = torch.exp(u.i - m), torch.exp(kept - m)
        c, n = f * s.c + i * torch.tanh(u.z), f * s.n + i
        return {"h": torch.sigmoid(u.o) * c / n, "c": c, "n": n, "m": m}


def test_several_states_formed_from_one_that_some_units_do_not_keep() -> None:
    """Against 200,000 units with weights drawn at each step, and the tangents of c, n and m, each displaced by itself,
    with h along; the engine ended here with a traceback."""
    gates = {name: Gate(weight_var=0.6, input_var=0.8, bias_mean=0.5) for name in "ifzo"}
    answer = isornn.analyze(Spec(Stabilised(), gates), length=5)
    cell, draw, count = Stabilised(), torch.Generator().manual_seed(0), 200_000

    def noise(rows: int) -> torch.Tensor:
        return torch.randn(rows, count, generator=draw, dtype=torch.float64)

    def drawn(states: dict[str, torch.Tensor]) -> torch.Tensor:
        return (0.6 * states["h"].square().mean() + 0.8).sqrt() * noise(4) + 0.5

    def step(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = cell.update(
            Values(**dict(zip("hcnm", values, strict=False))),
            Values(**dict(zip("ifzo", values[4:], strict=True))),
            None,
        )
        return tuple(new[name] for name in "hcnm")

    states = {name: torch.zeros(count, dtype=torch.float64) for name in "hcnm"}
    for _ in range(40):
        old, u = states, drawn(states)
        states = dict(zip("hcnm", step(*old.values(), *u), strict=True))
    i, f, z, o = u
    kept = torch.nn.functional.logsigmoid(f) + old["m"] > i
    write, value = torch.exp(i - states["m"]), torch.tanh(z)
    dc, dn, dm = noise(3)
    c, n = states["c"], states["n"]
    along_c, along_n = dc + dm * torch.where(kept, -write * value, -c), dn + dm * torch.where(kept, -write, -n)
    tangents = [torch.sigmoid(o) * (along_c / n - c * along_n / n**2), dc, dn, dm]
    shown = [tangents[0].square().mean()]
    for _ in range(5):
        size = (0.6 * shown[-1]).sqrt()
        moved = torch.func.jvp(step, (*states.values(), *drawn(states)), (*tangents, *(size * noise(4))))
        states, tangents = dict(zip("hcnm", moved[0], strict=True)), list(moved[1])
        shown.append(tangents[0].square().mean())
    assert answer.fixed_point.second_moment.number() == pytest.approx(float(states["h"].square().mean()), rel=0.01)
    exact = torch.stack(shown)
    error = torch.hypot(answer.profile_stderr[:6], 0.01 * exact)  # the units here have up to 1 %
    assert bool(((answer.profile[:6] - exact).abs() < 3 * error).all())
    assert bool((answer.profile_stderr[:6] < 0.06 * exact).all())
    assert 1 < (answer.reach.number() or 0) < 2
