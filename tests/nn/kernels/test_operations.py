"""Kernels of the operations that a user's cell may use: they compute what torch does, or say that there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from isornn import nn
from isornn.cells import Cell, Reads, Values
from isornn.nn.kernels import why_no_kernel
from isornn.nn.kernels.generated import GeneratedKernel
from isornn.nn.kernels.passes import Way

Update = Callable[[Values, Values], dict[str, Any]]


def made(update: Update, **fields: Any) -> Cell:
    """A user's cell with this update."""
    own = {"name": "own", "gates": {"n": Reads()}, "update": lambda self, s, u, x: update(s, u)}
    kind: Any = type("Own", (Cell,), own | fields)
    found: Cell = dataclass(frozen=True)(kind)()
    return found


def computed(cell: Cell, way: Way | None) -> Mapping[str, Tensor]:
    """Output and gradients of a layer, by the kernel in this way; with ``None`` by the cell's own steps."""
    kernel = None if way is None else GeneratedKernel(cell, way)
    torch.manual_seed(0)
    layer = nn.RNN(cell, 2, 5, dtype=torch.float64)
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("isornn.nn.operation.kernel_of", lambda cell: kernel)
        out, _ = layer(x)
        if out.requires_grad:
            out.backward(torch.randn(out.shape, dtype=torch.float64))
    leaves = {"x": x, **dict(layer.named_parameters())}
    gradients = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
    return {"out": out.detach(), **gradients}


def assert_as_stepped(cell: Cell, way: Way = "torch") -> None:
    assert why_no_kernel(cell) is None
    expected = computed(cell, None)
    torch.testing.assert_close(computed(cell, way), expected, rtol=0, atol=1e-12)


TRUTHS: Mapping[str, Update] = {
    "bool": lambda s, u: {"h": u.n.bool() * s.h + 0.3 * u.n},
    "bool and": lambda s, u: {"h": torch.where(u.n.bool() & (s.h > 0), u.n, s.h - 0.1)},
    "logical_and": lambda s, u: {"h": torch.where(torch.logical_and(u.n > 0, torch.relu(s.h)), u.n, s.h - 0.1)},
    "xor": lambda s, u: {"h": torch.where((u.n > 0) ^ (s.h > 0.1), u.n, s.h - 0.1)},
    "not": lambda s, u: {"h": torch.where(torch.logical_not(torch.relu(u.n)), u.n, s.h - 0.1)},
    "a truth value as a number": lambda s, u: {"h": torch.where(s.h > 0.1, u.n > 0, 0.3 * s.h) + 0.1 * u.n},
    "truth values compared": lambda s, u: {"h": torch.where((u.n > 0) == (s.h > 0.1), u.n, s.h - 0.1)},
    "float": lambda s, u: {"h": (u.n > 0).float() * s.h + 0.3 * u.n},
    "two numbers": lambda s, u: {"h": torch.where(u.n > 0, 1.0, -2.0) * s.h + 0.3 * u.n},
    "to": lambda s, u: {"h": (u.n > 0).to(u.n.dtype) * 0.3 + s.h * u.n},
}


@pytest.mark.parametrize("update", TRUTHS.values(), ids=TRUTHS)
def test_truth_values_and_numbers(update: Update) -> None:
    assert_as_stepped(made(update))


OF_OTHER_TYPES: Mapping[str, Update] = {
    "long": lambda s, u: {"h": (3 * u.n).long().to(u.n.dtype) * 0.3 + 0.1 * s.h},
    "int": lambda s, u: {"h": (3 * u.n).int() * 0.3 + 0.1 * s.h},
    "half": lambda s, u: {"h": u.n.half().to(u.n.dtype) + 0.1 * s.h},
    "ones of integers": lambda s, u: {"h": torch.ones_like(u.n, dtype=torch.long) / 3 * s.h + u.n},
    "choice of truth values": lambda s, u: {"h": torch.where(torch.where(u.n > 0, True, False), s.h, u.n)},
    "sum of truth values": lambda s, u: {"h": ((u.n > 0) + (s.h > 0)) * 0.3 * s.h + u.n},
    "number of default precision": lambda s, u: {"h": (u.n > 0) * 0.3 + s.h},
}


