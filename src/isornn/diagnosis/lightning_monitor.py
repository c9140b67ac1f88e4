"""A `Monitor` for Lightning's Trainer. Importing this needs the package lightning (or pytorch_lightning)."""

from __future__ import annotations

from typing import Any

from isornn.diagnosis.monitor import EVERY, Monitor, TrainingRecord

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    try:
        from pytorch_lightning import Callback
    except ModuleNotFoundError:
        raise ModuleNotFoundError("this callback is for Lightning's Trainer: pip install lightning") from None


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

        self._monitor = Monitor(pl_module, self._every, log=log)
        self._updates = trainer.global_step

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
