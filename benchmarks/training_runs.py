"""Training runs of factorised layers that are kept in a file, and what is claimed of them.

All runs here: 128 units, batches of 50, float32, `isornn.optim.GeodesicSGD`: bases by geodesic steps, the spectrum by
SGD at its rate over 2m, the rest by RMSprop; the gradient's norm clipped. s then starts at m/8 of the speed that the
same rate gives it without a margin, so 1/8 is the rate at which ``none`` compares with m = 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from table import device
from torch import Tensor, nn

from isornn.files import replacing
from isornn.nn import SpectralRNN, spectral
from isornn.optim import GeodesicSGD

UNITS, BATCH, HELD_OUT = 128, 50, 500
NAME = "weight_hh_l0"
Record = dict[str, Any]
Batch = Sequence[Tensor]


@dataclass(frozen=True)
class Recipe:
    """How a factorised layer starts and is trained.

    ``gain`` multiplies the orthogonal matrix before training. ``biases``: torch's draws, or none at first. All rates
    fall as ``(1 - update / updates)^decay``.
    """

    margin: float | None
    nonlinearity: str
    seed: int = 0
    updates: int = 1500
    gain: float = 1.0
    biases: bool = True
    decay: int = 0
    geodesic_rate: float = 1e-2
    spectrum_rate: float = 1.0
    rate: float = 1e-3
    clip: float = 1.0

    def layer(self, inputs: int) -> SpectralRNN:
        torch.manual_seed(self.seed)
        layer = SpectralRNN(
            inputs,
            UNITS,
            margin=self.margin,
            nonlinearity=self.nonlinearity,
            generator=torch.Generator().manual_seed(self.seed),
        )
        if self.gain != 1.0:
            layer.weight_hh_l0 = self.gain * layer.weight_hh_l0.detach()
        if not self.biases:
            nn.init.zeros_(layer.bias_ih_l0)
            nn.init.zeros_(layer.bias_hh_l0)
        return layer

    def optimizer(self, model: nn.Module) -> GeodesicSGD:
        return GeodesicSGD(
            spectral.groups(model),
            lr=self.spectrum_rate,
            geodesic_lr=self.geodesic_rate,
            rest=lambda rest: torch.optim.RMSprop(rest, lr=self.rate),
        )

    def share_of_rates(self, update: int) -> float:
        return float(max(1 - update / self.updates, 0.0) ** self.decay)


@dataclass(frozen=True)
class Goal:
    """What is measured on held-out sequences, every so many updates, and when a run has done enough."""

    name: str
    measure: Callable[[nn.Module], float]
    every: int
    done: Callable[[list[float]], bool]


def trained(
    model: nn.Module,
    layer: SpectralRNN,
    recipe: Recipe,
    batches: Iterable[Batch],
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor],
    goal: Goal,
) -> Record:
    """The curves of one run, and why it ended: ``budget``, ``done``, or a gradient that was not finite."""
    optimizer, begin = recipe.optimizer(model), time.perf_counter()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.share_of_rates)
    curve: dict[str, list[float]] = {"update": [], "loss": [], goal.name: []}
    ended = "budget"
    for update, (x, y) in zip(range(1, recipe.updates + 1), batches, strict=False):
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        if not nn.utils.clip_grad_norm_(model.parameters(), recipe.clip).isfinite():
            ended = f"gradient not finite at update {update}"
            break
        optimizer.step()
        schedule.step()
        if update % goal.every == 0:
            for name, value in (("update", update), ("loss", loss.item()), (goal.name, goal.measure(model))):
                curve[name].append(round(value, 6))
            if goal.done(curve[goal.name]):
                ended = "done"
                break
    s = spectral.singular_values(layer, NAME).detach()
    return curve | {
        "ended": ended,
        "singular_values": [round(float(s.min()), 4), round(float(s.max()), 4)],
        "seconds": round(time.perf_counter() - begin),
        "device": device(),
    }


@dataclass
class Kept:
    """Records by key, in a file with one line each, written after each run; what is there is not run again."""

    path: Path
    records: dict[str, Record] = field(init=False)

    def __post_init__(self) -> None:
        self.records = json.loads(self.path.read_text()) if self.path.exists() else {}

    def of(self, setting: dict[str, Any], run: Callable[[], Record]) -> Record:
        key = " ".join(f"{name}={value}" for name, value in setting.items())
        if key not in self.records:
            self.records[key] = run()
            lines = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in self.records.items())
            with replacing(self.path) as new:
                new.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            print(f"{key}: {self.records[key]['ended']}, {self.records[key]['seconds']} s", flush=True)
        return self.records[key]