@pytest.mark.parametrize("update", OF_OTHER_TYPES.values(), ids=OF_OTHER_TYPES)
def test_numbers_of_another_type_have_no_kernel(update: Update) -> None:
    assert "; kernels compute in the layer's precision" in str(why_no_kernel(made(update)))


COMPOSED: Mapping[str, Update] = {
    "rsub": lambda s, u: {"h": torch.rsub(u.n, 0.3 * s.h)},
    "rsub alpha": lambda s, u: {"h": torch.rsub(u.n, 1.0, alpha=2.0) * s.h + u.n},
    "add alpha": lambda s, u: {"h": torch.add(u.n, s.h, alpha=0.3)},
    "leaky_relu": lambda s, u: {"h": functional.leaky_relu(u.n) + 0.3 * s.h},
    "leaky_relu slope": lambda s, u: {"h": functional.leaky_relu(u.n, 0.2) + 0.3 * s.h},
    "hardtanh": lambda s, u: {"h": functional.hardtanh(2 * u.n) + 0.3 * s.h},
    "relu6": lambda s, u: {"h": functional.relu6(u.n) + 0.3 * s.h},
    "hardswish": lambda s, u: {"h": functional.hardswish(u.n) + 0.3 * s.h},
    "lerp": lambda s, u: {"h": torch.lerp(u.n, s.h, 0.3)},
    "lerp by a gate": lambda s, u: {"h": torch.lerp(u.n, s.h, torch.sigmoid(u.n))},
    "addcdiv": lambda s, u: {"h": torch.addcdiv(u.n, s.h, 1 + u.n * u.n, value=0.5)},
    "logsigmoid": lambda s, u: {"h": functional.logsigmoid(u.n) + 0.3 * s.h},
    "prelu": lambda s, u: {"h": functional.prelu(u.n, torch.tensor(0.3, dtype=torch.float64)) + 0.3 * s.h},
    "elu alpha": lambda s, u: {"h": functional.elu(u.n, 0.5) + 0.3 * s.h},
    "selu": lambda s, u: {"h": functional.selu(u.n) + 0.3 * s.h},
    "powers": lambda s, u: {"h": 0.1 * u.n**4 + (2 + s.h.abs()) ** -1},
}


@pytest.mark.parametrize("update", COMPOSED.values(), ids=COMPOSED)
def test_operations_made_of_others(update: Update) -> None:
    assert_as_stepped(made(update))


# Functions of a gate whose derivative is another costly function of it, or of a function of it.
CURVED: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "sin(2v)": lambda v: torch.sin(2 * v),
    "sin(v)^2": lambda v: torch.sin(v) ** 2,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "exp(-v^2)": lambda v: torch.exp(-v * v),
    "log1p(v^2)": lambda v: torch.log1p(v * v),
}
WITHIN: Mapping[str, Callable[[Callable[[Tensor], Tensor], Values, Values], Tensor]] = {
    "alone": lambda f, s, u: f(u.n) + 0.3 * s.h,
    "times the state": lambda f, s, u: f(u.n) * s.h + 0.1 * u.n,
    "coupled": lambda f, s, u: torch.sigmoid(u.z) * s.h + (1 - torch.sigmoid(u.z)) * f(u.n),
    "within another": lambda f, s, u: torch.sigmoid(f(u.n)) * s.h + 0.1 * f(u.n),
    "of the state too": lambda f, s, u: f(u.n) * torch.tanh(s.h) + torch.sigmoid(u.z) * f(s.h),
}


@pytest.mark.parametrize("way", ["torch", "compiled"])
def test_gradients_of_curved_functions(way: Way) -> None:
    for of in WITHIN.values() if way == "torch" else [WITHIN["coupled"]]:
        for function in CURVED.values() if way == "torch" else [CURVED["erf"], CURVED["sin"]]:
            cell = made(lambda s, u, f=function, g=of: {"h": g(f, s, u)}, gates={"z": Reads(), "n": Reads()})  # type: ignore[misc]
            assert_as_stepped(cell, way)


