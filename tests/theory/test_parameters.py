"""A cell's own trained numbers are, to the theory, the constants they start as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from isornn.cells import LSTM, Cell, Gate, GersLSTM, Reads, Spec, Values
from isornn.cells.linear import LRU
from isornn.cells.structure import structure_of
from isornn.cells.trace import graph_of
from isornn.nn import step
from isornn.simulation import simulate
from isornn.theory import analyze
from isornn.theory.tied.analysis import tied_analysis

SLOPE, KEEP = 0.25, 0.7


class _Leaky(Cell):
    """A leaky gated vanilla network; the subclasses say where its two numbers come from."""

    gates = {"f": Reads(), "h": Reads()}

    def numbers(self, u: Values) -> tuple[Any, Any]:
        raise NotImplementedError

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return self.numbers(u)[1] * s.h if gate == "f" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        slope, keep = self.numbers(u)
        leaky = torch.relu(u.h) - slope * torch.relu(-u.h)
        return {"h": keep * torch.sigmoid(u.f) * s.h + (1 - keep) * leaky}


@dataclass(frozen=True)
class Written(_Leaky):
    name = "written"

    def numbers(self, u: Values) -> tuple[Any, Any]:
        return SLOPE, KEEP


@dataclass(frozen=True)
class Named(_Leaky):
    name = "named"
    parameters = {"slope": SLOPE, "keep": KEEP}

    def numbers(self, u: Values) -> tuple[Any, Any]:
        return u.slope, u.keep


def spec(cell: Cell) -> Spec:
    return Spec(cell, {"f": Gate(0.5, 1.0, bias_mean=1.0), "h": Gate(1.0, 1.0)})


@pytest.mark.parametrize("engine", ["quadrature", "population"])
def test_the_theory_takes_the_initial_value(engine: Any) -> None:
    written, named = (analyze(spec(cell), engine=engine, length=20) for cell in (Written(), Named()))
    assert named.engine == written.engine == engine
    for read in ("chi", "xi", "chi_1"):
        torch.testing.assert_close(getattr(named, read).value, getattr(written, read).value, equal_nan=True)
    for read in ("mean", "second_moment", "correlation"):
        found, expected = (getattr(answer.fixed_point, read).value for answer in (named, written))
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_theory_of_gers_lstm_is_the_lstms_while_its_peepholes_are_0() -> None:
    plain, gers = (analyze(Spec(cell, dict.fromkeys("ifgo", Gate(0.5, 0.5)))) for cell in (LSTM(), GersLSTM()))
    torch.testing.assert_close(gers.chi.value, plain.chi.value)
    torch.testing.assert_close(gers.xi.value, plain.xi.value)


def test_a_function_of_a_parameter_is_a_number() -> None:
    @dataclass(frozen=True)
    class Rate(Cell):
        name = "rate"
        gates = {"z": Reads(state=False)}
        parameters = {"rate": 0.0}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            keep = torch.sigmoid(u.rate)
            return {"h": keep * s.h + (1 - keep) * u.z}

    update = structure_of(Rate()).update["h"]
    assert [term.coefficient for term in update.part("h", 1).terms] == [0.5]


def test_simulation_takes_the_initial_value() -> None:
    runs = [
        simulate(spec(cell), width=20, steps=5, networks=2, generator=torch.Generator().manual_seed(0))
        for cell in (Written(), Named())
    ]
    torch.testing.assert_close(runs[1].second_moment.value, runs[0].second_moment.value)


def test_a_step_takes_one_value_per_unit() -> None:
    keep, slope = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5])
    drive = {"f": torch.zeros(2), "h": torch.tensor([-2.0, -2.0])}
    states = Values(h=torch.ones(2))
    new, _ = step(Named(), states, drive, lambda gate, r: 0 * r, parameters={"keep": keep, "slope": slope})
    torch.testing.assert_close(new.h, torch.tensor([-1.0, 0.5]))
    assert graph_of(Named()).plain_reads == ("h",)


def test_numbers_made_of_parameters_alone_are_numbers_however_they_are_made() -> None:
    @dataclass(frozen=True)
    class Modulus(Cell):
        name = "modulus"
        gates = {"z": Reads(state=False)}
        parameters = {"a": 0.3, "b": 0.4}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            keep = torch.stack([torch.hypot(u.a, u.b), u.a]).amax(0)
            return {"h": keep**1.5 * s.h + u.z / (2 * u.a)}

    update = structure_of(Modulus()).update["h"]
    assert [term.coefficient for term in update.terms] == pytest.approx([0.5**1.5, 1 / 0.6])


def test_tied_networks_draw_parameters_once_per_unit() -> None:
    half, steps = Gate(input_var=0.5), 8
    cell = LRU(low=0.5, high=0.9)
    found = tied_analysis(Spec(cell, {"re": half, "im": half}), steps, generator=torch.Generator().manual_seed(0))
    # E Re(x_t)^2 = (1 - E |lambda|^2t) / 2, with |lambda|^2 uniform from low^2 to high^2
    low, high, t = cell.low**2, cell.high**2, torch.arange(1, steps + 1)
    exact = (1 - (high ** (t + 1) - low ** (t + 1)) / ((t + 1) * (high - low))) / 2
    torch.testing.assert_close(found.second_moment.value, exact.double(), rtol=0.02, atol=0)
