"""Small layers of every kind, their states and inputs, the same at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from isornn import nn

B, D, N = 3, 4, 5
KINDS = (
    nn.VanillaRNN,
    nn.MinimalRNN,
    nn.GRU,
    nn.ChoGRU,
    nn.LSTM,
    nn.PeepholeLSTM,
    nn.TRNN,
    nn.TLSTM,
    nn.TGRU,
    nn.GersLSTM,
    nn.CoupledLSTM,
    nn.TMR,
    nn.SCRN,
)
Made = Callable[..., nn.RNN]
every_kind = pytest.mark.parametrize("kind", KINDS)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(kind: Made, **options: Any) -> nn.RNN:
    torch.manual_seed(0)
    return kind(D, N, **({"dtype": torch.float64} | options))


def flat(state: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def started(layer: nn.RNN, batch: int = B) -> Any:
    """A state that is not zero."""
    places = len(list(layer.places()))
    sizes = [layer.proj_size or N, *(N for _ in layer.cell.states[1:])]
    dtype = next(layer.parameters()).dtype
    states = tuple(torch.randn(places, batch, size, dtype=dtype, generator=seeded(2)) for size in sizes)
    return states if len(states) > 1 else states[0]


def sequence(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=seeded(1))
