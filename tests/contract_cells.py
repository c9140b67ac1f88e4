"""What the contract of cells is tested on: the catalogue, two cells of its own, and their layers and specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import CELLS, FURTHER_CELLS, Cell, Gate, ParameterLaw, Reads, Spec, Values
from isornn.nn import RNN

D, N, B, T = 3, 4, 2, 5
SECOND = torch.tensor(0.3, dtype=torch.float64)  # of a state


@dataclass(frozen=True)
class Drifting(Cell):
    """A gated read, a number of its own per unit with a law, a hard gate, and an output that is not its state."""

    name = "drifting"
    gates = {"f": Reads(), "n": Reads(), "o": Reads(state=False)}
    parameters = {"rate": ParameterLaw(lambda v: 0.2 + 0.6 * v, variate="rate")}

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return torch.sigmoid(u.f) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = u.rate * torch.clamp(0.25 * u.f + 0.5, min=0.0, max=1.0)
        return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}

    def output(self, s: Values, u: Values) -> Any:
        return s.h * torch.sigmoid(u.o)


@dataclass(frozen=True)
class Paired(Cell):
    """Two states that carry over, previous inputs, and an option."""

    name = "paired"
    states = ("h", "m")
    gates = {"a": Reads(previous_input=True), "z": Reads(state=False), "k": Reads(input=False)}

    share: float = 0.25

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        a = torch.sigmoid(u.a)
        m = self.share * s.m + (1 - self.share) * torch.tanh(u.z)
        return {"h": a * s.h + (1 - a) * m * torch.cos(u.k), "m": m}


ALL: dict[str, Cell] = {name: kind() for name, kind in (CELLS | FURTHER_CELLS).items()}
ALL |= {f"{kind.__module__}:{kind.__name__}": kind() for kind in (Drifting, Paired)}


def name_of(cell: Cell) -> str:
    (name,) = (name for name, known in ALL.items() if known == cell)
    return name


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sequence(cell: Cell, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, inputs(cell), dtype=dtype, generator=seeded(1))


def inputs(cell: Cell) -> int:
    return N if cell.input_enters_pointwise else D


def layer_of(cell: Cell, **options: Any) -> RNN:
    torch.manual_seed(0)
    return RNN(cell, inputs(cell), N, **({"dtype": torch.float64} | options))


def flat(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def spec_for(cell: Cell, recurrent: float = 0.5) -> Spec:
    """Weights of variance ``recurrent``, input matrices of variance 1/2; contracting for every cell here."""
    gates = {
        name: Gate(recurrent * reads.state, 0.5 * reads.input, 0.5 * reads.previous_input)
        for name, reads in cell.gates.items()
    }
    return Spec(cell, gates)
