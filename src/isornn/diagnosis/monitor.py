"""Gradients and singular values while a model trains, measured in the training step itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from torch import nn

from isornn.capture.modules import RecurrentModule, recurrent_modules
from isornn.cells.arguments import check_function, whole_number
from isornn.diagnosis.facts import Denormals
from isornn.diagnosis.json_record import layer_name
from isornn.diagnosis.step_recorder import RecordedStep, StepRecorder
from isornn.diagnosis.training_record import TrainingRecord
from isornn.diagnosis.training_step import StepMeasurement, measure_step
from isornn.modes import flushes_denormals, usual_modes

EVERY = 100
ROWS = 1024
_OF_UPDATES = "whole number of updates"
# Where along a sequence the profile is logged, as parts of T.
_ALONG = (0.0, 0.25, 0.5, 0.75, 1.0)

Log = Callable[[dict[str, float]], object]


class Writer(Protocol):
    """TensorBoard's SummaryWriter, or whatever has its method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class Updated(Protocol):
    """Has the number of updates made, as `isornn.training.State`."""

    @property
    def update(self) -> int: ...


class Monitor:
    """Measures the recurrent layers of a model in training; `TrainingRecord` has one row for every measured update.

    The first update of the loop is measured, and then one in ``every``, by default that after update 100, 200, ... The
    recurrent modules have hooks during that training step only, and its results are the same to the bit as without
    them. Afterwards at most 16 sequences of its batch, the longest, are replayed in float64 with the
    weights of that step, and the gradient that autograd delivered to the layer's outputs is backpropagated through it.

    What is measured, where several passes happen between two updates:

    - several forward and backward passes (gradient accumulation): the first. What several losses send back through
      one forward pass before the next is added, as in the parameters' gradients.
    - passes without gradients (evaluation), and gradients with respect to inputs alone (saliency, the inner pass of a
      gradient penalty): never.
    - mixed precision: norms are of the loss that was backpropagated, with the scale of a GradScaler where there is
      one; xi does not depend on it. A scale that overflows leaves a row without gradients, and says so.
    - several calls of one module (a cell in the user's loop, a shared encoder): as `isornn.diagnosis.measure` has it.

    Where a measured gradient has denormal numbers, a short pass is timed once with and once without them; the cost
    is reported in ``record.findings``. A process that flushes them already has none.

    Copies and pickles of the model that are made within a measured step have no hooks, and those of a monitor have its
    record alone. A compiled model does not call hooks, and is refused: compile it without its recurrent part. A model
    that is sharded over processes is not supported, as no process has the weights.

    Args:
        model: with at least one recurrent layer.
        every: updates from one measurement to the next.
        log: called with one dict of numbers for each measurement, the iteration under ``"iteration"``; numbers that do
            not exist are left out.
        writer: TensorBoard's SummaryWriter, or whatever has its ``add_scalar(tag, value, step)``.
        updates: that the model has had; one less than the first `step` says if ``None``.

    Raises:
        ModuleError: the model has no recurrent layer.
        ValueError: every, updates, log; a model that is compiled or cannot be copied.

    >>> import torch
    >>> model = nn.Sequential(nn.GRU(3, 8))
    >>> with Monitor(model, every=2) as monitor:
    ...     for _ in range(4):
    ...         model(torch.randn(20, 5, 3))[0][-1].square().sum().backward()
    ...         monitor.step()
    >>> monitor.record.iterations.tolist(), monitor.record.layers[0].singular_values["nh"].shape
    ([0, 2], (2, 4))
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = EVERY,
        *,
        log: Log | None = None,
        writer: Writer | None = None,
        updates: int | None = None,
    ) -> None:
        every = whole_number("every", every, what=_OF_UPDATES)
        check_function("log", log)
        modules = recurrent_modules(model)
        if any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules()):
            raise ValueError("model: it is compiled, and a compiled model does not call the hooks that a monitor needs")
        self._recorder = StepRecorder(modules)
        self._modules = modules
        self._names = [name for module in modules for name in _names(module)]
        self._every, self._log, self._writer = every, log, writer
        self._rows: dict[int, list[StepMeasurement]] = {}
        self._denormals: dict[str, Denormals] = {}
        self._findings: dict[tuple[str, str], str] = {}
        self._kept_every = 1
        self._updates = None if updates is None else whole_number("updates", updates, 0, _OF_UPDATES)
        self._attached = self._closed = False
        self._attach()

    @property
    def record(self) -> TrainingRecord:
        """The rows so far. Of more than 1024 rows every second is dropped, and from then on every second kept."""
        findings = [f"{name}: {sentence}" for (name, _), sentence in self._findings.items()]
        findings += [f"{name}: {found.sentence}" for name, found in self._denormals.items() if found.costly]
        return TrainingRecord.of(self._names, self._rows, findings)

    def step(self, update: int | None = None) -> None:
        """To be called after each update of the model.

        Args:
            update: how many updates have been made, if training goes on where an earlier one ended; counted from 1
                where it is not given.

        Raises:
            ValueError: update.
        """
        known = 1 if update is None else whole_number("update", update, what=_OF_UPDATES)
        if self._closed:
            return
        before = known - 1 if self._updates is None else self._updates
        self._updates = before + 1 if update is None else known
        if self._attached:
            self._measure(before)
        if self._updates // self._every > before // self._every:
            self._attach()

    def __call__(self, updated: Updated | int) -> None:
        """`step`, for `isornn.training.train(..., on_update=[monitor])`."""
        self.step(updated if isinstance(updated, int) else updated.update)

    def close(self) -> None:
        """Remove all hooks and measure no more; the record stays."""
        if not self._closed:
            self._recorder.detach()
        self._attached, self._closed = False, True

    def _attach(self) -> None:
        self._attached = True
        self._recorder.attach()

    def _measure(self, iteration: int) -> None:
        self._attached = False
        recorded = self._recorder.detach()
        flushes = flushes_denormals()
        with usual_modes():
            pairs = [(module, recorded[module.name]) for module in self._modules]
            found = [step for module, one in pairs for step in self._measured(module, one, flushes)]
        if (iteration // self._every) % self._kept_every == 0:
            self._rows[iteration] = found
        if len(self._rows) > ROWS:
            self._rows = dict(list(self._rows.items())[::2])
            self._kept_every *= 2
        self._report(iteration, found)

    def _measured(self, module: RecurrentModule, recorded: RecordedStep, flushes: bool) -> list[StepMeasurement]:
        name = _names(module)[0]
        found = measure_step(module, recorded, not flushes and name not in self._denormals)
        if found[0].denormals is not None:
            self._denormals[name] = found[0].denormals
        for own, step in zip(_names(module), found, strict=True):
            for kind, sentence in step.findings.items():
                self._findings.setdefault((own, kind), sentence)
        return found

    def _report(self, iteration: int, found: Sequence[StepMeasurement]) -> None:
        if self._log is None and self._writer is None:
            return
        numbers = {
            f"{name}/{key}": number
            for name, step in zip(self._names, found, strict=True)
            for key, number in _numbers(step)
        }
        if self._log is not None:
            self._log({"iteration": iteration, **numbers})
        if self._writer is not None:
            for tag, number in numbers.items():
                self._writer.add_scalar(tag, number, iteration)

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy or pickle: the rows, without the model, its hooks and the logs; it measures no more."""
        state = {name: value for name, value in vars(self).items() if name not in ("_recorder", "_log", "_writer")}
        return {**state, "_modules": [], "_attached": False, "_closed": True}

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _names(module: RecurrentModule) -> list[str]:
    return [layer_name(module.name, module.kind, layer.layer, layer.direction) for layer in module.layers]


def _numbers(step: StepMeasurement) -> Iterator[tuple[str, float]]:
    """What is logged of one layer: those numbers that exist."""
    if step.gradients is not None:  # first, because it is what a run is watched for
        xi, error = step.gradients.xi.number(), step.gradients.xi.error()
        if xi is not None and error is not None and math.isfinite(error):
            yield "xi", xi
            yield "xi_error", error
    for gate, spectrum in step.spectra.items():
        for name in ("mean", "std", "smallest", "largest"):
            yield f"singular_values/{gate}/{name}", getattr(spectrum, name)
    if step.denormals is not None:
        for name in ("gradients", "states", "seconds", "flushed_seconds"):
            yield f"denormals/{name}", getattr(step.denormals, name)
    if step.gradients is None:
        return
    lags = step.gradients.lags
    for kind, profile in (("loss", step.gradients.loss["all"]), ("last", step.gradients.last["all"])):
        for part in _ALONG:
            at = int(np.abs(lags - (1 - part) * lags[-1]).argmin())
            if np.isfinite(profile[at]):
                yield f"ln_gradient_norm/{kind}/t={part:g}T", float(profile[at])
