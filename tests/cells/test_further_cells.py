"""Cells beyond the nine against their papers' equations, and vanilla's transitions with a shape of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from isornn.cells import (
    CELLS,
    FURTHER_CELLS,
    LSTM,
    SCRN,
    TMR,
    Cell,
    CoupledLSTM,
    GersLSTM,
    OptionError,
    Values,
    Vanilla,
    cell_named,
)

Array = NDArray[np.float64]
N = 7


def numbers(*names: str) -> dict[str, Array]:
    draws = np.random.default_rng(0)
    return {name: 2 * draws.standard_normal(N) for name in names}


def values(given: dict[str, Array]) -> Values:
    return Values(**{name: torch.from_numpy(value) for name, value in given.items()})


def new_states(cell: Cell, s: dict[str, Array], u: dict[str, Array]) -> list[Array]:
    return [state.numpy() for state in cell.update(values(s), values(u), None).values()]


def logistic(u: Array) -> Array:
    return 1 / (1 + np.exp(-u))


def test_gers_lstm() -> None:
    s, u = numbers("h", "c"), numbers("i", "f", "g", "o", "peep_i", "peep_f", "peep_o")
    i, f = logistic(u["i"] + u["peep_i"] * s["c"]), logistic(u["f"] + u["peep_f"] * s["c"])
    c = f * s["c"] + i * np.tanh(u["g"])
    h = logistic(u["o"] + u["peep_o"] * c) * np.tanh(c)
    np.testing.assert_allclose(new_states(GersLSTM(), s, u), [h, c], atol=1e-14)


def test_gers_lstm_starts_as_the_lstm() -> None:
    s, u = numbers("h", "c"), numbers("i", "f", "g", "o")
    start = {name: np.full(N, value) for name, value in GersLSTM().parameters.items()}
    np.testing.assert_array_equal(new_states(GersLSTM(), s, u | start), new_states(LSTM(), s, u))


def test_coupled_lstm_is_equations_19_to_23() -> None:
    s, u = numbers("h", "c"), numbers("f", "z", "o")
    z, f, o = np.tanh(u["z"]), logistic(u["f"]), np.tanh(u["o"])
    c = f * s["c"] + (1 - f) * z
    np.testing.assert_allclose(new_states(CoupledLSTM(), s, u), [np.tanh(c) * o, c], atol=1e-14)


def test_the_minimal_typed_cell_is_equation_65() -> None:
    s, u = numbers("h"), numbers("z", "scale")
    expected = np.maximum(u["scale"] * s["h"] + u["z"], 0)
    np.testing.assert_allclose(new_states(TMR(), s, u), [expected], atol=1e-14)


def test_scrn_is_equation_14() -> None:
    s, u = numbers("s"), numbers("z")
    np.testing.assert_allclose(new_states(SCRN(alpha=0.3), s, u), [0.3 * s["s"] + 0.7 * u["z"]], atol=1e-14)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan, True, "1"])
def test_scrn_refuses_an_alpha_that_is_no_average(alpha: object) -> None:
    with pytest.raises(OptionError, match=r"options.alpha: .* is not a number from 0 to 1"):
        SCRN(alpha=alpha)  # type: ignore[arg-type]


def test_prelu_is_torchs_with_a_slope_per_unit() -> None:
    u = torch.linspace(-3, 3, N)
    slope = torch.linspace(0, 1, N)
    expected = nn.functional.prelu(u[None], slope)[0]
    torch.testing.assert_close(Vanilla("prelu").update(Values(), Values(h=u, slope=slope), None)["h"], expected)
    assert Vanilla("prelu").parameters == {"slope": nn.PReLU().weight.item()}


@pytest.mark.parametrize("slope", [0.5, 0.7, 1.0])
def test_a_clamped_slope_is_a_leaky_relu(slope: float) -> None:
    cell, u = Vanilla("leaky_relu", slope=slope), torch.linspace(-3, 3, N)
    torch.testing.assert_close(cell.update(Values(), Values(h=u), None)["h"], nn.functional.leaky_relu(u, slope))
    assert cell.parameters == {}


def test_modrelu_has_a_dead_zone_and_starts_as_the_identity() -> None:
    cell, u = Vanilla("modrelu"), torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0])
    start = torch.full_like(u, cell.parameters["offset"])
    torch.testing.assert_close(cell.update(Values(), Values(h=u, offset=start), None)["h"], u)
    shrunk = cell.update(Values(), Values(h=u, offset=torch.full_like(u, -1.0)), None)["h"]
    torch.testing.assert_close(shrunk, torch.tensor([-2.0, 0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize("cell", [Vanilla("prelu"), Vanilla("modrelu"), TMR(), GersLSTM()], ids=lambda cell: cell.name)
def test_gradients_of_the_update_and_of_its_parameters(cell: Cell) -> None:
    generator = torch.Generator().manual_seed(0)
    names = [*cell.gates, *cell.parameters]
    draws = [torch.randn(N, dtype=torch.float64, generator=generator) for _ in (*cell.states, *names)]

    def update(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = Values(**dict(zip(cell.states, given, strict=False)))
        u = Values(**dict(zip(names, given[len(cell.states) :], strict=True)))
        return tuple(cell.update(states, u, None).values())

    assert torch.autograd.gradcheck(update, [draw.requires_grad_() for draw in draws])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonlinearity": "maxout"}, "options.nonlinearity: 'maxout' is not one of tanh, .*, modrelu, oplu"),
        ({"nonlinearity": "prelu", "slope": math.inf}, "options.slope: inf is not a finite number"),
        ({"nonlinearity": "prelu", "slope": True}, "options.slope: True is not a finite number"),
        ({"nonlinearity": "tanh", "slope": 0.5}, "options.slope: tanh has no slope"),
    ],
)
def test_vanilla_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        cell_named("vanilla", options)


def test_the_nine_names_are_fixed_and_the_further_ones_known_beside_them() -> None:
    assert list(CELLS) == ["vanilla", "minimal", "gru", "gru_cho", "lstm", "peephole", "t_rnn", "t_lstm", "t_gru"]
    assert all(cell_named(name) == kind() for name, kind in FURTHER_CELLS.items())
    with pytest.raises(OptionError, match="options.gate: .* is not allowed; t_mr has none"):
        cell_named("t_mr", {"gate": "sigmoid"})
    with pytest.raises(OptionError, match="cell: 'elman' is not one of vanilla, .*, t_gru, .*t_mr"):
        cell_named("elman")
