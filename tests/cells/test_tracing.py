"""What tells one cell from another, and what its graph records of the methods."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isornn import analyze
from isornn.cells import Cell, CellError, Gate, Reads, Spec, Values
from isornn.cells.trace import graph_of
from isornn.nn import RNN
from isornn.nn.kernels import why_no_kernel

X = torch.linspace(-2, 2, 24).reshape(4, 3, 2)

Update = Callable[[Values, Values], dict[str, Any]]


def cell_of(update: Update, **names: Any) -> Cell:
    """A cell with this update, one state h and one gate n unless ``names`` say otherwise."""
    body = {"name": "own", "gates": {"n": Reads()}, "update": lambda self, s, u, x: update(s, u)}
    kind: Any = type("Own", (Cell,), body | names)
    cell: Cell = dataclass(frozen=True)(kind)()
    return cell


def by_hand(layer: RNN, x: Tensor, update: Update) -> Tensor:
    """The outputs of a layer of one gate and one state."""
    h, record = x.new_zeros(x.shape[1], layer.hidden_size), []
    gate = layer.gate_parameters("n")
    assert gate.input is not None and gate.recurrent is not None
    for x_t in x:
        h = update(Values(h=h), Values(n=x_t @ gate.input.T + h @ gate.recurrent.T + sum(gate.biases)))["h"]
        record.append(h)
    return torch.stack(record)


@dataclass(frozen=True)
class Scaled(Cell):
    """An option that the update multiplies with, and distinguishes by its type."""

    name = "scaled"
    gates = {"n": Reads()}
    scale: Any = 1.0

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) * (0.25 if self.scale is True else 0.5 * self.scale)}


def test_options_that_are_equal_but_of_other_types_make_other_cells() -> None:
    one, true, nested = Scaled(1), Scaled(True), Scaled((1, (1.0,)))
    assert one != true and one != Scaled(1.0) and nested != Scaled((1, (True,)))
    assert one == Scaled(1) and hash(one) == hash(Scaled(1)) and nested == Scaled((1, (1.0,)))
    assert len({Scaled(1), Scaled(1.0), Scaled(True), Scaled(1)}) == 3
    for cell in (one, true):
        layer = RNN(cell, 2, 3)
        torch.testing.assert_close(layer(X)[0], by_hand(layer, X, functools.partial(cell.update, x=None)))


class Undeclared(Cell):
    """No dataclass: its attribute is no option."""

    name = "undeclared"
    gates = {"n": Reads()}

    def __init__(self, k: Any) -> None:
        object.__setattr__(self, "k", k)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": vars(self)["k"] * torch.tanh(u.n)}


class Widened(Scaled):
    """The same below a dataclass."""

    def __init__(self, k: float | None) -> None:
        super().__init__(1.0)
        if k is not None:
            object.__setattr__(self, "k", k)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": getattr(self, "k", 1.0) * torch.tanh(u.n)}


@pytest.mark.parametrize("kind", [Undeclared, Widened])
@pytest.mark.parametrize("k", [0.5, [0.5]])
def test_attributes_that_are_no_options_are_refused(kind: type[Any], k: Any) -> None:
    with pytest.raises(CellError, match=rf"{kind.name}: k is no field; .*dataclass"):
        RNN(kind(k), 2, 3)


def test_an_attribute_is_refused_after_a_cell_without_it_was_accepted() -> None:
    RNN(Widened(None), 2, 3)
    with pytest.raises(CellError, match="scaled: k is no field"):
        RNN(Widened(0.5), 2, 3)


def test_an_error_that_a_cell_raises_itself_is_not_taken_for_an_update_that_cannot_be_traced() -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        raise CellError("own.update: no table for this size")

    with pytest.raises(CellError, match=r"^own.update: no table for this size$"):
        graph_of(cell_of(update))


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_what_a_method_computes_without_gradients_has_none(around: Callable[[], Any]) -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        with torch.no_grad():
            k = torch.sigmoid(u.n)
            with torch.enable_grad():
                k = k * torch.tanh(2 * u.n)
        return {"h": k * s.h + torch.tanh(u.n)}

    cell = cell_of(update)
    with around():
        graph_of(cell)
    layer = RNN(cell, 2, 3, dtype=torch.float64)
    assert why_no_kernel(cell) is None
    x = X.double().requires_grad_()
    sources = [x, *layer.parameters()]
    found = torch.autograd.grad(layer(x)[0].square().sum(), sources)
    expected = torch.autograd.grad(by_hand(layer, x, update).square().sum(), sources)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"states": ("h", "output")}, "own.states: 'output' is not allowed; .*gives out"),
        ({"parameters": {"n": 1.0}}, "own.parameters: 'n' is a gate's name too"),
        ({"parameters": {"weight_ih": 1.0}}, "own.parameters: 'weight_ih' is not allowed; .*layer"),
        ({"parameters": {"bias_phi": 1.0}}, "own.parameters: 'bias_phi' is not allowed; .*layer"),
        ({"gates": {"n": Reads(input=False)}}, "own.gates: none reads the input"),
        ({"gates": {"n": Reads(state=False, input=False)}}, "own.gates: none reads the input"),
        ({"gates": {}}, "own.gates: .* is not a mapping"),
        ({"gates": {"my-n": Reads()}}, "own.gates: 'my-n' is not allowed; a name is an identifier"),
        ({"states": ("h", "lambda")}, "own.states: 'lambda' is not allowed; a name is an identifier"),
    ],
)
def test_names_and_gates_that_no_layer_can_have_are_refused(names: dict[str, Any], said: str) -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        return {"h": torch.tanh(getattr(u, "n", 0.0) + 0.1 * s.h)} | dict.fromkeys(names.get("states", ())[1:], s.h)

    with pytest.raises(CellError, match=said):
        RNN(cell_of(update, **names), 2, 3)


@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize("others", [{}, {"m": Reads(input=False)}, {"m": Reads(state=False, input=False)}])
def test_a_cell_may_read_the_previous_input_alone(state: bool, others: dict[str, Reads]) -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        return {"h": torch.tanh(u.n + getattr(u, "m", 0.0)) + 0.1 * s.h}

    gates = {"n": Reads(state=state, input=False, previous_input=True), **others}
    layer = RNN(cell_of(update, gates=gates), 2, 3)
    h, record = torch.zeros(3, 3), []
    for x_t in torch.cat([torch.zeros(1, 3, 2), X[:-1]]):
        u = Values()
        for gate in gates:
            own = layer.gate_parameters(gate)
            fed = [h @ own.recurrent.T] if own.recurrent is not None else []
            fed += [x_t @ own.previous_input.T] if own.previous_input is not None else []
            setattr(u, gate, sum(fed) + sum(own.biases))
        h = update(Values(h=h), u)["h"]
        record.append(h)
    torch.testing.assert_close(layer(X)[0], torch.stack(record))


class Spike(torch.autograd.Function):
    """A step with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        return (v > 0) * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 0.5 * grad


