"""Callbacks for Lightning's Trainer. Importing this needs the package lightning (or pytorch_lightning)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from isornn.diagnosis.monitor import EVERY, Monitor
from isornn.diagnosis.training_record import TrainingRecord
from isornn.extras import named
from isornn.integrations.reports import Reporting
from isornn.integrations.start import TrainingStart, copied, start_

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities import rank_zero_info
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
        from pytorch_lightning.utilities import rank_zero_info
    except ModuleNotFoundError:
        raise named(ModuleNotFoundError(name="lightning")) from None


class CriticalStart(Callback):  # type: ignore[misc]
    """Gives every recurrent layer a critical start before the first update of a fit; ``callbacks=[CriticalStart()]``.

    The first batch that the Trainer trains on goes through ``training_step`` in eval mode without gradients, as often
    as there are recurrent modules and once more; what each layer receives is measured, and it is drawn for that as
    `isornn.init.critical_` does. Everything else in the module stays bit by bit as it was, and nothing is logged by
    these runs. Under DDP every process has the weights of the first. A module that is split between processes (FSDP,
    DeepSpeed) has to be set before the fit, by `isornn.init.critical_`.

    Nothing is set where the fit goes on from a checkpoint or an earlier fit, or where a recurrent layer looks trained
    (its weights are no known initialisation). Either way a line says so, and numbers go to the Trainer's loggers. With
    manual optimisation a training step ends at its first ``manual_backward``; layers that it calls later are set for
    standardised input, with a warning.

    Args:
        length: T from 2 to 1e6 to bridge; by default that of each layer's longest sequence.
        generator: of the weights; torch's global one if ``None``.

    Raises:
        SpecError, ModuleError, ValueError: at the first batch, as `isornn.init.critical_`; a ``training_step`` that
            takes a ``dataloader_iter``.
    """

    def __init__(self, length: float | None = None, *, generator: torch.Generator | None = None) -> None:
        self._length, self._generator = length, generator
        self._due = False
        self.start: TrainingStart | None = None
        """What was done in the last fit; ``None`` before its first batch."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.start, self._due = None, True

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self._due:
            return
        self._due = False
        if trainer.ckpt_path is not None:
            self.start = TrainingStart((), "the fit goes on from a checkpoint")
        elif trainer.global_step > 0:
            self.start = TrainingStart((), f"{trainer.global_step} updates were made before")
        else:
            step = _training_step(trainer, batch, batch_idx)
            self.start = start_(pl_module, step, self._length, self._generator)
        rank_zero_info(str(self.start))
        _log(trainer, self.start.numbers())


class Diagnose(Reporting, Callback):  # type: ignore[misc]
    """Writes reports of `isornn.diagnose` before, during and after a fit, all measured on the fit's first batch.

    ``Trainer(callbacks=[Diagnose("reports", every=1000)])``. The gradient is that of the training step's own loss, in
    eval mode; the module is left bit by bit as it was. Findings and time scales go to the Trainer's loggers, and a line
    for each report to its console. After `CriticalStart` in the list of callbacks, the first report is of that start.

    Args:
        folder: of the reports, ``step-000500.json`` and, with ``isornn[report]``, ``.html``; by default ``isornn`` in
            the Trainer's ``log_dir``.
        every: updates between reports during the fit; ``None`` for none.
        length: T that gradients must cross, as `isornn.diagnose`.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin(Path(trainer.log_dir or trainer.default_root_dir))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._run is None:
            self._run = _training_step(trainer, copied(batch), batch_idx)
            self._report(trainer, pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._is_due(trainer.global_step):
            self._report(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None:
            self._report(trainer, pl_module)
            self._run = None

    def _report(self, trainer: Any, pl_module: Any) -> None:
        assert self._reports is not None
        step = trainer.global_step
        if step in self._reports.tried:
            return
        target = _loss if pl_module.automatic_optimization else None
        numbers = self._reports.add(step, pl_module, self._run, target, write=trainer.is_global_zero)
        if step in self._reports.by_step:
            rank_zero_info(f"isornn: step {step}: {self._reports.by_step[step]!r} in {self._reports.folder}")
        _log(trainer, numbers)


class MonitorCallback(Callback):  # type: ignore[misc]
    """Watches the module that a Trainer fits, as `Monitor`; every logger of the Trainer gets the numbers.

    ``Trainer(callbacks=[MonitorCallback()])``. An update is one of the Trainer's ``global_step``, so that accumulated
    batches are one.

    Args:
        every: updates from one measurement to the next.
    """

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._monitor: Monitor | None = None
        self._updates = 0

    @property
    def record(self) -> TrainingRecord | None:
        """Of the last fit; ``None`` before the first."""
        return None if self._monitor is None else self._monitor.record

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def log(numbers: dict[str, float]) -> None:
            step = int(numbers.pop("iteration"))
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=step)

        self._updates = trainer.global_step
        self._monitor = Monitor(pl_module, self._every, log=log, updates=self._updates)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._monitor is not None and trainer.global_step > self._updates:
            self._updates = trainer.global_step
            self._monitor.step(self._updates)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()


def _log(trainer: Any, numbers: dict[str, float]) -> None:
    if numbers:
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)


# ---- a training step outside of the Trainer's own loop ----


class _Backward(Exception):
    """A manual optimisation came to its backward pass."""


def _training_step(trainer: Any, batch: Any, batch_idx: int) -> Callable[[Any], Any]:
    """Runs the module's training step on a copy of the batch; returns what it returns."""

    def run(pl_module: Any) -> Any:
        parameters = inspect.signature(pl_module.training_step).parameters
        if "dataloader_iter" in parameters:
            raise ValueError(
                "training_step: dataloader_iter is not allowed; it must take a batch, so that the first one can be "
                "measured: without the callback, isornn.init.critical_ and isornn.diagnose take any batch"
            )
        takes = parameters.values()
        both = len(takes) > 1 or any(one.kind is one.VAR_POSITIONAL for one in takes)
        arguments = (copied(batch), batch_idx) if both else (copied(batch),)
        with _without_effects(pl_module), trainer.precision_plugin.train_step_context():
            try:
                return pl_module.training_step(*arguments)
            except _Backward:
                return None

    return run


@contextmanager
def _without_effects(pl_module: Any) -> Iterator[None]:
    """Within the block the module logs nothing, and a manual optimisation ends before it changes anything."""

    def nothing(*_: Any, **__: Any) -> None:
        return None

    def stop(*_: Any, **__: Any) -> None:
        raise _Backward

    replaced = {"log": nothing, "log_dict": nothing, "manual_backward": stop}
    before = {name: pl_module.__dict__[name] for name in replaced if name in pl_module.__dict__}
    pl_module.__dict__.update(replaced)
    try:
        yield
    finally:
        for name in replaced:
            del pl_module.__dict__[name]
        pl_module.__dict__.update(before)


def _loss(output: Any) -> Any:
    """Of what a training step returned: a tensor, or a dict with one."""
    return output["loss"] if isinstance(output, dict) else output
