"""Denormal numbers in a layer's gradients and states, and what they cost on this CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isornn.diagnosis.capture import as_tuple
from isornn.diagnosis.heard import Heard
from isornn.diagnosis.keeping import kept_as_found
from isornn.diagnosis.layers import RecurrentModule
from isornn.diagnosis.replaying import Replayed
from isornn.modes import processor

SEQUENCES, STEPS, PASSES = 16, 1000, 3
# A pass that is a quarter slower than it need be is worth a line.
SLOWER = 1.25
MANY = 0.01


@dataclass(frozen=True)
class Denormals:
    """A module's pass forwards and backwards in its own dtype, with denormal numbers and with 0 in their place.

    Args:
        gradients: share of denormal numbers in the gradient with respect to the module's inputs.
        states: share in what it gives out.
        seconds, flushed_seconds: of a pass, the quicker of some; the second with ``torch.set_flush_denormal(True)``.
        sequences, steps: B and T of it.
        device: the CPU.
        flushed: whether the mode was on already.
    """

    gradients: float
    states: float
    seconds: float
    flushed_seconds: float
    sequences: int
    steps: int
    device: str
    flushed: bool

    @property
    def costly(self) -> bool:
        """Whether there are many, and flushing saves time on this CPU."""
        many = max(self.gradients, self.states) > MANY
        return many and not self.flushed and self.seconds > SLOWER * self.flushed_seconds

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        kind, share = ("gradient", self.gradients) if self.gradients >= self.states else ("output", self.states)
        return (
            f"{share:.0%} of the {kind} are denormal numbers, with which this CPU is slow: forwards and backwards "
            f"through {self.sequences} sequences of {self.steps} steps takes {self.seconds:.3g} s, and "
            f"{self.flushed_seconds:.3g} s with torch.set_flush_denormal(True) ({self.device})."
        )

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return dict(vars(self))


def denormals(
    module: RecurrentModule,
    found: Heard,
    places: list[Replayed],
    log_norms: Sequence[Mapping[str, Tensor]],
    flushed: bool = False,
) -> Denormals | None:
    """Count and time them; ``None`` where the measurements at hand show none, or the module is not on a CPU.

    Args:
        module, found, places: a module, its sequences and their replay.
        log_norms: by place, ln of the norm of the gradient with respect to the states, as `Profile` has it.
        flushed: whether the caller's mode flushes them already.
    """
    dtype, device = found.output.dtype, found.output.device
    if device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return None
    pairs = zip(places, log_norms, strict=True)
    if not any(_fades(norms, one, dtype) or _has_denormals(one.replay.output, dtype) for one, norms in pairs):
        return None
    own = _Pass(module, found)
    with kept_as_found(module.module):
        (gradients, states), seconds = _in_thread(own, flush=False)
        _, flushed_seconds = _in_thread(own, flush=True)
    return Denormals(
        gradients=gradients,
        states=states,
        seconds=seconds,
        flushed_seconds=flushed_seconds,
        sequences=own.inputs.shape[1],
        steps=len(own.inputs),
        device=processor(),
        flushed=flushed,
    )


def _fades(log_norms: Mapping[str, Tensor], one: Replayed, dtype: torch.dtype) -> bool:
    """Whether a typical number of the gradient is denormal at some time."""
    typical = torch.as_tensor(log_norms["all"]) - 0.5 * math.log(sum(one.replay.step.sizes))
    return bool((typical.isfinite() & (typical < math.log(torch.finfo(dtype).tiny))).any())


def _has_denormals(values: Tensor, dtype: torch.dtype) -> bool:
    return bool(((values != 0) & (values.abs() < torch.finfo(dtype).tiny)).any())


def _share(values: Tensor) -> float:
    return float(((values != 0) & (values.abs() < torch.finfo(values.dtype).tiny)).double().mean())


class _Pass:
    """Forwards and backwards through a module, of the last steps of its longest sequences.

    The gradient that enters is that of the user's loss; without one, that of a Gaussian combination of last states.
    """

    def __init__(self, module: RecurrentModule, found: Heard) -> None:
        chosen = found.lengths.argsort(descending=True, stable=True)[:SEQUENCES]
        self.module: nn.Module = module.module
        self.steps_by_hand = module.steps_by_hand
        self.batch_first = bool(getattr(module.module, "batch_first", False))
        stop = int(found.lengths[chosen[0]])
        steps = slice(max(0, stop - STEPS), stop)

        def last(values: Tensor) -> Tensor:
            return values[steps].index_select(1, chosen).detach()

        self.inputs = last(found.sequences.values)
        places = found.ends[max(found.ends)]
        generator = torch.Generator().manual_seed(0)
        if found.of_output is None or found.of_ends is None:
            self.of_output = torch.zeros_like(last(found.output))
            self.of_final = [
                torch.randn(len(places), len(chosen), part.shape[-1], generator=generator, dtype=part.dtype)
                for part in places[0]
            ]
        else:
            self.of_output = last(found.of_output)
            ends = found.of_ends[max(found.of_ends)]
            self.of_final = [torch.stack([part[chosen] for part in parts]) for parts in zip(*ends, strict=True)]

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The gradient with respect to the inputs, and the outputs."""
        with torch.enable_grad():
            x = self.inputs.clone().requires_grad_(True)
            output, final = self._stepped(x) if self.steps_by_hand else self._run(x)
        weights = [p for p in self.module.parameters() if p.requires_grad]
        cotangents = [self.of_output, *self.of_final]
        gradient, *_ = torch.autograd.grad([output, *final], [x, *weights], cotangents, allow_unused=True)
        return torch.zeros_like(x) if gradient is None else gradient, output.detach()

    def _run(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        output, final = self.module(x.transpose(0, 1) if self.batch_first else x)
        return output.transpose(0, 1) if self.batch_first else output, as_tuple(final)

    def _stepped(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        state, outputs = None, []
        for row in x.unbind(0):
            state = self.module(row, state)
            outputs.append(as_tuple(state)[0])
        return torch.stack(outputs), tuple(part.unsqueeze(0) for part in as_tuple(state))


def _in_thread(own: _Pass, flush: bool) -> tuple[tuple[float, float], float]:
    """Shares of denormal numbers in what the pass gives, and the seconds of the quickest.

    In a thread of its own, whose workers are its own too: all have the mode, and no other thread's mode is changed.
    """

    def timed() -> tuple[tuple[float, float], float]:
        torch.set_flush_denormal(flush)
        seconds = []
        for _ in range(PASSES):
            begin = time.perf_counter()
            gradient, output = own()
            seconds.append(time.perf_counter() - begin)
        # Counted here: to a thread that flushes they are 0.
        return (_share(gradient), _share(output)), min(seconds)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(timed).result()
