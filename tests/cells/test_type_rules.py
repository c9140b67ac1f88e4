"""The type rules: the verdicts that the paper gives, the offences in words, and honest refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import isornn
from isornn.cells import (
    CELLS,
    FURTHER_CELLS,
    GRU,
    LSTM,
    SCRN,
    TGRU,
    TLSTM,
    TMR,
    TRNN,
    Cell,
    ChoGRU,
    CoupledLSTM,
    GersLSTM,
    Minimal,
    Peephole,
    Reads,
    Values,
    Vanilla,
    typing_of,
)

INPUT_ONLY = Reads(state=False)
Update = Callable[[Values, Values, Any], dict[str, Any]]


def cell_of(update: Update, gates: dict[str, Reads], states: tuple[str, ...] = ("h",), read: Any = None) -> Cell:
    """A cell from functions."""
    given_gates, given_states = gates, states

    @dataclass(frozen=True)
    class Given(Cell):
        name = "given"
        input_enters_pointwise = True
        gates = given_gates
        states = given_states

        def read(self, gate: str, s: Values, u: Values) -> Any:
            return super().read(gate, s, u) if read is None else read(gate, s, u)

        def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
            return update(s, u, x)

    return Given()


def typed(step: Callable[[Any, Any, Any], Any]) -> Cell:
    """``h = step(h, u_a, u_b)``, both features read off the input."""
    return cell_of(lambda s, u, x: {"h": step(s.h, u.a, u.b)}, {"a": INPUT_ONLY, "b": INPUT_ONLY})


@pytest.mark.parametrize("cell", [TRNN(), TRNN("hard_sigmoid"), TLSTM(), TGRU(), TMR(), SCRN()])
def test_what_the_paper_calls_strongly_typed(cell: Cell) -> None:
    found = isornn.typing_of(cell)
    assert (found.verdict, found.offences, found.reason) == ("strongly", (), None)
    assert found.carried == cell.states
    assert found.affine == (cell != TMR())


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "identity", "prelu", "leaky_relu", "modrelu"])
def test_vanilla_is_not_typed_as_section_2_3_says(nonlinearity: str) -> None:
    found = typing_of(Vanilla(nonlinearity))
    assert (found.verdict, found.carried) == ("not", ())
    mixes, reads = found.offences
    assert "V z + V^2 z" in mixes and mixes.startswith("W_h takes h to another basis")
    assert reads == "W_h reads h: the feature u_h is not stateless"


@pytest.mark.parametrize(
    ("cell", "carried", "mixing"),
    [
        (LSTM(), "c", "W_g"),
        (CoupledLSTM(), "c", "W_z"),
        (GersLSTM(), "c", "W_"),
        (Peephole(), "c", "W_g"),
        (GRU(), "h", "W_nh"),
        (ChoGRU(), "h", "W_n"),
    ],
)
def test_gated_cells_carry_a_state_coordinatewise_yet_mix_types(cell: Cell, carried: str, mixing: str) -> None:
    found = typing_of(cell)
    assert (found.verdict, found.carried) == ("weakly", (carried,))
    mixes = [offence for offence in found.offences if "another basis" in offence]
    assert len(mixes) == 1 and mixes[0].startswith(mixing)
    stateful = [offence for offence in found.offences if "not stateless" in offence]
    assert len(stateful) == sum(reads.state for reads in cell.gates.values())


def test_a_matrix_that_only_gates_keeps_types_but_is_not_stateless() -> None:
    found = typing_of(Minimal())
    assert (found.verdict, found.offences) == ("weakly", ("W_u reads h: the feature u_u is not stateless",))


def test_mut1_is_typed_but_for_the_reset() -> None:
    """Section 3.1 of the paper: "the behavior of z and h is well-typed, although the gating by r is not"."""

    def read(gate: str, s: Values, u: Values) -> Any:
        return torch.sigmoid(u.r) * s.h if gate == "n" else s.h

    def update(s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = torch.sigmoid(u.z)
        return {"h": z * torch.tanh(u.n + torch.tanh(x)) + (1 - z) * s.h}

    found = typing_of(cell_of(update, {"z": INPUT_ONLY, "r": Reads(), "n": Reads()}, read=read))
    assert found.verdict == "weakly"
    assert not any("W_z" in offence for offence in found.offences)


def test_scrn_adds_a_typed_layer_to_an_untyped_one() -> None:
    def update(s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.sigmoid(u.r + u.p), "s": 0.95 * s.s + 0.05 * u.b}

    def read(gate: str, s: Values, u: Values) -> Any:
        return s.s if gate == "p" else s.h

    gates = {"r": Reads(), "p": Reads(input=False), "b": INPUT_ONLY}
    found = typing_of(cell_of(update, gates, ("h", "s"), read))
    assert (found.verdict, found.carried) == ("weakly", ("s",))
    assert [offence[:3] for offence in found.offences if "another basis" in offence] == ["W_r"]


def test_types_may_not_come_back_by_way_of_two_matrices() -> None:
    def read(gate: str, s: Values, u: Values) -> Any:
        return s.h if gate == "c" else s.c

    def update(s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.h), "c": torch.tanh(u.c)}

    found = typing_of(cell_of(update, {"h": Reads(), "c": Reads()}, ("h", "c"), read))
    assert found.verdict == "not"
    assert sum("another basis" in offence for offence in found.offences) == 2


def test_a_matrix_on_a_feature_of_the_input_is_stateless() -> None:
    """Learnware may be deep: what the second matrix reads was computed from inputs alone."""

    def read(gate: str, s: Values, u: Values) -> Any:
        return torch.relu(u.a)

    def update(s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": 0.9 * s.h + u.b}

    assert typing_of(cell_of(update, {"a": INPUT_ONLY, "b": Reads()}, read=read)).verdict == "strongly"


def test_symmetric_matrices_keep_types() -> None:
    """Equations 12 and 13: V^k = P D^k P^T begins and ends in the same basis."""
    found = typing_of(Vanilla("identity"), symmetric=True)
    assert (found.verdict, len(found.offences)) == ("weakly", 1)
    assert "not stateless" in found.offences[0]
    assert not any("another basis" in offence for offence in typing_of(LSTM(), symmetric=True).offences)


@pytest.mark.parametrize(
    ("step", "affine"),
    [
        (lambda h, a, b: a.sigmoid() * h + b, True),
        (lambda h, a, b: torch.maximum(0.5 * h, a) - b / (1 + a**2), False),
        (lambda h, a, b: (2 - h) / 3 - 1 / (2 + torch.cos(a)), True),
        (lambda h, a, b: torch.clamp(h, -1, 1) * torch.exp(-abs(b)), False),
        (lambda h, a, b: h * torch.tanh(h) + a, False),
        (lambda h, a, b: a / (1 + h * h), False),
        (lambda h, a, b: torch.tensor(2.0) * torch.nn.functional.softplus(a) - h, True),
        (lambda h, a, b: torch.rsub(h, a.frac()), True),
        (lambda h, a, b: torch.nn.functional.softsign(a).mul(h) / b.erfc().exp2(), True),
        (
            lambda h, a, b: torch.sign(h) + torch.nn.functional.gelu(a, approximate="tanh"),
            False,
        ),
    ],
)
def test_pointwise_operations_are_admitted_and_affine_updates_known(step: Any, affine: bool) -> None:
    found = typing_of(typed(step))
    assert (found.verdict, found.affine) == ("strongly", affine)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda h, a, b: torch.softmax(a, -1) * h, "given.update: softmax acts on several units"),
        (lambda h, a, b: a.sigmoid() * h.mean(), "given.update: mean acts on several units"),
        (lambda h, a, b: h + torch.where(a > 0, a, b), "where of 3 values"),
        (lambda h, a, b: torch.lerp(h, a, b), "lerp of 3 values"),
        (lambda h, a, b: torch.stack([h, a, b]).amax(0), "stack of 3 values"),
        (lambda h, a, b: h**a, "pow of 2 values"),
        (lambda h, a, b: torch.max(a) + h, "given.update: max acts on several units"),
        (lambda h, a, b: torch.ones(1) * h, "mul with a tensor of fixed numbers"),
        (lambda h, a, b: torch.ones(3) * h, "given: mul of values (batch, units) failed"),
        (lambda h, a, b: h if float(a.flatten()[0]) > 9 else b, "update could not be traced: float"),
        (lambda h, a, b: h if a else b, "given.update: Boolean value of Tensor with more than one value is ambiguous"),
        (lambda h, a, b: h if a == 0 else b, "given.update: Boolean value of Tensor with more than one value"),
        (lambda h, a, b: h[..., 0] + a, "given: add of values (batch, units) failed"),
    ],
)
def test_what_the_rules_do_not_speak_of_is_undetermined_with_the_reason(step: Any, reason: str) -> None:
    found = typing_of(typed(step))
    assert found.verdict == "undetermined" and found.reason is not None
    assert reason in found.reason
    assert str(found) == f"given: undetermined, {found.reason}"


def test_a_step_that_lacks_a_state_is_undetermined() -> None:
    found = typing_of(cell_of(lambda s, u, x: {"h": s.h}, {"a": INPUT_ONLY}, ("h", "c")))
    assert found.reason is not None and "given.update: the state 'c' is not returned" in found.reason


def test_too_many_products_with_a_matrix_are_undetermined() -> None:
    def update(s: Values, u: Values, x: Any) -> dict[str, Any]:
        h = torch.tanh(u.h)
        for _ in range(13):
            h = h * u.h
        return {"h": h}

    found = typing_of(cell_of(update, {"h": Reads()}))
    assert found.reason is not None and "13 products" in found.reason


def test_the_output_obeys_the_rules_too() -> None:
    @dataclass(frozen=True)
    class Leaks(TRNN):
        name = "leaks"
        gates = {**TRNN.gates, "q": Reads()}

        def output(self, s: Values, u: Values) -> Any:
            return s.h + u.q

    found = typing_of(Leaks())
    assert any(offence.startswith("W_q takes h to another basis") for offence in found.offences)


@pytest.mark.parametrize("kind", (CELLS | FURTHER_CELLS).values(), ids=lambda kind: kind.name)
def test_affine_is_what_the_update_is(kind: type[Cell]) -> None:
    """The trace agrees with the update at three equally spaced states."""
    cell, generator = kind(), torch.Generator().manual_seed(0)

    def normal() -> Tensor:
        return torch.randn(50, dtype=torch.float64, generator=generator)

    u = Values(**{name: normal() for name in (*cell.gates, *cell.parameters)})
    s, x, direction = ({name: normal() for name in (*cell.states, "x")} for _ in range(3))
    lines = [
        cell.update(Values(**{name: s[name] + t * direction[name] for name in cell.states}), u, x["x"])
        for t in (0, 1, 2)
    ]
    straight = all(
        torch.allclose(lines[2][name] - lines[1][name], lines[1][name] - lines[0][name]) for name in cell.states
    )
    assert typing_of(cell).affine == straight
