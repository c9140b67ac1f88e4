"""Cells that are not the library's, importable by name as a user's own would be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells import Cell, Reads, Values
from isornn.cells.gated import GatedCell


@dataclass(frozen=True)
class MGU(Cell):
    """The minimal gated unit, which retains by ``1 - f``."""

    name = "own_mgu"
    gates = {"f": Reads(), "n": Reads()}
    equations = ("f = sigma(u_f)", "n reads f*h", "h = (1-f)*h + f*tanh(u_n)")

    def read(self, gate: str, s: Values, u: Values) -> Any:
        return torch.sigmoid(u.f) * s.h if gate == "n" else s.h

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}


@dataclass(frozen=True)
class Leaky(Cell):
    """A hard gate, an option, a parameter per unit, and an output that is not the state."""

    name = "own_leaky"
    states = ("c",)
    gates = {"f": Reads(), "n": Reads(), "o": Reads(state=False)}
    remember, write, candidates = "f", "f", ("n",)

    rate: float = 0.5

    @property
    def parameters(self) -> Mapping[str, float]:
        return {"scale": 1.0}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.clamp(0.2 * u.f + 0.5, 0.0, 1.0)
        return {"c": f * s.c + self.rate * (1 - f) * u.scale * torch.tanh(u.n)}

    def output(self, s: Values, u: Values) -> Any:
        return torch.sigmoid(u.o) * torch.tanh(s.c)


@dataclass(frozen=True)
class Branching(Cell):
    """Its update depends on values, so that it cannot be traced."""

    name = "own_branching"
    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) if bool((u.n > 0).all()) else torch.relu(u.n)}


@dataclass(frozen=True)
class Many(Cell):
    """Options of all kinds: one that must be given, and one that is no single value."""

    name = "own_many"
    gates = {"n": Reads()}

    rates: tuple[float, ...]
    label: str = "plain"

    def __post_init__(self) -> None:
        if sum(self.rates) > 1:
            raise RuntimeError("rates add to more than 1")

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": sum(self.rates) * torch.tanh(u.n)}


class Outer:
    """Holds a cell."""

    @dataclass(frozen=True)
    class Inner(MGU):
        """A cell within another class."""

        name = "own_inner"


@dataclass(frozen=True)
class Misspelt(MGU):
    """Asks for a gate that it does not have."""

    name = "own_misspelt"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.m)}


@dataclass(frozen=True)
class Forgetful(MGU):
    """Does not return its state."""

    name = "own_forgetful"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"c": torch.tanh(u.n)}


@dataclass(frozen=True)
class Summing(MGU):
    """Adds over units, though it is declared pointwise."""

    name = "own_summing"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) - s.h.mean(-1, keepdim=True)}


@dataclass(frozen=True)
class InPlaceByMethod(MGU):
    """Multiplies a saved result in place."""

    name = "own_in_place_by_method"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n).mul_(s.h)}


@dataclass(frozen=True)
class InPlaceByFunction(MGU):
    """Rectifies a pre-activation in place."""

    name = "own_in_place_by_function"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.relu_(u.n)}


@dataclass(frozen=True)
class InPlaceByArgument(MGU):
    """Rectifies a pre-activation in place, by an argument; acts on several units."""

    name = "own_in_place_by_argument"
    pointwise = False

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.nn.functional.relu(u.n, True)}


@dataclass(frozen=True)
class InPlaceByOut(MGU):
    """Writes the result over the state."""

    name = "own_in_place_by_out"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n, out=s.h)}


@dataclass(frozen=True)
class InPlaceByAssignment(MGU):
    """Adds to the state in the output."""

    name = "own_in_place_by_assignment"

    def output(self, s: Values, u: Values) -> Any:
        h = s.h
        h += u.n
        return h


@dataclass(frozen=True)
class Highway(MGU):
    """Adds its input, which it does not declare."""

    name = "own_highway"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        return {"h": f * s.h + (1 - f) * (torch.tanh(u.n) + x)}


@dataclass(frozen=True)
class DeclaredHighway(Highway):
    """Declares it."""

    name = "own_declared_highway"
    input_enters_pointwise = True


@dataclass(frozen=True)
class Copying(MGU):
    """Is its input, which it does not declare."""

    name = "own_copying"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": x}


@dataclass(frozen=True)
class Switching(MGU):
    """Branches on its input, which it does not declare; acts on several units."""

    name = "own_switching"
    pointwise = False

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": s.h if bool((x > 0).all()) else u.n}


@dataclass(frozen=True)
class Undefined(MGU):
    """Calls what does not exist."""

    name = "own_undefined"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n) * nothing}  # type: ignore[name-defined]  # noqa: F821


@dataclass(frozen=True)
class Clashing(MGU):
    """A parameter with a gate's name."""

    name = "own_clashing"
    parameters = {"f": 1.0}


@dataclass(frozen=True)
class Wordy(MGU):
    """A parameter that starts at no number."""

    name = "own_wordy"
    parameters = {"scale": "one"}  # type: ignore[dict-item]


@dataclass(frozen=True)
class Raising(MGU):
    """Cannot say which parameters it has."""

    name = "own_raising"

    @property
    def parameters(self) -> Mapping[str, float]:
        raise KeyError("scale")


@dataclass(frozen=True)
class Gateless(Cell):
    """Without gates."""

    name = "own_gateless"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": s.h}


@dataclass(frozen=True)
class Nameless(Cell):
    """Without a name."""

    gates = {"n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": torch.tanh(u.n)}


class Undecorated(MGU):
    """No dataclass of its own."""


@dataclass(frozen=True)
class Gated(GatedCell):
    """The coupled LSTM's memory alone, by the library's gates."""

    name = "own_gated"
    gates = {"f": Reads(), "n": Reads()}
    remember, write, candidates = "f", "f", ("n",)

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f)
        return {"h": f * s.h + (1 - f) * torch.tanh(u.n)}


@dataclass(frozen=True)
class Counted(Gated):
    """Options of all kinds beside the gate: a whole number, a switch and a number."""

    name = "own_counted"

    power: int = 1
    residual: bool = False
    rate: float = 0.5

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = self.sigma(u.f) ** self.power
        return {"h": f * s.h + self.rate * (1 - f) * torch.tanh(u.n) + (u.n if self.residual else 0.0)}
