"""Tasks that need little memory: torch's start against `critical_` with the length that `isornn.memory` finds.

    python benchmarks/initialisers/little_memory.py --data DIR [--table]

DIR holds MNIST's files, War and Peace and the UCR sets OSULeaf, ACSF1 and GunPoint (``isornn data fetch``). The tasks:

- ``OSULeaf``, ``ACSF1``, ``GunPoint``: the next value, at each of the first 200 steps of a series (GunPoint 149);
- ``letters``: at each of 100 characters of the book, how many letters of its word have been read, up to 7;
- ``rows``: the digit of a 28x28 image read in 28 rows.

All runs: one layer of 64 units, batches of 32, 300 updates of Adam at a constant rate, gradient norm clipped at 1. Each
of the rates is trained with seeds 0 to 2, and the one with the least validation loss at the end with seeds 0 to 4. The
score is the loss on test data after the last update. Updates: to the validation loss, averaged over seeds, at which
torch's start ends. Tasks, sizes, rates and the budget were chosen before any run. Runs are kept in
``benchmarks/results/little_memory.json``; an interrupted call goes on where it was, ``--table`` trains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import isornn
from isornn.files import replacing
from isornn.init import critical_
from isornn.modes import denormals_flushed
from isornn.tasks import load_book, load_digits, load_series

RECORDS = Path(__file__).parent.parent / "results" / "little_memory.json"
UNITS, BATCH, CLIP, UPDATES, EVERY = 64, 32, 1.0, 300, 15
RATES, SEEDS, SCANNED = (3e-3, 1e-2, 3e-2), range(5), range(3)
STARTS, MODULES = ("torch", "critical"), {"LSTM": nn.LSTM, "GRU": nn.GRU}
SERIES, STEPS, CHARACTERS, MOST = ("OSULeaf", "ACSF1", "GunPoint"), 200, 100, 7
TASKS = (*SERIES, "letters", "rows")

Pair = tuple[Tensor, Tensor]  # inputs and targets, batch first


@dataclass(frozen=True)
class Data:
    """Three parts; ``classes`` is 0 where targets are values, ``symbols`` where inputs are."""

    train: Pair
    valid: Pair
    test: Pair
    classes: int = 0
    symbols: int = 0


class Model(nn.Module):
    """A recurrent layer between an embedding, if inputs are symbols, and a linear read-out of each step or the last."""

    def __init__(self, data: Data, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        features = 16 if data.symbols else data.train[0].shape[-1]
        self.embed = nn.Embedding(data.symbols, features) if data.symbols else nn.Identity()
        self.rnn = kind(features, UNITS, batch_first=True)
        self.readout = nn.Linear(UNITS, data.classes or data.train[1].shape[-1])
        self.last = data.classes > 0 and data.train[1].dim() == 1

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(self.embed(x))[0]
        return self.readout(states[:, -1] if self.last else states)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Squared error of values, cross entropy of classes, in the mean over steps."""
    if target.is_floating_point():
        return mse_loss(output, target)
    return cross_entropy(output.flatten(0, -2), target.flatten())


@cache
def data_of(task: str, folder: Path) -> Data:
    """The task's three parts."""
    if task in SERIES:
        found = load_series(task, folder)
        own, test = (torch.stack([one[: STEPS + 1] for one in part[0]]) for part in (found.train, found.test))
        kept = torch.arange(len(own)) % 5 != 4
        train, valid, last = ((x[:, :-1], x[:, 1:]) for x in (own[kept], own[~kept], test[:500]))
        return Data(train, valid, last)
    if task == "letters":
        book = load_book(folder)
        symbols = sorted(set(book.train + book.valid + book.test))
        texts = (book.train[:200_000], book.valid[:30_000], book.test[:30_000])
        train, valid, last = (_letters(text, symbols) for text in texts)
        return Data(train, valid, last, classes=MOST + 1, symbols=len(symbols))
    digits = load_digits(folder, pooled=False)
    parts = zip((digits.part("train"), digits.part("valid"), digits.part("test")), (10_000, 1000, 2000), strict=True)
    train, valid, last = ((x[:most].reshape(-1, 28, 28), y[:most]) for (x, y), most in parts)
    return Data(train, valid, last, classes=10)


def _letters(text: str, symbols: list[str]) -> Pair:
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    counts, read = [], 0
    for symbol in text:
        read = min(read + 1, MOST) if symbol.isalpha() else 0
        counts.append(read)
    whole = len(text) // CHARACTERS * CHARACTERS
    x, y = torch.tensor([numbers[symbol] for symbol in text[:whole]]), torch.tensor(counts[:whole])
    return x.reshape(-1, CHARACTERS), y.reshape(-1, CHARACTERS)


@cache
def length_of(task: str, folder: Path) -> int:
    """What `isornn.memory` finds in the training part; the sequences' length where it finds none."""
    x, y = data_of(task, folder).train
    return isornn.memory(x[:1000], y[:1000]).needed or x.shape[1]


