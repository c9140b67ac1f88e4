"""The loop: forward, backward, clip, step, callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from isornn.modes import denormals_flushed
from isornn.training.evaluation import Batch, task_loss
from isornn.training.finite import NonFiniteLoss, check_after_step, check_before_step, gradient_norm


@dataclass
class State:
    """What is trained, by what, and how far it has come.

    Args:
        model: x, or x and lengths, to outputs.
        optimizer: of its parameters.
        scheduler: its learning rate's, stepped after each update; ``None`` for a constant one.
        update: how many updates were made.
        loss: of the last update's batch, before that update.
        gradient_norm: of the last update's gradient, before it was clipped.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> State(model, torch.optim.SGD(model.parameters(), 0.1)).update
    0
    """

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None = None
    update: int = 0
    loss: float = math.nan
    gradient_norm: float = math.nan


OnUpdate = Callable[[State], None]


def _step(state: State) -> None:
    """The optimiser's, which cannot take a learning rate that the parameters' dtype does not have.

    Raises:
        NonFiniteLoss: such a rate.
    """
    try:
        state.optimizer.step()
    except RuntimeError as error:
        if "overflow" not in str(error):
            raise
        rate = max(float(group["lr"]) for group in state.optimizer.param_groups)
        raise NonFiniteLoss(state.update + 1, "learning rate", f"the learning rate is {rate:g}: {error}") from None


@denormals_flushed()
def train(
    state: State,
    batches: Iterator[Batch],
    updates: int,
    *,
    clip: float | None = None,
    penalty: Callable[[], Tensor] | None = None,
    on_update: Sequence[OnUpdate] = (),
    forward: Callable[..., Tensor] | None = None,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> None:
    """Minimise the task's loss (`task_loss`) until ``updates`` updates have been made.

    Denormal numbers count as 0 (`isornn.modes.denormals_flushed`): gradients that have vanished consist of them, and
    many CPUs are ten times slower with them. Afterwards torch's mode is as it was.

    Given the state, the batches and the number of threads, the result is the same on one machine.

    Args:
        state: changed in place, and given to ``on_update`` after each update.
        batches: of (x, y) or (x, y, lengths); no more are drawn than updates made.
        updates: K, those counted that ``state`` has behind it; with as many behind it, or more, nothing is done.
        clip: the norm that the gradient is clipped at; ``None``: it is not.
        penalty: added to the loss that is minimised, and not to the one that is reported.
        on_update: called in turn after each update.
        forward, backward: what is called in the place of the model and of ``loss.backward``, where Lightning Fabric
            (device, precision, processes) wraps them.

    Raises:
        NonFiniteLoss: the loss, a gradient or a parameter became NaN or infinite; names the first of them. But for a
            parameter's, the model is as it was before that update.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> state = State(model, torch.optim.Adam(model.parameters(), 0.1))
    >>> losses: list[float] = []
    >>> data = iter([(torch.eye(2), torch.arange(2))] * 100)
    >>> train(state, data, 100, on_update=[lambda state: losses.append(state.loss)])
    >>> len(losses), losses[-1] < losses[0]
    (100, True)
    """
    forward = state.model if forward is None else forward
    parameters = list(state.model.parameters())
    state.model.train()
    for x, target, *lengths in islice(batches, max(0, updates - state.update)):
        output = forward(x, *lengths)
        loss = task_loss(output, target)
        state.optimizer.zero_grad()
        backward(loss if penalty is None else loss + penalty())
        norm = gradient_norm([p.grad for p in parameters if p.grad is not None])
        check_before_step(state.update + 1, state.model, x, output, loss, norm)
        if clip is not None:
            clip_grads_with_norm_(parameters, clip, norm)
        _step(state)
        check_after_step(state.update + 1, state.model)
        if state.scheduler is not None:
            state.scheduler.step()
        state.update += 1
        state.loss, state.gradient_norm = loss.item(), norm.item()
        for callback in on_update:
            callback(state)
