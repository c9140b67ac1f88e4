"""What a critical start costs at the beginning of a fit: Lightning's callback on nn.LSTM(3, 128, 2), T = 500.

    python benchmarks/callback.py [--batch 32] [--repeats 5]

Seconds between the first batch's arrival and the first training step, with the callback less without, each in a Trainer
of its own: the first in a fresh process (which imports and compiles what it needs), then the median of the others.
Bar: 3 s, the first one included. The device is printed.
"""

from __future__ import annotations

import argparse
import logging
import platform
import statistics
import tempfile
import time
import warnings

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isornn.integrations.lightning import CriticalStart

STEPS, UNITS, LAYERS, FEATURES = 500, 128, 2, 3
BAR = 3.0


class Network(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(FEATURES, UNITS, LAYERS, batch_first=True)
        self.head = nn.Linear(UNITS, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return (self.head(self.rnn(x)[0][:, -1]) - y).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Clock(lightning.Callback):
    """When it is called for the first batch."""

    def on_train_batch_start(self, *_: object) -> None:
        self.at = time.perf_counter()


def seconds(loader: DataLoader[tuple[torch.Tensor, ...]], *callbacks: lightning.Callback) -> float:
    """From the first batch's arrival to its training step."""
    before, after = Clock(), Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=1,
            callbacks=[before, *callbacks, after],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Network(), loader)
    return after.at - before.at


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    loader = DataLoader(
        TensorDataset(torch.randn(asked.batch, STEPS, FEATURES), torch.randn(asked.batch, 1)), asked.batch
    )
    nothing = seconds(loader)
    first = seconds(loader, CriticalStart()) - nothing
    others = [seconds(loader, CriticalStart()) - seconds(loader) for _ in range(asked.repeats)]
    print(
        f"nn.LSTM({FEATURES}, {UNITS}, {LAYERS}), B = {asked.batch}, T = {STEPS}, {torch.get_num_threads()} threads, ",
        end="",
    )
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    print(f"first {first:.2f} s, then {statistics.median(others):.2f} s ({min(others):.2f} to {max(others):.2f})")
    print(f"bar {BAR:g} s: {'met' if max(first, *others) <= BAR else 'NOT met'}")


if __name__ == "__main__":
    main()
