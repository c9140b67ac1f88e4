"""What happens between updates: now and then metrics, the best weights and a checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from isornn.files import replacing
from isornn.tasks import Task
from isornn.training.batches import held_out_metrics
from isornn.training.configuration import Configuration
from isornn.training.data_mark import DataMark
from isornn.training.finite import NonFiniteLoss
from isornn.training.loop import State
from isornn.training.metrics import MetricsLog
from isornn.training.model import SequenceModel
from isornn.training.resuming import Journal, save_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass
class Validation:
    """Called after each update: every ``validate_every`` of them, and after the last, a row of metrics, a checkpoint.

    The row is on disk before the checkpoint that counts it, and the checkpoint before the next update: whatever a kill
    leaves behind the last checkpoint is cut off, or written again as it was.

    Args:
        configuration, model, forward, fabric: of the run.
        task: the held-out part.
        data: what the run is trained on.
        journal: the results of the run so far; written to.
        plateau: the schedule that counts validations, if there is one.
        log: of the process that writes; ``None`` in the others.
        weights, checkpoint: the files.

    Raises:
        NonFiniteLoss: the validation's loss is NaN or infinite; nothing is written.
    """

    configuration: Configuration
    model: SequenceModel
    forward: Callable[..., Tensor]
    fabric: Fabric
    task: Task
    data: DataMark
    journal: Journal
    plateau: ReduceLROnPlateau | None
    log: MetricsLog | None
    weights: Path
    checkpoint: Path
    _losses: list[float] = field(default_factory=list)
    _norms: list[float] = field(default_factory=list)
    _begun: float = field(default_factory=time.perf_counter)

    def __call__(self, state: State) -> None:
        self._losses.append(state.loss)
        self._norms.append(state.gradient_norm)
        if state.update % self.configuration.validate_every == 0 or state.update == self.configuration.updates:
            self._validate(state)

    def seconds(self) -> float:
        """Spent on the run, earlier parts together."""
        return self.journal.seconds + time.perf_counter() - self._begun

    def _validate(self, state: State) -> None:
        metrics = held_out_metrics(self.task, self.configuration.batch_size, self.model, self.forward, self.fabric)
        if not math.isfinite(metrics["loss"]):
            raise NonFiniteLoss(state.update, "validation loss", f"the validation loss is {metrics['loss']}")
        if self.plateau is not None:
            self.plateau.step(metrics["loss"])
        journal, training = self.journal, self._training(state)
        journal.last = metrics
        improved = journal.best is None or metrics["loss"] < journal.best["loss"]
        if improved:
            journal.best_update, journal.best = state.update, metrics
            weights = self.model.state_dict()
            journal.best_weights = {name: weight.to("cpu", copy=True) for name, weight in weights.items()}
        if self.log is None:
            return
        self.log.write(state.update, training=training, validation=metrics)
        if improved:
            save_best(self.weights, self.configuration.hash, journal)
        journal.metrics_bytes, journal.metrics_sha256 = self.log.position, self.log.checksum
        journal.seconds, self._begun = self.seconds(), time.perf_counter()
        save_state(self.checkpoint, self.configuration.course, self.data, state, self.plateau, journal)

    def _training(self, state: State) -> dict[str, float]:
        """Mean loss and largest gradient since the last validation, and the rate that they have led to."""
        mean = torch.tensor(sum(self._losses) / len(self._losses), dtype=torch.float64, device=self.fabric.device)
        everywhere: Any = self.fabric.all_reduce(mean, reduce_op="mean")
        largest = max(self._norms)
        self._losses.clear()
        self._norms.clear()
        # Of geodesic's groups the last has the rate of the rest.
        rate = float(state.optimizer.param_groups[-1]["lr"])
        return {"loss": float(everywhere), "gradient_norm": largest, "rate": rate}


def save_best(file: Path, run: str, journal: Journal) -> None:
    """The best weights as safetensors, of which there are some."""
    from safetensors.torch import save

    assert journal.best_weights is not None
    with replacing(file) as new:
        about = {"isornn": f"run {run}, update {journal.best_update}"}
        # Not by save_file, whose error on a full disk is no OSError.
        new.write_bytes(save(dict(journal.best_weights), metadata=about))
