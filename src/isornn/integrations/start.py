"""The critical start at the beginning of a training that somebody else's trainer runs."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from isornn.capture.modules import recurrent_modules
from isornn.cells.errors import brief
from isornn.diagnosis.weights import too_few_to_tell, untrained_evidence, weight_facts
from isornn.init import LayerStart, critical_
from isornn.nn.gate_tensors import recurrent_layers, weights_of_next_call
from isornn.nn.wrappers import unwrapped


@dataclass(frozen=True)
class TrainingStart:
    """Whether a training began with a critical start.

    Args:
        layers: what each recurrent layer was found to receive, and the law that it was drawn by; empty where nothing
            was set.
        left_alone: why nothing was set; ``None`` where the layers were.
    """

    layers: tuple[LayerStart, ...]
    left_alone: str | None = None

    def __str__(self) -> str:
        """A line for each layer, or one with the reason."""
        if self.left_alone is not None:
            return f"isornn: recurrent layers left as they are: {self.left_alone}"
        return "\n".join(f"isornn: critical start of {layer}" for layer in self.layers)

    def numbers(self) -> dict[str, float]:
        """For loggers, by layer: the length, and the standard deviation of its input."""
        found = {f"critical_start/{layer.where}/length": float(layer.length) for layer in self.layers}
        for layer in self.layers:
            if layer.input is not None:
                found[f"critical_start/{layer.where}/input_std"] = layer.input.variance**0.5
        return found


def start_(model: nn.Module, batch: Any, length: float | None, generator: torch.Generator | None) -> TrainingStart:
    """`critical_` for every recurrent layer, unless one of them is `trained`; the same in every process.

    Each process of a distributed training measures its own batch and draws; all then have the weights of the first.

    Args, raises: as `isornn.init.critical_`.

    >>> model = nn.LSTM(3, 16)
    >>> first = start_(model, torch.randn(50, 8, 3), None, torch.Generator().manual_seed(0))
    >>> print(first)
    isornn: critical start of LSTM l0: set for 50 steps; input: mean ...
    >>> _ = model.weight_hh_l0.data.add_(torch.randn(64, 16)), model.weight_ih_l0.data.add_(torch.randn(64, 3))
    >>> _ = model.bias_ih_l0.data.add_(torch.randn(64))
    >>> print(start_(model, torch.randn(50, 8, 3), None, None))
    isornn: recurrent layers left as they are: LSTM l0 looks trained
    """
    if (why := trained(model)) is not None:
        return TrainingStart((), why)
    starts: list[LayerStart] = []
    model = unwrapped(model)
    critical_(model, length, batch=batch, generator=generator, report=starts.append)
    _copy_from_first_process(model)
    return TrainingStart(tuple(starts))


def trained(model: nn.Module) -> str | None:
    """Which recurrent layers have weights of no known initialisation; ``None`` where all are as initialised.

    A few weights within torch's bounds could be either, and count as trained.

    Raises:
        ModuleError: the model has no recurrent layer.
    """
    with weights_of_next_call(model):
        facts = {layer.where: weight_facts(layer) for layer in recurrent_layers(model)}
    unknown = {where: one for where, one in facts.items() if untrained_evidence(one) is None}
    small = [where for where, one in unknown.items() if too_few_to_tell(one)]
    if names := [where for where in unknown if where not in small]:
        return f"{', '.join(names)} {'looks' if len(names) == 1 else 'look'} trained"
    return f"{', '.join(small)}: too few weights to tell whether they are trained" if small else None


def copied(batch: Any) -> Any:
    """A copy of a batch, so that what a run does to it in place stays there.

    Raises:
        ValueError: something in it cannot be copied.
    """
    try:
        return copy.deepcopy(batch)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"batch: {brief(batch)} is not allowed; all of it can be copied ({error})") from error


@torch.no_grad()
def _copy_from_first_process(model: nn.Module) -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for found in recurrent_modules(model):
            for parameter in found.module.parameters():
                torch.distributed.broadcast(parameter, 0)
