"""Callbacks for Hugging Face's Trainer. Importing this needs the package transformers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from isornn.capture.preserve import preserve_state
from isornn.capture.recorder import is_captured
from isornn.diagnosis.monitor import EVERY, Log, Monitor, Writer
from isornn.diagnosis.target import Target
from isornn.diagnosis.training_record import TrainingRecord
from isornn.extras import named
from isornn.integrations.reports import Reporting
from isornn.integrations.start import TrainingStart, copied, start_

try:
    from transformers import TrainerCallback
except ModuleNotFoundError as error:
    raise named(error) from None

_LOGGER = logging.getLogger(__name__)
Run = Callable[[nn.Module], Any]


class _FirstBatch(TrainerCallback):  # type: ignore[misc]
    """Waits for the model's first forward pass in train mode."""

    _waiting: RemovableHandle | None = None

    def _wait(self, model: nn.Module, act: Callable[[Run], object]) -> None:
        """Call ``act`` ahead of that pass, with a function that repeats it."""

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before(_: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            # A compiled model goes on calling a hook that it was compiled with. A run that measures is no batch.
            if self._waiting is None or not model.training or any(map(is_captured, model.modules())):
                return
            self._wait_no_more()
            arguments = copied((positional, named))

            def run(model: nn.Module) -> Any:
                positional, named = copied(arguments)
                return model(*positional, **named)

            act(run)

        self._waiting = model.register_forward_pre_hook(before, with_kwargs=True)

    def _wait_no_more(self) -> None:
        """Also of a training that failed before its first batch, which calls no callback."""
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None


class CriticalStart(_FirstBatch):
    """Gives every recurrent layer a critical start before the first update; ``Trainer(callbacks=[CriticalStart()])``.

    The first batch that the Trainer gives the model in train mode is measured, and each layer is drawn for what it
    receives, as `isornn.init.critical_` does. Everything else stays bit by bit as it was. In distributed training every
    process has the weights of the first. Nothing is set where a training is resumed, or where a recurrent layer looks
    trained. Either way a line is logged to ``isornn.integrations.transformers`` at level INFO.

    Args:
        length: T from 2 to 1e6 to bridge; by default that of each layer's longest sequence.
        generator: of the weights; torch's global one if ``None``.

    Raises:
        SpecError, ModuleError, ValueError: at the first batch, as `isornn.init.critical_`.
    """

    def __init__(self, length: float | None = None, *, generator: torch.Generator | None = None) -> None:
        self._length, self._generator = length, generator
        self.start: TrainingStart | None = None
        """What was done in the last training; ``None`` before its first batch."""

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        self.start = None
        self._wait_no_more()
        if state.global_step > 0:
            self._ended(TrainingStart((), f"{state.global_step} updates were made before"))
        else:

            def first(run: Run) -> None:
                self._ended(start_(model, run, self._length, self._generator))

            self._wait(model, first)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._wait_no_more()

    def _ended(self, start: TrainingStart) -> None:
        self.start = start
        _LOGGER.info(str(start))


class Diagnose(Reporting, _FirstBatch):
    """Writes reports of `isornn.diagnose` before, during and after a training, all measured on its first batch.

    The gradient is that of the loss that the model returns. Where it returns none, as with label smoothing, for which
    the Trainer computes the loss, no gradient of a loss is in the report. The model is left bit by bit as it was. A
    line for each report is logged to ``isornn.integrations.transformers`` at level INFO. After `CriticalStart` in the
    list of callbacks, the first report is of that start.

    Args:
        folder: of the reports, ``step-000500.json`` and, with ``isornn[report]``, ``.html``; by default ``isornn`` in
            the Trainer's ``output_dir``.
        every: updates between reports during the training; ``None`` for none.
        length: T that gradients must cross, as `isornn.diagnose`.
    """

    _target: Target | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        self._begin(Path(args.output_dir))
        self._wait_no_more()

        def first(run: Run) -> None:
            self._run, self._target = run, _loss if _gives_loss(model, run) else None
            if self._target is None:
                _LOGGER.info("isornn: the model returns no loss, so its gradient is not measured")
            self._report(state, model)

        self._wait(model, first)

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        if self._is_due(state.global_step):
            self._report(state, model)

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        self._wait_no_more()
        if self._run is not None:
            self._report(state, model)
            self._run = None

    def _report(self, state: Any, model: nn.Module) -> None:
        assert self._reports is not None
        step = state.global_step
        if step in self._reports.tried:
            return
        self._reports.add(step, model, self._run, self._target, write=state.is_world_process_zero)
        if step in self._reports.by_step:
            _LOGGER.info("isornn: step %d: %r in %s", step, self._reports.by_step[step], self._reports.folder)


class MonitorCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the model that a Trainer trains, as `Monitor`; ``Trainer(callbacks=[MonitorCallback()])``.

    An update is one of the Trainer's ``global_step``, so that accumulated batches are one. A Trainer that is stopped
    by an error does not call its callbacks: call `close` then.

    Args:
        every: updates from one measurement to the next.
        log, writer: as in `Monitor`; the Trainer's own log cannot be written to from a callback.
    """

    def __init__(self, every: int = EVERY, *, log: Log | None = None, writer: Writer | None = None) -> None:
        self._every, self._log, self._writer = every, log, writer
        self._monitor: Monitor | None = None

    @property
    def record(self) -> TrainingRecord | None:
        """Of the last training; ``None`` before the first."""
        return None if self._monitor is None else self._monitor.record

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        self._monitor = Monitor(model, self._every, log=self._log, writer=self._writer)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._monitor is not None:
            self._monitor.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove all hooks from the model."""
        if self._monitor is not None:
            self._monitor.close()


def _gives_loss(model: nn.Module, run: Run) -> bool:
    """Whether what the model returns on the batch begins with a loss."""
    with preserve_state(model), torch.no_grad():
        output = run(model)
    if isinstance(output, Mapping):
        return output.get("loss") is not None
    first = output[0] if isinstance(output, tuple) else None
    return isinstance(first, torch.Tensor) and first.numel() == 1


def _loss(output: Any) -> Any:
    """Of what a model returned: its entry ``loss``, or the first of a tuple."""
    return output["loss"] if isinstance(output, Mapping) else output[0]
