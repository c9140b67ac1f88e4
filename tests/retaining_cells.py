"""Cells of a user's own that retain in ways of their own: what several tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isornn.cells import Cell, Reads, Values

_INPUT = Reads(state=False)


@dataclass(frozen=True)
class TwoMemories(Cell):
    """One state retained by f with a write gate of its own, one by 1 - k with a coupled one."""

    name = "two_memories"
    states = ("h", "c", "d")
    gates = {gate: Reads() for gate in "figkmo"}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        c = torch.sigmoid(u.f) * s.c + torch.sigmoid(u.i) * torch.tanh(u.g)
        k = torch.sigmoid(u.k)
        d = (1 - k) * s.d + k * torch.tanh(u.m)
        return {"h": torch.sigmoid(u.o) * torch.tanh(c + d), "c": c, "d": d}


@dataclass(frozen=True)
class Averaged(Cell):
    """A gated memory, and an average of it whose decay is a parameter per unit; no matrix reads either."""

    name = "averaged"
    states = ("h", "c")
    gates = {"f": _INPUT, "n": _INPUT}
    parameters = {"decay": 0.5}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f = torch.sigmoid(u.f)
        c = f * s.c + (1 - f) * u.n
        return {"h": u.decay * s.h + (1 - u.decay) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class AveragedByOption(Averaged):
    """The decay is an option, the same in all units."""

    name = "averaged_by_option"
    parameters = {}
    decay: float = 0.5

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return super().update(s, Values(**vars(u), decay=self.decay), x)


@dataclass(frozen=True)
class Leaky(Cell):
    """One state whose decay no gate has a share in."""

    name = "leaky"
    gates = {"n": _INPUT}
    parameters = {"decay": 0.9}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        return {"h": u.decay * s.h + (1 - u.decay) * torch.tanh(u.n)}


@dataclass(frozen=True)
class Refined(Cell):
    """A gate that refines another: ``g = r (1 - (1-f)^2) + (1-r) f^2``."""

    name = "refined"
    gates = {"f": Reads(), "r": Reads(), "n": Reads()}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f, r = torch.sigmoid(u.f), torch.sigmoid(u.r)
        g = r * (1 - (1 - f) ** 2) + (1 - r) * f**2
        return {"h": g * s.h + (1 - g) * torch.tanh(u.n)}


@dataclass(frozen=True)
class Normalised(Cell):
    """Two gates that share one: ``h' = f/(f+i) h + i/(f+i) u_n``."""

    name = "normalised"
    gates = {"f": _INPUT, "i": _INPUT, "n": _INPUT}

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f, i = torch.sigmoid(u.f), torch.sigmoid(u.i)
        return {"h": f / (f + i) * s.h + i / (f + i) * u.n}


@dataclass(frozen=True)
class Exponential(Cell):
    """Retention by a power of a trained number: ``a = exp(-c softplus(l) sigmoid(u_r))``."""

    name = "exponential"
    gates = {"r": _INPUT, "i": _INPUT, "z": _INPUT}
    parameters = {"scale": 0.0}

    strength: float = 8.0

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        a = torch.exp(-self.strength * torch.nn.functional.softplus(u.scale) * torch.sigmoid(u.r))
        return {"h": a * s.h + torch.sqrt(1 - a * a) * (torch.sigmoid(u.i) * u.z)}


@dataclass(frozen=True)
class Spelled(Cell):
    """One leaky integrator in several spellings; all but the last retain by 1 - f or f."""

    name = "spelled"
    gates = {"f": Reads(), "n": Reads()}

    spelling: str = "difference"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        f, n = torch.sigmoid(u.f), torch.tanh(u.n)
        return {
            "h": {
                "difference": s.h + f * (n - s.h),
                "lerp": torch.lerp(s.h, n, f),
                "negated": (-u.f).sigmoid() * s.h + f * n,
                "shifted": torch.sigmoid(-(2 * u.f + 1)) * s.h + f * n,
                "squared": (1 - f) ** 2 * s.h + f * n,
                "logistic content": (1 - f) * s.h + f * torch.sigmoid(u.n),
                "hardsigmoid": (1 - torch.nn.functional.hardsigmoid(u.f)) * s.h + f * n,
                "weak": 0.9 * (1 - f) * s.h + f * n,
                "curved": torch.tanh((1 - f) * s.h + f * n),
            }[self.spelling]
        }
