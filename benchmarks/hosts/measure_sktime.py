"""sktime's classifiers with and without the critical start, on data sets that it ships.

`Started` is all that a user adds: the network is drawn again where the classifier makes it. `Scored` keeps the error
on the test split after every epoch of the host's own training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from compared import Run, Task, measured
from sktime.classification.deep_learning.gru import GRUClassifier
from sktime.classification.deep_learning.lstmfcn import LSTMFCNClassifierTorch
from sktime.datasets import load_arrow_head, load_italy_power_demand, load_osuleaf

from isornn import init

Arrays = tuple[Any, Any]


class Scored:
    """Mixed into a classifier: the share of wrong classes on ``test`` after every epoch."""

    test: Arrays
    errors: list[float]

    def _run_epoch(self: Any, epoch: int, dataloader: Any) -> None:
        super()._run_epoch(epoch, dataloader)
        x, y = self.test
        self.errors.append(float(np.mean(self._predict(x) != y)))
        self.network.train()


class Started:
    """Mixed into a classifier: its recurrent layers are drawn for the series that it is fitted to."""

    def _build_network(self: Any, X: Any, y: Any) -> torch.nn.Module:
        network = super()._build_network(X, y)
        batch = torch.tensor(X[:64], dtype=torch.float32).transpose(1, 2)
        return init.critical_(network, batch=batch, generator=torch.Generator().manual_seed(self.random_state))


def run_of(host: type, load: Any, settings: dict[str, Any]) -> Run:
    """Train ``host(**settings)`` on a data set's training split."""

    def run(seed: int, start: bool) -> Sequence[float]:
        x, y = load(split="train", return_type="numpy3d")
        errors: list[float] = []
        parts = (Started, Scored, host) if start else (Scored, host)
        kind = type(host.__name__, parts, {"test": load(split="test", return_type="numpy3d"), "errors": errors})
        kind(**settings, random_state=seed).fit(x, y)
        return errors

    return run


def task(name: str, host: type, load: Any, length: int, updates: int, settings: dict[str, Any], note: str) -> Task:
    return Task(
        name=f"{host.__name__}, {name}",
        score="share of wrong classes, test split",
        length=length,
        updates=updates,
        settings={**settings, "note": note},
        run=run_of(host, load, settings),
    )


NOTE = (
    "Adam at .001 and batches of 8 in the order of the file are the host's defaults; its 4 layers of 256 units are 1 "
    "of 32 here; batch_first is False by default, with which the GRU takes the batch for time"
)
GRU = {"hidden_dim": 32, "n_layers": 1, "batch_first": True}
FCN = {"num_epochs": 15, "batch_size": 8}

if __name__ == "__main__":
    torch.set_num_threads(1)
    measured(
        "sktime",
        ["sktime", "numpy"],
        [
            task("OSULeaf", GRUClassifier, load_osuleaf, 427, 25, {**GRU, "num_epochs": 24}, NOTE),
            task("ItalyPowerDemand", GRUClassifier, load_italy_power_demand, 24, 9, {**GRU, "num_epochs": 60}, NOTE),
            task("ArrowHead", LSTMFCNClassifierTorch, load_arrow_head, 251, 5, FCN, "the host's default batch is 128"),
        ],
    )