DIFFERING: dict[str, Update] = {
    "a derivative of its own": lambda s, u: {"h": Spike.apply(u.n) + 0.1 * s.h},
    "random": lambda s, u: {"h": torch.tanh(u.n) * random.random() + 0.1 * s.h},
    "numpy's random numbers": lambda s, u: {"h": torch.tanh(u.n) * float(np.random.rand()) + 0.1 * s.h},  # noqa: NPY002
    "the type of a tensor": lambda s, u: {"h": torch.tanh(u.n) if isinstance(u.n, Tensor) else 0.1 * s.h},
}


@pytest.mark.parametrize("update", DIFFERING.values(), ids=DIFFERING)
def test_what_a_trace_does_not_see_is_stepped(update: Update) -> None:
    cell = cell_of(update)
    assert "its trace gives other numbers or gradients" in graph_of(cell).untraced["update"]
    assert "its trace gives other numbers or gradients" in str(why_no_kernel(cell))


def test_a_derivative_of_ones_own_trains() -> None:
    layer = RNN(cell_of(DIFFERING["a derivative of its own"]), 2, 3)
    layer(X)[0].sum().backward()
    assert layer.weight_ih_l0.grad is not None and bool(layer.weight_ih_l0.grad.any())


def _less_its_mean_if_positive(s: Values, u: Values) -> dict[str, Any]:
    h = torch.tanh(u.n)
    return {"h": h - h.mean(-1, keepdim=True) if float(h.detach().flatten()[0]) > 0 else h + s.h}


def test_units_may_not_be_mixed_where_nothing_is_traced_either() -> None:
    with pytest.raises(CellError, match=r"own.update: it acts on several units together"):
        graph_of(cell_of(_less_its_mean_if_positive))


@pytest.mark.parametrize(
    ("draws", "said"),
    [(torch.randn_like, "randn_like"), (functional.dropout, "dropout")],
)
def test_random_numbers_like_an_argument_are_not_traced(draws: Callable[[Tensor], Tensor], said: str) -> None:
    cell = cell_of(lambda s, u: {"h": torch.tanh(u.n) + draws(u.n) + 0.1 * s.h})
    before = torch.random.get_rng_state()
    assert graph_of(cell).untraced["update"] == f"it draws random numbers, by {said}"
    assert torch.equal(torch.random.get_rng_state(), before)


