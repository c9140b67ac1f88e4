"""How far gradients come back while a model trains, seen in the training step itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol

import numpy as np
import torch
from torch import nn

from isornn.diagnosis.denormals import Denormals
from isornn.diagnosis.layers import RecurrentModule, recurrent_modules
from isornn.diagnosis.listening import Ear, Overheard
from isornn.diagnosis.sights import Sight, sights
from isornn.diagnosis.watching import Watch
from isornn.modes import flushes_denormals
from isornn.nn.gate_tensors import RecurrentLayer

EVERY = 100
ROWS = 1024
# Where along a sequence the profile is logged, as parts of T.
_ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)

Log = Callable[[dict[str, float]], object]


class Writer(Protocol):
    """What TensorBoard's SummaryWriter is to a monitor."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class Updated(Protocol):
    """Whoever knows how many updates have been made, as `isornn.training.State`."""

    @property
    def update(self) -> int: ...


class Monitor:
    """Watches the recurrent layers of a model in training: `Watch` says what is recorded, one row every some updates.

    The first update of the loop is watched, and then one in ``every``: that after update 100, 200, ... For that one
    training step the recurrent modules have hooks; else the model has none. The step computes what it computes without
    them, to the bit. Afterwards at most 16 sequences of its batch, the longest, are replayed in float64 with the
    weights of that step, and the gradient that autograd delivered to the layer's outputs is taken back through them.

    What is watched, where several things happen between two updates:

    - several forward and backward passes (gradient accumulation): the first. What several losses send back through
      one forward pass before the next is added, as in the parameters' gradients.
    - passes without gradients (evaluation): never.
    - mixed precision: norms are of the loss that was backpropagated, with the scale of a GradScaler where there is
      one; xi does not depend on it. A scale that overflows leaves a row without gradients, and says so.
    - several calls of one module (a cell in the user's loop, a shared encoder): as `isornn.diagnosis.measure` has it.

    Where a watched gradient holds denormal numbers, a short pass is timed once with and once without them; what they
    cost is in ``record.findings``. A process that flushes them already has none.

    Copies and pickles of the model that are made within a watched step do not watch. A model that is compiled does
    not call hooks, and is refused: compile it without its recurrent part. In a model that is sharded over processes
    no process has the weights; it has to be watched elsewhere.

    Args:
        model: with at least one recurrent layer.
        every: updates from one look to the next.
        log: is given one dict of numbers for each look, with the iteration under ``"iteration"``; what does not exist
            is left out.
        writer: TensorBoard's SummaryWriter, or whatever has its ``add_scalar(tag, value, step)``.

    Raises:
        ModuleError: the model has no recurrent layer.
        ValueError: every; a model that is compiled or cannot be copied.

    >>> model = nn.Sequential(nn.GRU(3, 8))
    >>> with Monitor(model, every=2) as monitor:
    ...     for _ in range(4):
    ...         model(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> monitor.record.iterations.tolist(), monitor.record.layers[0].singular_values["nh"].shape
    ([0, 2], (2, 4))
    """

    def __init__(
        self, model: nn.Module, every: int = EVERY, *, log: Log | None = None, writer: Writer | None = None
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every: {every!r} is not allowed; it is a whole number of updates, at least 1")
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules()):
            raise ValueError("model: it is compiled, and a compiled model does not call the hooks that a monitor needs")
        modules = recurrent_modules(model)
        self._ear = Ear(modules)
        self._modules = modules
        self._names = [_name(module, place) for module in modules for place in module.places]
        self._every, self._log, self._writer = every, log, writer
        self._seen: dict[int, list[Sight]] = {}
        self._denormals: dict[str, Denormals] = {}
        self._kept_every = 1
        self._updates: int | None = None
        self._listening = self._closed = False
        self._listen()

    @property
    def record(self) -> Watch:
        """What was seen so far. Of more than 1024 looks every second is dropped, and from then on every second kept."""
        findings = [f"{name}: {found.sentence}" for name, found in self._denormals.items() if found.costly]
        return Watch.of(self._names, self._seen, findings)

    def step(self, update: int | None = None) -> None:
        """To be called after each update of the model.

        Args:
            update: how many updates have been made, if training goes on where an earlier one ended; counted from 1
                where it is not given.
        """
        if self._closed:
            return
        known = 1 if update is None else update
        before = known - 1 if self._updates is None else self._updates
        self._updates = before + 1 if update is None else update
        if self._listening:
            self._look(before)
        if self._updates // self._every > before // self._every:
            self._listen()

    def __call__(self, updated: Updated | int) -> None:
        """`step`, for `isornn.training.train(..., on_update=[monitor])`."""
        self.step(updated if isinstance(updated, int) else updated.update)

    def close(self) -> None:
        """Leave the model without a trace, and watch no more; the record stays."""
        self._ear.hush()
        self._listening, self._closed = False, True

    def _listen(self) -> None:
        self._listening = True
        self._ear.listen()

    def _look(self, iteration: int) -> None:
        self._listening = False
        heard = self._ear.hush()
        # Within autocast the replay would be as rough as the model.
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            found = [sight for module in self._modules for sight in self._sights(module, heard[module.name])]
        if (iteration // self._every) % self._kept_every == 0:
            self._seen[iteration] = found
        if len(self._seen) > ROWS:
            self._seen = dict(list(self._seen.items())[::2])
            self._kept_every *= 2
        self._tell(iteration, found)

    def _sights(self, module: RecurrentModule, overheard: Overheard) -> list[Sight]:
        name = _name(module, module.places[0])
        found = sights(module, overheard, not flushes_denormals() and name not in self._denormals)
        if found[0].denormals is not None:
            self._denormals[name] = found[0].denormals
        return found

    def _tell(self, iteration: int, found: Sequence[Sight]) -> None:
        if self._log is None and self._writer is None:
            return
        numbers = {
            f"{name}/{key}": number
            for name, sight in zip(self._names, found, strict=True)
            for key, number in _numbers(sight)
        }
        if self._log is not None:
            self._log({"iteration": iteration, **numbers})
        if self._writer is not None:
            for tag, number in numbers.items():
                self._writer.add_scalar(tag, number, iteration)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(module: RecurrentModule, place: RecurrentLayer) -> str:
    own = "" if module.steps_by_hand else f" l{place.layer}" + ("_reverse" if place.direction else "")
    return (module.name or module.kind) + own


def _numbers(sight: Sight) -> Iterator[tuple[str, float]]:
    """What is logged of one layer: those numbers that exist."""
    for gate, spectrum in sight.spectra.items():
        for name in ("mean", "std", "smallest", "largest"):
            yield f"singular_values/{gate}/{name}", getattr(spectrum, name)
    if sight.denormals is not None:
        for name in ("gradients", "states", "seconds", "flushed_seconds"):
            yield f"denormals/{name}", getattr(sight.denormals, name)
    if sight.gradients is None:
        return
    xi, error = sight.gradients.xi.number(), sight.gradients.xi.error()
    if xi is not None and error is not None and math.isfinite(error):
        yield "xi", xi
        yield "xi_error", error
    lags = sight.gradients.lags
    for kind, profile in (("loss", sight.gradients.loss["all"]), ("last", sight.gradients.last["all"])):
        for part in _ALONG:
            at = int(np.abs(lags - (1 - part) * lags[-1]).argmin())
            if np.isfinite(profile[at]):
                yield f"ln_gradient_norm/{kind}/t={part:g}T", float(profile[at])
