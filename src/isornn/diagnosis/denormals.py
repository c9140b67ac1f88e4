"""Denormal numbers in a layer's gradients and states, and the time that they cost on this CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor, nn

from isornn.capture.calls import as_tuple
from isornn.capture.modules import RecurrentModule
from isornn.capture.preserve import preserve_state
from isornn.capture.recorder import marked
from isornn.capture.sequences import CapturedSequence
from isornn.diagnosis.facts import Denormals
from isornn.diagnosis.replay import LayerReplay
from isornn.modes import processor

# More sequences take longer and find the same: all of a layer fade alike.
SEQUENCES, STEPS, PASSES = 4, 1000, 3
# Beyond this ratio of two passes the other passes are made too; well below `Denormals.SLOWER`, which is what matters.
CLOSE = 1.1


def denormals(
    module: RecurrentModule,
    captured: CapturedSequence,
    replays: Sequence[LayerReplay],
    log_norms: Sequence[Mapping[str, Tensor]],
    flushed: bool = False,
) -> Denormals | None:
    """Count and time them; ``None`` where the measurements so far show none, the module is not on a CPU, or its
    forward does not run on its input alone.

    Args:
        module, captured, replays: a module, its sequences and their replay.
        log_norms: by layer, ln of the norm of the gradient with respect to the states, as `Profile` has it.
        flushed: whether the caller's mode flushes them already.
    """
    dtype, device = captured.precision, captured.output.device
    if device.type != "cpu" or dtype not in (torch.float32, torch.float64):
        return None
    pairs = zip(replays, log_norms, strict=True)
    if not any(_fades(norms, one, dtype) or _are_denormal(one.replay.output, dtype).any() for one, norms in pairs):
        return None
    own = _Pass(module, captured)
    # Nobody asked for this pass, and a forward of the user's own may take more than the input.
    with suppress(Exception), preserve_state(module.module), marked([module.module]):
        (gradients, states), seconds = _in_thread(own, 1, flush=False)
        _, flushed_seconds = _in_thread(own, 1, flush=True)
        if seconds > CLOSE * flushed_seconds:  # or another program slowed this one pass
            seconds = min(seconds, _in_thread(own, PASSES - 1, flush=False)[1])
            flushed_seconds = min(flushed_seconds, _in_thread(own, PASSES - 1, flush=True)[1])
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
    return None


def _fades(log_norms: Mapping[str, Tensor], one: LayerReplay, dtype: torch.dtype) -> bool:
    """Whether a typical number of the gradient is denormal at some time."""
    typical = torch.as_tensor(log_norms["all"]) - 0.5 * math.log(sum(one.replay.step.sizes))
    return bool((typical.isfinite() & (typical < math.log(torch.finfo(dtype).tiny))).any())


def _share(values: Tensor) -> float:
    return float(_are_denormal(values, values.dtype).double().mean())


def _are_denormal(values: Tensor, dtype: torch.dtype) -> Tensor:
    return (values != 0) & (values.abs() < torch.finfo(dtype).tiny)


class _Pass:
    """Forward and backward pass of a module, over the last steps of its longest sequences.

    The gradient that enters is that of the user's loss; without one, that of a Gaussian combination of last states.
    """

    def __init__(self, module: RecurrentModule, captured: CapturedSequence) -> None:
        few = captured.longest(SEQUENCES)
        self.module: nn.Module = module.module
        self.steps_by_hand = module.steps_by_hand
        self.batch_first = bool(getattr(module.module, "batch_first", False))
        self.inputs = few.sequences.values[-STEPS:].detach()
        if few.of_output is None or few.of_ends is None:
            generator = torch.Generator().manual_seed(0)
            ends = few.ends[max(few.ends)]
            self.of_output = torch.zeros_like(few.output[-STEPS:])
            self.of_final = [
                torch.randn(len(ends), *part.shape, generator=generator, dtype=part.dtype) for part in ends[0]
            ]
        else:
            ends = few.of_ends[max(few.of_ends)]
            self.of_output = few.of_output[-STEPS:].detach()
            self.of_final = [torch.stack(parts) for parts in zip(*ends, strict=True)]

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The gradient with respect to the inputs, and the outputs."""
        with torch.enable_grad():
            x = self.inputs.clone().requires_grad_(True)
            output, final = self._stepped(x) if self.steps_by_hand else self._run(x)
            cotangents = [self.of_output, *self.of_final]
            # One number: torch.autograd takes most of a second to import what it checks cotangents with.
            parts = [(value * given).sum() for value, given in zip([output, *final], cotangents, strict=True)]
        weights = [p for p in self.module.parameters() if p.requires_grad]
        gradient, *_ = torch.autograd.grad(torch.stack(parts).sum(), [x, *weights], allow_unused=True)
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


def _in_thread(own: _Pass, passes: int, flush: bool) -> tuple[tuple[float, float], float]:
    """Shares of denormal numbers in the pass's gradient and output, and the seconds of the quickest.

    In a thread of its own, whose workers are its own too: all have the mode, and no other thread's mode is changed.
    """

    def timed() -> tuple[tuple[float, float], float]:
        torch.set_flush_denormal(flush)
        seconds = []
        for _ in range(passes):
            begin = time.perf_counter()
            gradient, output = own()
            seconds.append(time.perf_counter() - begin)
        # Counted here: to a thread that flushes they are 0.
        return (_share(gradient), _share(output)), min(seconds)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(timed).result()
