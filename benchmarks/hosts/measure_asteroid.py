"""asteroid's separation networks with and without the critical start, on two harmonic voices that come and go.

A voice is ten harmonics of one pitch, switched on and off at random. Which output it belongs to when it comes back
after a pause is known only from the mixture before, up to the whole second.
"""

from __future__ import annotations

import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from compared import Run, Task, measured
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from isornn.integrations.lightning import CriticalStart

try:
    import torchaudio  # noqa: F401
except OSError:  # the package index's wheel needs CUDA's libraries; asteroid uses it for its STOI loss only
    sys.modules["torchaudio"] = types.ModuleType("torchaudio")

from asteroid.engine import System
from asteroid.engine.optimizers import make_optimizer
from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
from asteroid.models import DPRNNTasNet, LSTMTasNet

RATE, STEPS, BATCH, TRAIN, HELD_OUT = 8000, 8000, 8, 120, 32
UPDATES = TRAIN // BATCH


def voice(generator: np.random.Generator) -> np.ndarray:
    """One second: harmonics of a pitch from 80 to 320 Hz, on for 50 to 200 ms, off for 50 to 300 ms."""
    time = np.arange(STEPS) / RATE
    pitch, phases = generator.uniform(80, 320), generator.uniform(0, 2 * np.pi, 10)
    tone = sum(np.sin(2 * np.pi * k * pitch * time + phases[k - 1]) / k for k in range(1, 11))
    on, place, sounding = np.zeros(STEPS), 0, bool(generator.integers(2))
    while place < STEPS:
        length = int(RATE * generator.uniform(0.05, 0.2 if sounding else 0.3))
        on[place : place + length] = sounding
        place, sounding = place + length, not sounding
    ramp = np.ones(80) / 80  # 10 ms
    return np.convolve(on, ramp, mode="same") * tone * 10 ** generator.uniform(-0.15, 0.15)


def loader(count: int, seed: int, shuffled: bool) -> DataLoader[tuple[Tensor, ...]]:
    """Mixtures (count, steps) of two voices (count, 2, steps)."""
    generator = np.random.default_rng(seed)
    voices = np.array([[voice(generator), voice(generator)] for _ in range(count)])
    sources = torch.tensor(voices, dtype=torch.float32)
    return DataLoader(TensorDataset(sources.sum(1), sources), batch_size=BATCH, shuffle=shuffled)


class Scores(Callback):
    """The host's own ``val_loss`` after every epoch."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.losses.append(float(trainer.callback_metrics["val_loss"]))


def run_of(network: Callable[[], nn.Module], epochs: int, length: int | None) -> Run:
    def run(seed: int, start: bool) -> Sequence[float]:
        torch.manual_seed(seed)
        model = network()
        system = System(
            model,
            make_optimizer(model.parameters(), optimizer="adam", lr=1e-3),
            PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx"),
            loader(TRAIN, 0, True),
            loader(HELD_OUT, 1, False),
        )
        scores = Scores()
        generator = torch.Generator().manual_seed(seed)
        callbacks: list[Callback] = [CriticalStart(length, generator=generator), scores] if start else [scores]
        with tempfile.TemporaryDirectory() as folder:
            Trainer(
                max_epochs=epochs,
                accelerator="cpu",
                gradient_clip_val=5.0,
                callbacks=callbacks,
                logger=CSVLogger(folder),
                default_root_dir=folder,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            ).fit(system)
        return scores.losses

    return run


def task(kind: type, length: int, epochs: int, settings: dict[str, Any], start: int | None = None) -> Task:
    """``start``: the length that the start is drawn for, by default that of the layers' sequences."""
    return Task(
        name=f"{kind.__name__}, two voices that come and go" + (f", CriticalStart({start})" if start else ""),
        score="negative SI-SDR of 32 held-out mixtures, dB",
        length=length,
        updates=UPDATES,
        settings={**settings, "epochs": epochs, "batch_size": BATCH, "note": NOTE},
        run=run_of(lambda: kind(n_src=2, **settings), epochs, start),
    )


NOTE = "Adam at .001 and gradients clipped at 5, as in the host's recipes; fewer and smaller layers than its defaults"
FILTERS = {"n_filters": 32, "kernel_size": 32, "stride": 16}
LSTM = {"n_layers": 1, "hid_size": 32, "dropout": 0.0, "bidirectional": False, **FILTERS}
DPRNN = {"n_repeats": 2, "bn_chan": 16, "hid_size": 16, "chunk_size": 32, **FILTERS}

if __name__ == "__main__":
    torch.set_num_threads(1)
    measured(
        "asteroid",
        ["asteroid", "pytorch-lightning", "numpy"],
        [task(LSTMTasNet, 499, 40, LSTM), task(DPRNNTasNet, 32, 10, DPRNN), task(LSTMTasNet, 499, 40, LSTM, start=50)],
    )
