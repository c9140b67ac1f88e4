"""What is read off a cell's update: right polynomials, kinks, and refusals that say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from checked import MGU
from isornn.cells import CELLS, Cell, Gate, Reads, Spec, Values, Vanilla, cell_named
from isornn.cells.errors import CellError
from isornn.cells.graph import INPUT
from isornn.cells.polynomial import Polynomial
from isornn.cells.structure import structure_of
from isornn.theory import NotPolynomial, analyze
from isornn.theory.quadrature.affine import AffineTheory
from isornn.theory.quadrature.gate_law import GateLaw

OPTIONS: list[tuple[str, dict[str, str]]] = [
    *(("vanilla", {"nonlinearity": n}) for n in ("tanh", "sigmoid", "relu", "identity")),
    *((name, {"gate": g}) for name in CELLS if name != "vanilla" for g in ("sigmoid", "hard_sigmoid")),
]
EVERY = pytest.mark.parametrize(
    ("name", "options"), OPTIONS, ids=lambda x: x if isinstance(x, str) else next(iter(x.values()))
)


def evaluate(polynomial: Polynomial, values: dict[str, Tensor], u: dict[str, Tensor]) -> Tensor:
    """The polynomial's value, term by term."""
    total = torch.zeros_like(next(iter(values.values())))
    for term in polynomial.terms:
        assert not term.opaque
        product: Any = term.coefficient
        for gate, factors in term.factors.items():
            for factor in factors:
                product = product * factor.call(u[gate])
        for variable, power in term.powers.items():
            product = product * values[variable] ** power
        total = total + product
    return total


def drawn(cell: Cell) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    values = {v: torch.randn(50, generator=generator, dtype=torch.float64) for v in (*cell.states, INPUT)}
    return values, {g: 2 * torch.randn(50, generator=generator, dtype=torch.float64) for g in cell.gates}


@EVERY
def test_the_polynomial_is_the_update(name: str, options: dict[str, str]) -> None:
    cell = cell_named(name, options)
    structure = structure_of(cell)
    values, u = drawn(cell)
    states, gates = Values(**{s: values[s] for s in cell.states}), Values(**u)
    update = cell.update(states, gates, values[INPUT])
    assert set(structure.update) == set(cell.states)
    for state, polynomial in structure.update.items():
        if polynomial.obstacle() is None:
            torch.testing.assert_close(evaluate(polynomial, values, u), update[state], rtol=0, atol=1e-14)
    for gate, polynomial in structure.reads.items():
        torch.testing.assert_close(evaluate(polynomial, values, u), cell.read(gate, states, gates), rtol=0, atol=1e-14)


@EVERY
def test_derivatives_are_autograds(name: str, options: dict[str, str]) -> None:
    cell = cell_named(name, options)
    values, u = drawn(cell)
    u = {gate: value.requires_grad_(True) for gate, value in u.items()}
    states, gates = Values(**{s: values[s] for s in cell.states}), Values(**u)
    update = cell.update(states, gates, values[INPUT])
    for state, polynomial in structure_of(cell).update.items():
        if polynomial.obstacle() is not None:
            continue
        for gate in cell.gates:
            (expected,) = torch.autograd.grad(update[state].sum(), u[gate], retain_graph=True, allow_unused=True)
            found = evaluate(polynomial.derivative(gate), values, u)
            torch.testing.assert_close(
                found, torch.zeros(50).double() if expected is None else expected, rtol=0, atol=1e-13
            )


QUADRATURE = {"vanilla", "minimal", "gru_cho", "peephole", "t_rnn", "t_lstm", "t_gru"}


@EVERY
def test_which_cells_the_deterministic_engine_takes(name: str, options: dict[str, str]) -> None:
    cell = cell_named(name, options)
    if name in QUADRATURE:
        theory = AffineTheory(Spec(cell))
        values, u = drawn(cell)
        again = evaluate(theory.A, values, u) * values[cell.states[0]] + evaluate(theory.B, values, u)
        torch.testing.assert_close(again, evaluate(theory.update, values, u))
    else:
        with pytest.raises(
            NotPolynomial, match="several states: h, c" if name == "lstm" else "tanh of an expression in"
        ):
            AffineTheory(Spec(cell))