def test_each_method_that_draws_random_numbers_is_named() -> None:
    cell = cell_of(
        lambda s, u: {"h": torch.tanh(u.n) + torch.randn_like(u.n)},
        output=lambda self, s, u: functional.dropout(s.h),
    )
    assert {name: said.rpartition(" ")[2] for name, said in graph_of(cell).untraced.items()} == {
        "update": "randn_like",
        "output": "dropout",
    }


def test_methods_with_other_arguments_are_named() -> None:
    @dataclass(frozen=True)
    class Old(Cell):
        name = "old"
        gates = {"n": Reads()}

        def update(self, s: Values, u: Values) -> dict[str, Any]:  # type: ignore[override]
            return {"h": u.n}

    with pytest.raises(
        CellError, match=r"old.update: it is called as update\(s, u, x\): too many positional arguments"
    ):
        graph_of(Old())


def test_sequences_may_not_be_mixed() -> None:
    with pytest.raises(CellError, match="flip acts on several sequences together"):
        graph_of(cell_of(lambda s, u: {"h": torch.tanh(u.n.flip(0)) + 0.1 * s.h}))


OWN = torch.tensor(0.5, requires_grad=True)
CHANGED = torch.tensor(0.5)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (lambda: OWN, "reads a tensor"),
        (lambda: torch.sigmoid(OWN), "reads a tensor"),
        (lambda: CHANGED, "reads a tensor"),
        (lambda: 2 * CHANGED, "reads a tensor"),
        (lambda: float(CHANGED), "reads a tensor"),
        (lambda: 1 + torch.rand(()), "random numbers"),
        (lambda: torch.zeros(()).normal_(), "random numbers"),
        (lambda: float(torch.randn(())), "random numbers"),
    ],
)
def test_what_may_differ_at_another_call_is_not_traced(factor: Callable[[], Any], said: str) -> None:
    cell = cell_of(lambda s, u: {"h": torch.tanh(u.n) * factor() + 0.1 * s.h})
    assert said in graph_of(cell).untraced["update"]
    assert said in str(why_no_kernel(cell))


def test_tensors_of_others_are_read_at_every_call_and_get_gradients() -> None:
    scale = torch.tensor(0.5, requires_grad=True)

    def update(s: Values, u: Values) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) * scale + 0.1 * s.h}

    layer = RNN(cell_of(update), 2, 3)
    for value in (0.5, 2.0):
        with torch.no_grad():
            scale.fill_(value)
        found, expected = layer(X)[0], by_hand(layer, X, update)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), scale) for out in (found, expected)))


@pytest.mark.parametrize("constant", [lambda: torch.tensor(0.5), lambda: torch.ones(()).mul(0.5).sqrt()])
def test_tensors_that_a_method_makes_are_constants(constant: Callable[[], Tensor]) -> None:
    assert why_no_kernel(cell_of(lambda s, u: {"h": torch.tanh(u.n) * constant() + 0.1 * s.h})) is None


@pytest.mark.parametrize("value", [1.0, None, torch.ones(())], ids=repr)
def test_states_reads_and_outputs_are_computed_from_the_units(value: Any) -> None:
    def plain(s: Values, u: Values) -> dict[str, Any]:
        return {"h": torch.tanh(u.n)}

    for method, cell in (
        ("update: the new state 'c'", cell_of(lambda s, u: plain(s, u) | {"c": value}, states=("h", "c"))),
        ("read: what it returns", cell_of(plain, read=lambda self, gate, s, u: value)),
        ("output: what it returns", cell_of(plain, output=lambda self, s, u: value)),
    ):
        with pytest.raises(CellError, match=rf"own\.{method} .*is .*; a layer needs it to be computed from"):
            RNN(cell, 2, 3)
        if value is None:  # while a constant has a theory
            with pytest.raises(CellError, match=rf"own\.{method}"):
                analyze(Spec(cell))


