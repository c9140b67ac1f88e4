"""A task's batches as one process of a run sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from isornn.tasks import RunningText, Task, loader, one_pass
from isornn.training.evaluation import Batch, evaluate
from isornn.training.model import SequenceModel

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def training_batches(
    task: Task, batch_size: int, seed: int, start: int, model: SequenceModel, fabric: Fabric
) -> Iterator[Batch]:
    """Without end from number ``start``: this process's share of each; where a text begins anew, the model forgets."""
    for k, batch in enumerate(loader(task, batch_size, seed, start=start), start):
        if isinstance(task, RunningText) and task.new_pass(k):
            model.forget()
        yield fabric.to_device(share(batch, task, fabric.global_rank, fabric.world_size))


def share(batch: Batch, task: Task, rank: int, processes: int) -> Batch:
    """Every ``processes``-th sequence of a batch, from number ``rank``: the mean of the shares' gradients is the whole
    batch's, where all shares have the same number of targets."""
    x, y, *lengths = batch
    mine = slice(rank, None, processes)
    return (x[:, mine], y[:, mine] if task.per_step else y[mine], *(each[mine] for each in lengths))


def held_out_metrics(
    task: Task, batch_size: int, model: SequenceModel, forward: Callable[..., Tensor], fabric: Fabric
) -> dict[str, float]:
    """`evaluate` on all items of a held-out part; the state that training carries stays out of it."""
    carried = model.carried
    model.forget()
    batches: Iterator[Batch] = map(fabric.to_device, one_pass(task, task.columns or batch_size))
    metrics = evaluate(model, batches, forward, continued=task.columns is not None)
    model.carried = carried
    return metrics
