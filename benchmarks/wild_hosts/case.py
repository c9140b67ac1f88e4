"""What a case is, how models are spoiled, and how the first batch of a host's own training is caught."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import isornn

Built = tuple[nn.Module, Any]
Spoil = Callable[[nn.Module, Any], Built]


@dataclass(frozen=True)
class Case:
    """One model, and the verdict that is expected of it, written before it was tried.

    Args:
        name: host and model.
        host: the environment it needs.
        build: gives the model and a batch of its own.
        spoil: what is done to them.
        expected: the finding's kind; ``None`` where nothing is wrong.
        also: kinds that follow from it.
        length: steps to bridge; those of the batch by default.
    """

    name: str
    host: str
    build: Callable[[], Built]
    spoil: Spoil
    expected: str | None
    also: frozenset[str] = field(default_factory=frozenset)
    length: int | None = None


class Caught(Exception):
    """The batch is known; training need not go on."""


def caught(kind: type[nn.Module], train: Callable[[], object], *, stop: bool = True) -> Built:
    """The module of class ``kind`` that ``train`` calls first, and that call's arguments by name."""
    found: list[Built] = []
    original = kind.forward

    def forward(self: nn.Module, *positional: Any, **named: Any) -> Any:
        if not found:
            bound = inspect.signature(original).bind(self, *positional, **named).arguments
            found.append((self, {name: copy.deepcopy(value) for name, value in list(bound.items())[1:]}))
            if stop:
                raise Caught
        return original(self, *positional, **named)

    kind.forward = forward
    try:
        with contextlib.suppress(Caught):
            train()
    finally:
        kind.forward = original
    model, batch = found[0]
    return model, batch