def test_a_users_cell_gets_the_deterministic_engine() -> None:
    spec = Spec(MGU(), {"f": Gate(1, 1), "n": Gate(1, 1)})
    exact, sampled = analyze(spec), analyze(spec, engine="population")
    assert (exact.engine, sampled.engine) == ("quadrature", "population")
    points, jacobians = (exact.fixed_point, sampled.fixed_point), (exact.jacobian, sampled.jacobian)
    pairs = [tuple(point.second_moment for point in points), (exact.chi, sampled.chi)]
    pairs += [tuple(getattr(jacobian, name) for jacobian in jacobians) for name in ("mean", "second_moment")]
    for a, b in pairs:
        assert abs(a.number() - b.number()) < 5 * b.error()


class Tried(Cell):
    """A cell whose update is the test's."""

    name = "tried"
    gates = {"f": Reads(), "g": Reads()}
    input_enters_pointwise = True
    change: Callable[[Any, Any, Any], Any]

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": type(self).change(s, u, x)}


def tried(change: Callable[[Any, Any, Any], Any]) -> Cell:
    return type("One", (Tried,), {"change": staticmethod(change)})()


def test_torch_functions_as_methods_and_other_spellings() -> None:
    reference = structure_of(tried(lambda s, u, x: torch.sigmoid(u.f) * s.h + torch.tanh(u.g) ** 2)).update["h"]
    same = [
        lambda s, u, x: torch.add(torch.mul(torch.sigmoid(u.f), s.h), torch.square(torch.tanh(u.g))),
        lambda s, u, x: s.h * torch.special.expit(u.f) + torch.pow(torch.tanh(u.g), 2),
        lambda s, u, x: s.h * u.f.sigmoid() + u.g.tanh().square(),
        lambda s, u, x: torch.sub(s.h * torch.nn.functional.sigmoid(input=u.f), -torch.tanh(u.g) * torch.tanh(u.g)),
        lambda s, u, x: torch.rsub(-torch.tanh(u.g).mul(u.g.tanh()), u.f.neg().exp().add(1).reciprocal().multiply(s.h)),
        lambda s, u, x: torch.lerp(torch.zeros_like(s.h), s.h, u.f.sigmoid()) + torch.tanh(u.g).pow(2.0),
        lambda s, u, x: torch.true_divide(s.h, 1 + torch.exp(-u.f)) + torch.tanh(u.g).square(),
        lambda s, u, x: (2 * torch.sigmoid(u.f) * s.h) / 2 + torch.tanh(u.g) * torch.tanh(u.g),
    ]
    values, u = drawn(tried(lambda s, u, x: s.h))
    for change in same:
        polynomial = structure_of(tried(change)).update["h"]
        torch.testing.assert_close(evaluate(polynomial, values, u), evaluate(reference, values, u), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("change", "kinks"),
    [
        (lambda s, u, x: torch.relu(u.f), (0.0,)),
        (lambda s, u, x: torch.clamp(0.2 * u.f + 0.5, 0.0, 1.0), (-2.5, 2.5)),
        (lambda s, u, x: torch.clamp(0.2 * u.f + 0.5, min=0.0, max=1.0), (-2.5, 2.5)),
        (lambda s, u, x: torch.clip(3 - 2 * u.f, max=1.0), (1.0,)),
        (lambda s, u, x: torch.nn.functional.hardsigmoid(2 * u.f), (-1.5, 1.5)),
        (lambda s, u, x: torch.nn.functional.relu((u.f - 1) / 4) + u.f.clamp(max=7.0), (1.0, 7.0)),
        (lambda s, u, x: torch.nn.functional.leaky_relu(u.f, 0.2), (0.0,)),
        (lambda s, u, x: torch.nn.functional.hardtanh(u.f, -3.0, 2.0), (-3.0, 2.0)),
        (lambda s, u, x: torch.nn.functional.elu(1 - u.f), (1.0,)),
        (lambda s, u, x: torch.nn.functional.silu(u.f), ()),
        (lambda s, u, x: torch.abs(u.f + 1) * torch.tanh(torch.relu(u.f)), (-1.0, 0.0)),
        (lambda s, u, x: 1 - torch.nn.functional.hardtanh(u.f), (-1.0, 1.0)),
        (lambda s, u, x: torch.sigmoid(u.f) * torch.tanh(u.f), ()),
        (lambda s, u, x: torch.tanh(u.f) / (1 + u.f.exp()), ()),
        (lambda s, u, x: torch.relu(u.f) / (1 + torch.abs(u.f - 1)), (0.0, 1.0)),
        (lambda s, u, x: torch.maximum(u.f, 0.5 * u.f + 1), (2.0,)),
        (lambda s, u, x: torch.clamp(u.f, min=-u.f), (0.0,)),
        (lambda s, u, x: torch.fmin(u.f, torch.tensor(3.0)), (3.0,)),
        (lambda s, u, x: torch.sqrt(1 - torch.exp(-2 * torch.sigmoid(u.f))), ()),
        (lambda s, u, x: torch.nn.functional.softsign(u.f), (0.0,)),
    ],
)
def test_kinks_are_where_they_are(change: Any, kinks: tuple[float, ...]) -> None:
    polynomial = structure_of(tried(change)).update["h"]
    found = sorted({k for t in polynomial.terms for f in t.factors["f"] for k in f.kinks})
    assert found == pytest.approx(kinks)