SCANNED: Mapping[str, Update] = {
    "slope and write alike": lambda s, u: {"h": 0.5 * s.h + 0.5 * torch.tanh(u.n)},
    "by a parameter": lambda s, u: {"h": u.a * s.h + u.a * torch.tanh(u.n)},
    "by the gate": lambda s, u: {"h": torch.sigmoid(u.n) * s.h + torch.sigmoid(u.n)},
    "coupled": lambda s, u: {"h": torch.sigmoid(u.n) * s.h + (1 - torch.sigmoid(u.n)) * u.n},
    "from the state": lambda s, u: {"h": torch.rsub(torch.tanh(u.n), 0.3 * s.h)},
}


@pytest.mark.parametrize("update", SCANNED.values(), ids=SCANNED)
def test_scans_share_no_gradient_between_steps(update: Update) -> None:
    assert_as_stepped(made(update, gates={"n": Reads(state=False)}, parameters={"a": 0.7}), "scan")


def test_states_may_have_names_that_printed_rows_once_had() -> None:
    def update(s: Values, u: Values) -> dict[str, Any]:
        h = 0.5 * s.h + torch.tanh(u.n)
        return {"h": h, "h_row": 0.3 * s.h_row + s.h, "h_step": 0.2 * s.h_step * h + u.n}

    assert_as_stepped(made(update, states=("h", "h_row", "h_step")), "compiled")


IN_MACHINE_CODE = [
    "bool and",
    "a truth value as a number",
    "xor",
    "two numbers",
    "leaky_relu",
    "rsub alpha",
    "add alpha",
]


def test_in_machine_code() -> None:
    updates = [({**TRUTHS, **COMPOSED})[name] for name in IN_MACHINE_CODE]

    def update(s: Values, u: Values) -> dict[str, Any]:
        return {"h": sum((one(s, u)["h"] for one in updates), torch.zeros_like(u.n)) / len(updates)}

    assert_as_stepped(made(update), "compiled")


def _ones_read(self: Cell, gate: str, s: Values, u: Values) -> Any:
    return torch.ones_like(s.h)


def _detached_read(self: Cell, gate: str, s: Values, u: Values) -> Any:
    return s.h.detach()


WITHOUT_GRADIENT: Mapping[str, Cell] = {
    "step": made(lambda s, u: {"h": (u.n > 0).to(u.n.dtype)}),
    "detached": made(lambda s, u: {"h": torch.tanh(u.n).detach()}),
    "read of ones": made(lambda s, u: {"h": torch.tanh(u.n) + 0.3 * s.h}, read=_ones_read),
    "detached read": made(lambda s, u: {"h": torch.tanh(u.n) + 0.3 * s.h}, read=_detached_read),
    "detached parameter": made(lambda s, u: {"h": torch.tanh(u.n) * u.a.detach()}, parameters={"a": 0.3}),
    "sign of a parameter": made(
        lambda s, u: {"h": torch.tanh(u.n) * torch.sign(u.a) * (u.a > 0)}, parameters={"a": 0.3}
    ),
    "condition on a parameter": made(
        lambda s, u: {"h": torch.where(u.a > 0, s.h * u.a, u.n) + (u.a > 1).to(u.a.dtype)}, parameters={"a": 0.3}
    ),
}


@pytest.mark.parametrize("cell", WITHOUT_GRADIENT.values(), ids=WITHOUT_GRADIENT)
def test_what_has_no_gradient_gives_none(cell: Cell) -> None:
    assert_as_stepped(cell)


@pytest.mark.parametrize("name", ["step", "read of ones"])
def test_what_has_no_gradient_gives_none_in_machine_code(name: str) -> None:
    assert_as_stepped(WITHOUT_GRADIENT[name], "compiled")