def trained(task: str, module: str, start: str, rate: float, seed: int, folder: Path) -> dict[str, Any]:
    """Losses of validation every ``EVERY`` updates, and of the test part after the last."""
    data = data_of(task, folder)
    torch.manual_seed(seed)
    model = Model(data, MODULES[module])
    draw = torch.Generator().manual_seed(seed)
    x, y = data.train
    if start == "critical":
        batch = x[torch.randperm(len(x), generator=draw)[:64]]
        critical_(model, length_of(task, folder), batch=batch, generator=draw)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    losses = []
    for update in range(1, UPDATES + 1):
        rows = torch.randint(len(x), (BATCH,), generator=draw)
        optimiser.zero_grad()
        loss_of(model(x[rows]), y[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        if update % EVERY == 0:
            losses.append(_evaluated(model, data.valid))
    return {"valid": losses, "test": _evaluated(model, data.test)}


@torch.no_grad()
def _evaluated(model: nn.Module, part: Pair) -> float:
    return float(loss_of(model(part[0]), part[1]))


class Runs:
    """Runs by key, in a file that is written after each."""

    def __init__(self, file: Path, folder: Path | None) -> None:
        self.file, self.folder = file, folder
        self.known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def of(self, task: str, module: str, start: str, rate: float, seed: int) -> dict[str, Any] | None:
        """One run, trained if it is not known; ``None`` where nothing may be trained."""
        key = f"{task} {module} {start} rate={rate:g} seed={seed}"
        if key not in self.known and self.folder is not None:
            print(key, file=sys.stderr, flush=True)
            found = trained(task, module, start, rate, seed, self.folder)
            self._keep(key, found)
        return self.known.get(key)

    def length(self, task: str) -> int | None:
        """The length that `critical_` is given."""
        if f"length {task}" not in self.known and self.folder is not None:
            self._keep(f"length {task}", length_of(task, self.folder))
        return self.known.get(f"length {task}")

    def _keep(self, key: str, found: Any) -> None:
        self.known[key] = found
        with replacing(self.file) as new:
            new.write_text(json.dumps(self.known, indent=1))


@dataclass(frozen=True)
class Best:
    """A start at its best rate, over seeds."""

    rate: float
    curve: tuple[float, ...]
    scores: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.score:.4g} +- {self.error:.2g} at {self.rate:g}"

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def error(self) -> float:
        return statistics.stdev(self.scores) / math.sqrt(len(self.scores))

    def updates_to(self, loss: float) -> int | None:
        """At the first validation with no more than this loss."""
        return next((EVERY * (place + 1) for place, one in enumerate(self.curve) if one <= loss), None)


def best_of(run: Callable[[float, int], dict[str, Any] | None]) -> Best | None:
    """The rate with the least validation loss at the end, averaged over the seeds of the scan."""
    scan = {rate: [run(rate, seed) for seed in SCANNED] for rate in RATES}
    if any(one is None for runs in scan.values() for one in runs):
        return None
    rate = min(RATES, key=lambda one: statistics.fmean(found["valid"][-1] for found in scan[one] if found))
    runs = [found for seed in SEEDS if (found := run(rate, seed)) is not None]
    if len(runs) < len(SEEDS):
        return None
    curve = tuple(statistics.fmean(values) for values in zip(*(found["valid"] for found in runs), strict=True))
    return Best(rate, curve, tuple(found["test"] for found in runs))


def rows(runs: Runs) -> Iterator[tuple[str, ...]]:
    """A line of the table for each task and module that is complete."""
    for task in TASKS:
        length = runs.length(task)
        for module in MODULES:
            torchs, ours = (best_of(partial(runs.of, task, module, start)) for start in STARTS)
            if torchs is None or ours is None:
                continue
            needed, theirs = ours.updates_to(torchs.curve[-1]), torchs.updates_to(torchs.curve[-1])
            ratio = "never" if needed is None or theirs is None else f"{needed / theirs:.2f}"
            worse = (ours.score - torchs.score) / math.hypot(torchs.error, ours.error)
            yield f"{task} {module}", str(length), str(torchs), str(ours), ratio, f"{worse:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the files")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--table", action="store_true", help="show what is known; train nothing")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.table:
        parser.error("training needs --data DIR")
    torch.set_num_threads(1)
    with denormals_flushed():
        lines = list(rows(Runs(arguments.records, None if arguments.table else arguments.data)))
    bars = "bars: at most 1.1 times the updates, worse by at most 1 standard error"
    table = Table(title=f"test loss after {UPDATES} updates, {len(SEEDS)} seeds; {bars}")
    for column in ("task", "length", "torch", "critical_", "updates", "worse by, standard errors"):
        table.add_column(column)
    for line in lines:
        table.add_row(*line)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
