"""Late lags by the rates of units."""

import pytest
import torch

from isornn.theory.population.response import Renewal
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