def test_what_is_no_number_of_a_unit_is_refused() -> None:
    shown = cell_of(lambda s, u: {"h": torch.tanh(u.n)}, output=lambda self, s, u: {"h": s.h})
    with pytest.raises(CellError, match=r"own\.output: what it returns is .*; a layer needs it"):
        graph_of(shown)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (lambda s, u: {"h": torch.tanh(u.q)}, "asks for 'q', which is no state, gate or parameter .*; there are n"),
        (lambda s, u: {"h": torch.tnah(u.n)}, "module 'torch' has no attribute 'tnah'"),  # type: ignore[attr-defined]
        (lambda s, u: torch.tanh(u.n), "it returns a tensor; a dictionary of new states is needed"),
        (lambda s, u: {}, "the state 'h' is not returned; it returns no state"),
    ],
)
def test_mistakes_are_said_as_they_are(update: Update, said: str) -> None:
    with pytest.raises(CellError, match=rf"own\.update: .*{said}"):
        graph_of(cell_of(update))


def test_a_state_that_is_there_twice_is_refused() -> None:
    with pytest.raises(CellError, match="own.states: 'h' is there twice"):
        graph_of(cell_of(lambda s, u: {"h": torch.tanh(u.n)}, states=("h", "h")))


def test_an_operation_on_axes_is_stepped() -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        return {"h": torch.einsum("bi,bi->bi", torch.sigmoid(u.n), s.h) + torch.tanh(u.n)}

    cell = cell_of(update)
    assert "cannot be recorded" in (why_no_kernel(cell) or "")
    layer = RNN(cell, 2, 3)
    torch.testing.assert_close(layer(X)[0], by_hand(layer, X, update))


def test_an_operation_without_derivative_is_stepped() -> None:
    cell = cell_of(lambda s, u: {"h": torch.tanh(u.n) + 0.1 * (s.h // 1)})
    assert "floor_divide" in (why_no_kernel(cell) or "")
    assert bool(RNN(cell, 2, 3)(X)[0].isfinite().all())


@pytest.mark.parametrize(
    "factor",
    [lambda s, u: torch.full_like(s.h, 0.5), lambda s, u: torch.tensor(0.5, dtype=torch.tanh(u.n).dtype)],
    ids=["of a state's shape", "of a gate's type"],
)
def test_the_theory_of_constants_made_like_others(factor: Callable[[Values, Values], Tensor]) -> None:
    gate = Gate(weight_var=1.0, input_var=0.5, bias_var=0.1)
    made, plain = (
        analyze(Spec(cell_of(update), {"n": gate})).fixed_point.second_moment
        for update in (
            lambda s, u: {"h": torch.tanh(u.n) * factor(s, u)},
            lambda s, u: {"h": torch.tanh(u.n) * 0.5},
        )
    )
    torch.testing.assert_close(made.value, plain.value, rtol=0, atol=1e-9 + 5 * float(made.stderr + plain.stderr))


class _Floored(torch.autograd.Function):
    """A floor with a derivative of its own, where torch has none for the operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x // 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def test_a_derivative_of_ones_own_where_torch_has_none_is_not_lost() -> None:
    def floored(x: Tensor) -> Tensor:
        result: Tensor = _Floored.apply(x) if type(x) is Tensor else x // 1
        return result

    cell = cell_of(lambda s, u: {"h": torch.tanh(u.n) + 0.1 * floored(s.h)})
    assert "update" in graph_of(cell).untraced


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (math.tanh, "only one element tensors can be converted to Python scalars"),
        (lambda u: torch.tanh(u) if u > 0 else 0 * u, "Boolean value of Tensor with more than one value is ambiguous"),
    ],
    ids=["math", "if"],
)
def test_methods_for_single_numbers_are_refused(function: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(CellError, match=rf"own.update: .*{said}; it is given tensors of all units of all sequences"):
        RNN(cell_of(lambda s, u: {"h": function(u.n) + 0.1 * s.h}), 2, 3)


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (lambda s, u: {"h": u.n.tanh() * s.h + "x"}, "unsupported operand"),
        (lambda s, u: {"h": u.n.tanh(3) + s.h}, "takes no arguments"),
        (lambda s, u: {"h": u.n.tanh(3) if bool((s.h < 9).all()) else s.h}, "takes no arguments"),
    ],
    ids=["a string", "an argument too many", "the same, untraced"],
)
def test_methods_that_fail_by_a_type_error_are_named(update: Callable[[Any, Any], Any], said: str) -> None:
    with pytest.raises(CellError, match=rf"^own(\.update)?: .*{said}"):
        RNN(cell_of(update), 2, 3)


def test_a_methods_own_error_is_passed_on_as_it_is() -> None:
    def update(s: Any, u: Any) -> Any:
        if bool((s.h < 9).all()):
            raise CellError("own.update: s.h is too small")
        return {"h": u.n.tanh() + s.h}

    with pytest.raises(CellError, match=r"^own\.update: s\.h is too small$"):
        RNN(cell_of(update), 2, 3)
