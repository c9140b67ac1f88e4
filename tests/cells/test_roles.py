"""What gates are for: every cell of the catalogue by hand, cells of a user's own, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from checked import MGU
from isornn.cells import (
    CELLS,
    FURTHER_CELLS,
    LSTM,
    BiasLaw,
    Cell,
    Gate,
    GersLSTM,
    Reads,
    Spec,
    SpecError,
    Values,
    Vanilla,
    cell_named,
)
from isornn.cells.errors import CellError
from isornn.cells.graph import Leaf
from isornn.cells.graph_values import at_start
from isornn.cells.openings import bias_of, refusal, retention_signs, set_by, write_signs
from isornn.cells.roles import roles_of
from isornn.cells.starts import start
from isornn.theory import analyze
from retaining_cells import Exponential, Normalised, Refined, Spelled, TwoMemories

# remember, write and candidates as the cells once said themselves, and what only shapes the output.
BY_HAND: dict[str, tuple[str | None, str | None, tuple[str, ...], tuple[str, ...]]] = {
    "vanilla": (None, None, ("h",), ()),  # by hand it had no candidate
    "minimal": ("u", "u", (), ()),
    "gru": ("z", "z", ("nx", "nh"), ()),  # by hand nx alone
    "gru_cho": ("z", "z", ("n",), ()),
    "lstm": ("f", "i", ("g",), ("o",)),
    "peephole": ("f", "i", ("g",), ("o",)),
    "t_rnn": ("f", "f", ("z",), ()),
    "t_lstm": ("f", "f", ("z",), ("o",)),
    "t_gru": ("f", None, ("z", "o"), ()),
    "lstm_gers": ("f", "i", ("g",), ("o",)),
    "lstm_coupled": ("f", "f", ("z",), ("o",)),
    "cifg": ("f", "f", ("g",), ("o",)),
    "ind_rnn": (None, None, ("z",), ()),
    "lru": (None, None, ("re", "im"), ()),
    "rg_lru": ("r", "r", (), ()),
    "mgu": ("f", "f", ("n",), ()),
    "mut1": ("z", "z", ("n",), ()),
    "min_gru": ("z", "z", ("n",), ()),
    "min_lstm": ("f", "f", ("n",), ()),
    "ur_lstm": ("f", "f", ("z",), ("o",)),
    "ur_gru": ("f", "f", ("n",), ()),
    "sru": ("f", "f", ("z",), ("r", "p")),
    "t_mr": (None, None, ("z",), ()),
    "scrn": (None, None, ("z",), ()),
}
# By cell, the gates with which the state is retained less as they open.
FORGETS = {"rg_lru": ("r",), "mgu": ("f",), "mut1": ("z",), "min_gru": ("z",), "min_lstm": ("i",)}
HARD = [name for name in BY_HAND if "gate" in getattr((CELLS | FURTHER_CELLS)[name], "__dataclass_fields__", {})]


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_catalogues_roles_are_those_once_written_by_hand(name: str) -> None:
    for cell in [cell_named(name)] + ([cell_named(name, {"gate": "hard_sigmoid"})] if name in HARD else []):
        roles = roles_of(cell)
        write = roles.write[0] if roles.write else None
        assert (roles.remember, write, roles.candidates, roles.read_out) == BY_HAND[name]
        signs = {gate: sign for state in roles.retained for gate, sign in state.retention.items()}
        assert signs == {gate: -1 if gate in FORGETS.get(name, ()) else 1 for gate in signs}
    assert set(BY_HAND) == set(CELLS | FURTHER_CELLS)


@pytest.mark.parametrize("name", HARD)
def test_hard_gates_have_kinks(name: str) -> None:
    hard = roles_of(cell_named(name, {"gate": "hard_sigmoid"})).gates
    assert hard and tuple(hard) == tuple(roles_of(cell_named(name)).gates)
    assert all(gate.kinks == (-2.5, 2.5) and gate.middle == 0 for gate in hard.values())
    assert all(not gate.kinks for gate in roles_of(cell_named(name)).gates.values())


def test_cells_of_ones_own() -> None:
    (h,) = roles_of(MGU()).retained
    assert (h.retention, h.write, h.candidates, h.coupled) == ({"f": -1}, ("f",), ("n",), True)
    c, d = roles_of(TwoMemories()).retained
    assert (c.state, c.retention, c.own_write, c.candidates) == ("c", {"f": 1}, ("i",), ("g",))
    assert (d.state, d.retention, d.own_write, d.candidates) == ("d", {"k": -1}, (), ("m",))
    assert tuple(roles_of(TwoMemories()).gates) == ("f", "i", "k", "o")
    assert roles_of(TwoMemories()).read_out == ("o",)
    assert roles_of(Refined()).retained[0].retention == {"f": 1, "r": 1}
    assert roles_of(Normalised()).retained[0].retention == {"f": 1, "i": -1}
    (a,) = roles_of(Exponential()).retained
    assert (a.retention, a.write, a.candidates, a.coupled) == ({"r": -1}, ("r", "i"), ("z",), True)


@pytest.mark.parametrize("spelling", ["difference", "lerp", "negated", "shifted", "squared", "logistic content"])
def test_a_role_does_not_depend_on_the_spelling(spelling: str) -> None:
    roles = roles_of(Spelled(spelling))
    assert roles.retained[0].retention == {"f": -1} and tuple(roles.gates) == ("f",)
    assert roles.candidates == ("n",)


def test_what_is_no_gate() -> None:
    assert not roles_of(Vanilla("sigmoid")).gates and not roles_of(Vanilla("sigmoid")).retained
    assert not roles_of(Spelled("curved")).retained
    assert "cannot be traced" in (refusal(Vanilla("oplu")) or "")
    hard = roles_of(Spelled("hardsigmoid")).gates["f"]
    assert hard.kinks == () and roles_of(Spelled("hardsigmoid")).retained[0].retention == {"f": -1}


def test_a_trained_peephole_counts_in_the_gate_and_not_as_retention() -> None:
    cell, u, c = GersLSTM(), doubles(0.3, -0.7), doubles(0.5, -2.0)
    values = {Leaf("gate", "f"): u, Leaf("state", "c"): c, Leaf("parameter", "peep_f"): doubles(1.5, -0.5)}

    def leaves(leaf: Leaf) -> torch.Tensor:
        return values.get(leaf, torch.full((2,), 0.1, dtype=torch.float64))

    f = torch.sigmoid(u + doubles(1.5, -0.5) * c)
    torch.testing.assert_close(roles_of(cell).gates["f"].value(leaves), f)
    torch.testing.assert_close(roles_of(cell).retained[0].coefficient(leaves), f)


def test_roles_can_be_stated() -> None:
    @dataclass(frozen=True)
    class Stated(Refined):
        remember = "r"
        candidates = ("n",)

    @dataclass(frozen=True)
    class Wrong(MGU):
        remember = "n"

    assert roles_of(Stated()).retained[0].retention == {"r": 1}
    with pytest.raises(CellError, match=r"mgu.remember: 'n' .* depend on: f"):
        roles_of(Wrong())


# -- the inverse ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cell",
    [LSTM(), LSTM("hard_sigmoid"), MGU(), Refined(), Normalised(), Exponential(), Spelled("squared")],
    ids=lambda cell: cell.name,
)
def test_the_bias_of_a_law_is_where_the_state_keeps_its_share(cell: Cell) -> None:
    state = roles_of(cell).gated[0]
    v = doubles(0.0, 0.1, 0.5, 0.9, 1.0)
    for kind, wanted in (("timescale", 1 + 2e5 * v), ("log_timescale", (v * math.log(200_001.0)).exp())):
        biases = {
            gate: bias_of(cell, gate, BiasLaw(kind, 1.0, 200_001.0, state.retention[gate]), v) for gate in set_by(state)
        }
        kept = state.coefficient(at_start(cell, biases))
        torch.testing.assert_close(kept / (1 - kept), wanted, rtol=1e-8, atol=0)


def test_logistic_gates_have_the_logarithm_itself() -> None:
    law = BiasLaw("chrono", 1.0, 99.0)
    v = doubles(0.25, 0.5)
    assert torch.equal(bias_of(LSTM(), "f", law, v), law.quantile(v))
    assert torch.equal(bias_of(MGU(), "f", replace(law, sign=-1), v), -law.quantile(v))
    # files that name the gate's inverse mean it for any cell
    hard = replace(law, kind="hard_timescale")
    assert torch.equal(bias_of(LSTM(), "f", hard, v), hard.quantile(v))


@pytest.mark.parametrize("name", ["chrono", "uniform_gate"])
def test_where_no_bias_sets_the_retention_it_is_refused_with_the_condition(name: str) -> None:
    with pytest.raises(SpecError, match="no bias of f takes what spelled's h keeps in a step from 1/2 to 1"):
        start(name, Spelled("weak"), 8, 3, length=100)
    with pytest.raises(SpecError, match="no bias of r takes what exponential's h keeps in a step from 1/2 to 1"):
        start(name, Exponential(0.5), 8, 3, length=100)


def test_a_share_that_the_state_cannot_keep_is_refused() -> None:
    law = BiasLaw("timescale", 0.001, 0.001, -1)
    refused = r"exponential.* gate r would have to be open to 0.999.*, and goes from .* to 0.996"
    with pytest.raises(SpecError, match=refused):
        bias_of(Exponential(), "r", law, doubles(0.5))


def test_a_gate_that_retains_one_state_by_what_it_forgets_another_is_refused() -> None:
    @dataclass(frozen=True)
    class Opposed(Cell):
        name = "opposed"
        states = ("h", "c")
        gates = {"f": Reads(), "n": Reads()}

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            f = torch.sigmoid(u.f)
            return {"h": f * s.h + torch.tanh(u.n), "c": (1 - f) * s.c + torch.tanh(u.n)}

    with pytest.raises(SpecError, match="opposed's gate f retains one state by what it forgets another"):
        start("chrono", Opposed(), 8, 3, length=100)


# -- the starts -------------------------------------------------------------------------------------------------------


def test_starts_follow_the_sign() -> None:
    assert start("standard", MGU(), 8, 3).gates["f"].bias_mean == -1
    two = start("standard", TwoMemories(), 8, 3).gates
    assert {name: gate.bias_mean for name, gate in two.items() if gate.bias_mean} == {"f": 1, "k": -1}
    chrono = start("chrono", TwoMemories(), 8, 3, length=100).gates
    assert {name: gate.bias_law.sign for name, gate in chrono.items() if gate.bias_law} == {"f": 1, "i": -1, "k": -1}
    assert retention_signs(TwoMemories()) == {"f": 1, "k": -1} and write_signs(TwoMemories()) == {"i": 1}
    law = start("uniform_gate", MGU(), 8, 3).gates["f"].bias_law
    assert law is not None
    v = doubles(0.1, 0.7)
    torch.testing.assert_close(1 - bias_of(MGU(), "f", law, v).sigmoid(), v)


class HardGate(Cell):
    """A leaky integrator with the hard sigmoid .2 u + .5 in the spelling of a subclass."""

    name = "hard_gate"
    gates = {"f": Reads(), "n": Reads()}

    def squash(self, u: Any) -> Any:
        raise NotImplementedError

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.squash(0.2 * u.f + 0.5)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n)}


HARD_SPELLINGS: dict[str, Callable[[Any, Any], Any]] = {
    "clamp": lambda self, u: torch.clamp(u, 0.0, 1.0),
    "clip": lambda self, u: u.clip(min=0, max=1),
    "hardtanh": lambda self, u: torch.nn.functional.hardtanh(u, 0.0, 1.0),
    "hardtanh by name": lambda self, u: torch.nn.functional.hardtanh(u, min_val=0.0, max_val=1.0),
}


@pytest.mark.parametrize("spelling", HARD_SPELLINGS)
def test_a_hard_gate_does_not_depend_on_the_spelling(spelling: str) -> None:
    cell = type("Own", (HardGate,), {"squash": HARD_SPELLINGS[spelling]})()
    gate = roles_of(cell).gates["f"]
    assert gate.kinks == (-2.5, 2.5) and roles_of(cell).remember == "f"


def test_other_bounds_are_no_gate() -> None:
    cell = type("Own", (HardGate,), {"squash": lambda self, u: torch.nn.functional.hardtanh(u)})()
    assert not roles_of(cell).gates


@dataclass(frozen=True)
class LeakyGated(Cell):
    """A gated state with a leak beside the gate, which bounds what it keeps in a step."""

    name = "leaky_gated"
    gates = {"z": Reads(), "n": Reads()}
    leak: float = 0.01

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = torch.sigmoid(u.z)
        return {"h": (1 - self.leak) * z * s.h + (1 - z) * torch.tanh(u.n)}


def test_a_refused_retention_is_stated_with_its_bounds() -> None:
    bounds = "here it is from 0 to 0.99, so that h sees at most 49.7 steps, whatever the biases"
    assert str(refusal(LeakyGated())).endswith(f"rising or falling throughout ({bounds})")


def test_how_far_a_leak_lets_a_state_see_is_the_reach_of_open_gates() -> None:
    gates = {"z": Gate(bias_mean=12.0), "n": Gate(weight_var=1e-6, input_var=1.0)}
    reach = analyze(Spec(LeakyGated(), gates), length=200).reach.number()
    assert reach == pytest.approx(-0.5 / math.log(0.99), rel=0.01)