def test_a_kink_in_the_wrong_place_would_be_seen() -> None:
    # h' = clip(3 - 2 u, max=1) with u ~ N(0, 1): E h' by the closed form of a clipped normal
    spec = Spec(tried(lambda s, u, x: torch.clip(3 - 2 * u.f, max=1.0)), {"f": Gate(0.0, 1.0)})
    normal = torch.distributions.Normal(0.0, 1.0)
    one = torch.tensor(1.0).double()
    # 1 - 2 relu(u' ) with u' = 1 - u ... : min(3 - 2u, 1) = 1 - 2 relu(u - 1)
    relu = torch.exp(normal.log_prob(one)) - one * (1 - normal.cdf(one))
    assert analyze(spec).fixed_point.mean.number() == pytest.approx(float(1 - 2 * relu), abs=1e-10)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, u, x: torch.tanh(u.f + u.g), "tanh of an expression in u_f, u_g"),
        (lambda s, u, x: torch.tanh(u.f * s.h), "tanh of an expression in h, u_f"),
        (lambda s, u, x: torch.tanh(s.h), "tanh of an expression in h"),
        (lambda s, u, x: torch.tanh(x + u.f), "tanh of an expression in x, u_f"),
        (lambda s, u, x: s.h * s.h * torch.sigmoid(u.f), "not affine in h"),
        (lambda s, u, x: x**2, "not affine in h and input"),
        (lambda s, u, x: torch.sigmoid(u.f) / (1 + s.h), "division by an expression"),
        (lambda s, u, x: s.h / (u.f + u.g), "division by an expression"),
        (lambda s, u, x: s.h / torch.tanh(u.f), "division by what is 0 somewhere"),
        (lambda s, u, x: s.h / 0.0, "division by what is 0 somewhere"),
        (lambda s, u, x: torch.sqrt(torch.tanh(u.f)), "sqrt of what is not above 0 everywhere"),
        (lambda s, u, x: torch.sigmoid(u.f) ** 0.5, "power 0.5"),
        (lambda s, u, x: torch.relu(torch.tanh(u.f)), "relu of a curved function"),
        (lambda s, u, x: torch.frac(u.f), "frac is not among the functions whose smoothness is known"),
        (lambda s, u, x: torch.maximum(u.f, u.g), "maximum of several expressions"),
        (lambda s, u, x: torch.maximum(torch.tanh(u.f), u.f), "maximum of a curved function"),
        (lambda s, u, x: torch.where(u.f > 0, s.h, x), "where of several expressions"),
        (lambda s, u, x: torch.where(u.f > 0, 1.0, 0.0) * s.h, "gt is not among the functions"),
        (lambda s, u, x: s.h if float(u.f.detach().flatten()[0]) > 9 else x, "the update could not be traced: float"),
    ],
)
def test_refusals_say_why(change: Any, reason: str) -> None:
    cell = tried(change)
    with pytest.raises(NotPolynomial, match=reason):
        AffineTheory(Spec(cell))
    with pytest.raises(NotPolynomial, match=reason):
        analyze(Spec(cell), engine="quadrature")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, u, x: s.h.mean() * torch.sigmoid(u.f), "tried.update: mean acts on several units"),
        (lambda s, u, x: s.q, "tried.update: it asks for 'q'"),
    ],
)
def test_mistakes_are_errors(change: Any, reason: str) -> None:
    cell = tried(change)
    with pytest.raises(CellError, match=reason):
        structure_of(cell)
    with pytest.raises(CellError, match=reason):
        analyze(Spec(cell), engine="quadrature")


