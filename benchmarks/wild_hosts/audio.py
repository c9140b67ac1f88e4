"""asteroid, and the recurrent part of transformers' EnCodec."""

from __future__ import annotations

import contextlib
import warnings
from importlib import import_module
from typing import Any

import torch

from wild_hosts.case import Built

warnings.filterwarnings("ignore")


with contextlib.suppress(ImportError, OSError):  # of an audio library for files, which is not needed
    import_module("asteroid")


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def recurrent(kind: str, /, *arguments: Any, steps: int = 150, features: int = 24, **options: Any) -> Built:
    """A module of ``asteroid.masknn.recurrent`` and frames (B, T, D)."""
    torch.manual_seed(0)
    model = getattr(import_module("asteroid.masknn.recurrent"), kind)(*arguments, **options)
    return model, _noise(4, steps, features)


def masker(kind: str, /, features: int = 24, steps: int = 300, **options: Any) -> Built:
    """A masker, which takes (B, D, T)."""
    torch.manual_seed(0)
    model = getattr(import_module("asteroid.masknn.recurrent"), kind)(features, 2, **options)
    return model, _noise(2, features, steps)


def separator(kind: str, /, samples: int = 1600, **options: Any) -> Built:
    """A whole model of ``asteroid.models`` and waveforms."""
    torch.manual_seed(0)
    model = getattr(import_module("asteroid.models"), kind)(2, **options)
    return model, 0.3 * _noise(2, samples)


def encodec(**options: Any) -> Built:
    """``EncodecModel`` with random weights, 48,000 samples."""
    transformers = import_module("transformers")
    torch.manual_seed(0)
    model = transformers.EncodecModel(transformers.EncodecConfig(num_filters=8, hidden_size=32, **options))
    return model, {"input_values": 0.3 * _noise(2, 1, 48_000)}


def encodec_encoder() -> Built:
    """Its encoder alone, whose LSTM follows convolutions."""
    model, batch = encodec()
    return model.encoder, batch["input_values"]
