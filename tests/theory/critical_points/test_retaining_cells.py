"""`critical_` of cells of a user's own: how long networks that it draws retain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from checked import MGU
from isornn import critical, init, isometric, nn
from isornn.cells import LSTM, BiasLaw, Cell, CoupledLSTM, Gate, Spec, SpecError
from isornn.cells.linear import RGLRU
from isornn.cells.sru import SRU
from isornn.theory.carry import carry_of
from isornn.theory.critical_points.costs import costs
from retaining_cells import Averaged, AveragedByOption, Exponential, Leaky, Refined, Spelled, TwoMemories

LENGTH, WARMUP, NETWORKS = 100, 100, 6


@dataclass(frozen=True)
class Misnamed(MGU):
    """Its author calls f the remember gate, though the state keeps 1 - f."""

    remember = "f"


@dataclass(frozen=True)
class WriteOnly(MGU):
    """Its author names the write gate alone."""

    write = "f"


def reach_of_networks(cell: Cell, state: str) -> int:
    """Steps after the first until the mean square of a change of ``state`` has fallen to 1/e of its first value."""
    generator, total = torch.Generator().manual_seed(0), torch.zeros(2 * LENGTH, dtype=torch.float64)
    layers = [nn.RNN(cell, 3, 64) for _ in range(NETWORKS)]
    init.critical_(torch.nn.ModuleList(layers), LENGTH, generator=generator)  # together, as each call solves anew
    for layer in layers:
        layer.double().requires_grad_(False)
        x = torch.randn(WARMUP + 2 * LENGTH, 8, 3, generator=generator, dtype=torch.float64)
        _, here = layer(x[:WARMUP])
        here = here if isinstance(here, tuple) else (here,)
        place = cell.states.index(state)
        change = 1e-6 * torch.randn(here[place].shape, generator=generator, dtype=torch.float64)
        there = tuple(value + change if k == place else value for k, value in enumerate(here))
        both = tuple(torch.cat(pair, 1) for pair in zip(here, there, strict=True))
        for step, now in enumerate(x[WARMUP:, None].repeat(1, 1, 2, 1)):
            _, both = layer(now, both if len(both) > 1 else both[0])
            both = both if isinstance(both, tuple) else (both,)
            here_now, there_now = both[place].chunk(2, 1)
            total[step] += (here_now - there_now).square().sum() * 1e12
    return int((total < total[0] / torch.e).nonzero()[0])


@pytest.mark.parametrize(
    ("cell", "state"),
    [
        (MGU(), "h"),
        (Misnamed(), "h"),
        (WriteOnly(), "h"),
        (TwoMemories(), "c"),
        (TwoMemories(), "d"),
        (Refined(), "h"),
        (Exponential(), "h"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_networks_retain_as_long_as_they_are_asked_to(cell: Cell, state: str) -> None:
    assert LENGTH / 2 <= reach_of_networks(cell, state) <= 2 * LENGTH


def test_the_theory_of_ones_own_cell_says_so_too() -> None:
    point = critical(MGU(), 30)
    assert [c.met for c in point.conditions] == [True, True]
    law = point.spec.gates["f"].bias_law
    assert law is not None and law.sign == -1
    redrawn = isometric(MGU(), 30, biases="redrawn")
    assert redrawn.spec.gates["f"].bias_mean < -2 and redrawn.conditions[0].met


def test_two_retained_states_have_the_same_law_each() -> None:
    gates = init.spec_of(init.critical_(nn.RNN(TwoMemories(), 3, 512), 100)).gates
    assert gates["f"].bias_mean == pytest.approx(-gates["k"].bias_mean, rel=1e-6)
    assert gates["i"].bias_mean == pytest.approx(-gates["f"].bias_mean, rel=1e-6)


def test_an_output_gate_that_would_silence_the_output_has_an_input() -> None:
    gates = critical(CoupledLSTM(), 20).spec.gates
    assert gates["o"].input_var == 1 and gates["o"].weight_var == 1
    assert critical(LSTM(), 20).spec.gates["o"].input_var == 0


def test_what_cannot_be_started_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match="no bias of f takes what spelled's h keeps"):
        init.critical_(nn.RNN(Spelled("weak"), 3, 8), 20)
    with pytest.raises(SpecError, match="rg_lru's h keeps .* a new layer has its start already, by the law of Lambda"):
        init.critical_(nn.RNN(RGLRU(), 8, 8), 20)
    with pytest.raises(SpecError, match="start with different parameters; isornn.critical has a start for it"):
        isometric(SRU(), 20)
    with pytest.raises(SpecError, match=r"cell: 'exponential' .* no bias of r takes what exponential's h keeps"):
        init.critical_(nn.RNN(Exponential(0.5), 3, 8), 20)


@pytest.mark.parametrize("cell", [Averaged(), AveragedByOption()], ids=lambda cell: cell.name)
def test_the_state_that_a_gate_retains_is_the_slow_one(cell: Cell) -> None:
    init.critical_(nn.RNN(cell, 3, 4), LENGTH)
    point = critical(cell, LENGTH)
    assert carry_of(point.spec).state == "c"
    assert point.probably_holds()
    biases = point.spec.replace("f.input_var", 0.0)
    assert carry_of(biases).reach() == pytest.approx(LENGTH, rel=1e-3)


def test_a_decay_that_no_gate_sets_is_that_of_units_with_different_biases() -> None:
    spec = Spec(Leaky(), {"n": Gate(input_var=1.0, bias_law=BiasLaw("timescale", 1.0, 9.0))}, biases="fixed")
    carry = carry_of(spec)
    assert carry.rates.shape == carry.weight.shape
    assert carry.mean == pytest.approx(0.81)
    assert carry.reach() == pytest.approx(-0.5 / math.log(0.9))


def test_isometry_is_that_of_the_gated_state() -> None:
    spec = Spec(Averaged(), {"f": Gate(bias_mean=math.log(999.0)), "n": Gate(input_var=1.0)})
    found = costs(spec, LENGTH, generator=torch.Generator().manual_seed(0))
    assert found["isometry"].number() == pytest.approx(LENGTH * (1 - 0.999**2), rel=1e-6)  # of h it is 75