def test_one_minus_a_saturated_gate_keeps_its_digits() -> None:
    # (1 - f)^2 at bias 40: e^-80, which is lost if 1 - 2 f + f^2 is integrated term by term
    polynomial = structure_of(tried(lambda s, u, x: (1 - torch.sigmoid(u.f)) * torch.tanh(u.g))).update["h"]
    (term,) = (polynomial * polynomial).terms
    law = GateLaw(torch.tensor([25.0], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64))
    expected = torch.tensor(-50.0 + 2 * 0.25).double().exp()
    found = law.expectation(term.factors["f"])
    # 1 - sigma(u) itself keeps eps / (1 - sigma)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_equal_terms_are_merged_and_zeros_dropped() -> None:
    polynomial = structure_of(tried(lambda s, u, x: s.h + s.h - 2 * s.h + torch.tanh(u.f) * s.h)).update["h"]
    assert len(polynomial.terms) == 1
    assert polynomial.degree("h") == 1


def test_constants_and_unused_gates() -> None:
    assert structure_of(tried(lambda s, u, x: 0.5)).update["h"].gates == set()
    assert structure_of(Vanilla("identity")).update["h"].degree("h") == 0


class Spelled(Cell):
    """A leaky cell in spellings of all kinds: methods, functions of torch and of torch.nn.functional, divisions."""

    name = "spelled"
    gates = {"f": Reads(), "n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        odds = u.f.exp() / (1 + u.f.neg().exp())  # e^u sigma(u)
        content = torch.nn.functional.softsign(u.n).mul(torch.rsub(u.f.sigmoid(), 1.0))
        return {"h": torch.lerp(content, s.h, odds / (1 + u.f.exp()))}


class Plain(Spelled):
    """The same as one would write it."""

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        keep = f * f
        return {"h": keep * s.h + (1 - keep) * (1 - f) * torch.nn.functional.softsign(u.n)}


def test_spellings_make_no_difference_to_the_theory() -> None:
    values, u = drawn(Plain())
    spelled, plain = (structure_of(cell).update["h"] for cell in (Spelled(), Plain()))
    torch.testing.assert_close(evaluate(spelled, values, u), evaluate(plain, values, u), rtol=0, atol=1e-14)
    gates = {"f": Gate(0.5, 1.0, bias_mean=2.0), "n": Gate(1.0, 1.0)}
    found, expected = (analyze(Spec(cell, gates), length=20) for cell in (Spelled(), Plain()))
    assert found.engine == expected.engine == "quadrature"
    torch.testing.assert_close(found.xi.value, expected.xi.value, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        found.fixed_point.second_moment.value, expected.fixed_point.second_moment.value, rtol=1e-9, atol=0
    )


def test_an_opaque_factor_names_all_that_it_depends_on() -> None:
    new = structure_of(tried(lambda s, u, x: torch.tanh(u.f * s.h) * torch.sigmoid(u.g))).update["h"]
    assert new.gates == {"f", "g"} and new.variables == {"h"}
    ((opaque,),) = (term.opaque for term in new.terms)
    assert opaque.gates == {"f"} and opaque.variables == {"h"}
    assert new.obstacle("h") is not None and new.obstacle(INPUT) is None


def test_what_an_affine_update_keeps_of_its_state_is_cached_with_the_cell() -> None:
    cell = Plain()
    assert structure_of(cell) is structure_of(cell)
    values, u = drawn(cell)
    kept = structure_of(cell).update["h"].part("h", 1)
    torch.testing.assert_close(evaluate(kept, values, u), torch.sigmoid(u["f"]) ** 2)
