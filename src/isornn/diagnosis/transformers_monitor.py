"""A `Monitor` for Hugging Face's Trainer. Importing this needs the package transformers."""

from __future__ import annotations

from typing import Any

from isornn.diagnosis.monitor import EVERY, Log, Monitor, TrainingRecord, Writer

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:
    raise ModuleNotFoundError("this callback is for Hugging Face's Trainer: pip install transformers") from None


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