def recurrent(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Parent, attribute and module of every torch recurrent module."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.RNNBase):
                yield parent, name, child


def first(model: nn.Module) -> tuple[nn.Module, str, nn.Module]:
    """The first of them."""
    return next(recurrent(model))


def _gate(module: nn.Module) -> tuple[int, int]:
    """Place of the retaining gate among the gates, and how many there are."""
    return (1, 4) if isinstance(module, nn.LSTM) else (1, 3)


@torch.no_grad()
def _bias(model: nn.Module, kind: str, value: float) -> None:
    for _, _, module in recurrent(model):
        at, gates = _gate(module)
        for name, bias in module.named_parameters():
            if kind in name:
                n = len(bias) // gates
                bias[at * n : (at + 1) * n] = value


def as_it_is(model: nn.Module, batch: Any) -> Built:
    """Untouched."""
    return model, batch


def critical(model: nn.Module, batch: Any) -> Built:
    """`isornn.init.critical_` for the batch."""
    isornn.init.critical_(model, batch=batch, generator=torch.Generator().manual_seed(0))
    return model, batch


def forget_3(model: nn.Module, batch: Any) -> Built:
    """neuralhydrology's."""
    _bias(model, "bias_hh", 3.0)
    return model, batch


@torch.no_grad()
def stacked(model: nn.Module, batch: Any) -> Built:
    """speechbrain's."""
    for _, _, module in recurrent(model):
        for name, weight in module.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(weight)
    return model, batch


@torch.no_grad()
def nemo(model: nn.Module, batch: Any) -> Built:
    """NeMo's chrono in both bias vectors, for T = 100."""
    for _, _, module in recurrent(model):
        n = int(module.hidden_size)
        for name, bias in module.named_parameters():
            if "bias" in name:
                bias.zero_()
                bias[n : 2 * n] = torch.log(nn.init.uniform_(bias[:n].clone(), 1, 99))
                bias[:n] = -bias[n : 2 * n]
    return model, batch


def ones_twice(model: nn.Module, batch: Any) -> Built:
    """A forget bias of 1 in both vectors."""
    _bias(model, "bias", 1.0)
    return model, batch


def stuck_open(model: nn.Module, batch: Any) -> Built:
    """A retaining gate's bias of 14."""
    _bias(model, "bias_ih", 14.0)
    return model, batch


@torch.no_grad()
def scaled(factor: float) -> Spoil:
    """Recurrent matrices times ``factor``."""

    def spoil(model: nn.Module, batch: Any) -> Built:
        for _, _, module in recurrent(model):
            for name, weight in module.named_parameters():
                if "weight_hh" in name:
                    weight.data.mul_(factor)
        return model, batch

    return spoil


def on(name: str, change: Callable[[Tensor], Tensor]) -> Spoil:
    """``change`` of one entry of a batch that is a dict, within the model at the critical start."""

    def spoil(model: nn.Module, batch: Any) -> Built:
        critical(model, batch)
        return model, _changed(batch, name, change)

    return spoil


def _changed(batch: Any, name: str, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return change(batch.clone())
    if isinstance(batch, dict):
        return {
            key: change(v.clone()) if key == name else _changed(v, name, change) if isinstance(v, dict) else v
            for key, v in batch.items()
        }
    return batch


def raw(x: Tensor) -> Tensor:
    """Values as a sensor gives them."""
    return 5000 + 10000 * x


def one_nan(x: Tensor) -> Tensor:
    """One value missing."""
    x[0, x.shape[1] // 2] = torch.nan
    return x


def padded(x: Tensor) -> Tensor:
    """Sequences (B, T, ...) that end in zeros, from 40 % of the steps to none."""
    for row, sequence in enumerate(x):
        sequence[int(len(sequence) * (0.6 + 0.4 * row / len(x))) :] = 0.0
    return x


def detached(model: nn.Module, batch: Any) -> Built:
    """The first recurrent module's results without their graph."""
    critical(model, batch)
    _, _, module = first(model)

    def cut(_: nn.Module, __: Any, result: Any) -> Any:
        output, state = result
        state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
        return output.detach(), state

    module.register_forward_hook(cut)
    return model, batch


class Pieces(nn.Module):
    """A recurrent module called on a quarter of the steps at a time, with or without its state."""

    def __init__(self, inner: nn.Module, carried: bool) -> None:
        super().__init__()
        self.inner, self.carried = inner, carried
        self.input_size = inner.input_size

    def forward(self, x: Tensor, state: Any = None) -> Any:
        outputs = []
        for part in x.chunk(4, 1 if self.inner.batch_first else 0):
            out, state = self.inner(part, state if self.carried else None)
            if self.carried:
                state = tuple(p.detach() for p in state) if isinstance(state, tuple) else state.detach()
            outputs.append(out)
        return torch.cat(outputs, 1 if self.inner.batch_first else 0), state

    def flatten_parameters(self) -> None:
        """As torch's modules have it."""


def in_pieces(*, carried: bool) -> Spoil:
    """The first recurrent module in `Pieces`."""

    def spoil(model: nn.Module, batch: Any) -> Built:
        critical(model, batch)
        parent, name, module = first(model)
        setattr(parent, name, Pieces(module, carried))
        return model, batch

    return spoil


class Keeps(nn.Module):
    """A recurrent module that goes on from where the last batch ended."""

    def __init__(self, inner: nn.Module, detaches: bool) -> None:
        super().__init__()
        self.inner, self.detaches, self.kept = inner, detaches, None
        self.input_size = inner.input_size

    def forward(self, x: Tensor, state: Any = None) -> Any:
        out, state = self.inner(x, self.kept)
        self.kept = state
        if self.detaches:
            self.kept = tuple(p.detach() for p in state) if isinstance(state, tuple) else state.detach()
        return out, state

    def flatten_parameters(self) -> None:
        """As torch's modules have it."""


def keeps(*, detaches: bool) -> Spoil:
    """The first recurrent module in `Keeps`."""

    def spoil(model: nn.Module, batch: Any) -> Built:
        critical(model, batch)
        parent, name, module = first(model)
        setattr(parent, name, Keeps(module, detaches))
        return model, batch

    return spoil


def trained(loss: Callable[[Any], Tensor], updates: int = 30, spoil: Spoil = as_it_is) -> Spoil:
    """Some updates by Adam on the batch."""

    def train(model: nn.Module, batch: Any) -> Built:
        spoil(model, batch)
        model.train()
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(updates):
            optimiser.zero_grad()
            loss(model(**batch) if isinstance(batch, dict) else model(batch)).backward()
            optimiser.step()
        return model, batch

    return train


VANISHES = frozenset({"vanishing"})
