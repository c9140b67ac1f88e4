"""Two recurrent layers: torch's start, `critical_` of both, and of the lower one alone.

    python benchmarks/initialisers/stacks.py [--table] [--jobs N]

The tasks, each with `nn.LSTM` and `nn.GRU` of two layers:

- ``tagging``: at each of 40 steps, which of six symbols was read 5 steps before; two directions of 24 units;
- ``adding``: the sum of two marked ones of 100 numbers; 64 units;
- ``digits``: the package's digits pixel by pixel (64 steps); 64 units.

All runs: batches of 32, Adam at a constant rate, gradient norm clipped at 1. The score is the training loss on batches
that are drawn anew, in the mean over all updates: how soon it falls. Beside it stands the mean over the last 20
updates. A start has the rate at which its score, averaged over seeds, is least. Runs are kept in
``benchmarks/results/stacks.json``; an interrupted call goes on where it was, ``--table`` trains nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from isornn.diagnosis import redraw_
from isornn.files import replacing
from isornn.init import critical_
from isornn.modes import denormals_flushed
from isornn.tasks import load_digits

RECORDS = Path(__file__).parent.parent / "results" / "stacks.json"
BATCH, CLIP, LAST = 32, 1.0, 20
RATES, SEEDS = (1e-2, 3e-2), (0, 1)
STARTS, MODULES = ("torch", "critical", "lowest"), {"LSTM": nn.LSTM, "GRU": nn.GRU}
SYMBOLS, BACK, TAGGED, ADDED = 6, 5, 40, 100

Pair = tuple[Tensor, Tensor]  # inputs (T, B, D) and targets


@dataclass(frozen=True)
class Task:
    """Sizes of one task, and how long it is trained."""

    inputs: int
    outputs: int
    units: int
    updates: int
    bidirectional: bool = False


TASKS: Mapping[str, Task] = {
    "tagging": Task(SYMBOLS, SYMBOLS, 24, 400, bidirectional=True),
    "adding": Task(2, 1, 64, 200),
    "digits": Task(1, 10, 64, 300),
}


class Model(nn.Module):
    """Two recurrent layers and a linear read-out of each step, or of the last."""

    def __init__(self, task: Task, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.rnn = kind(task.inputs, task.units, num_layers=2, bidirectional=task.bidirectional)
        self.readout = nn.Linear(task.units * (1 + task.bidirectional), task.outputs)
        self.each_step = task.bidirectional

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.readout(states if self.each_step else states[-1])


def batch_of(name: str, draw: Generator) -> Pair:
    """One batch, drawn anew."""
    if name == "tagging":
        symbols = torch.randint(SYMBOLS, (TAGGED, BATCH), generator=draw)
        return one_hot(symbols, SYMBOLS).float(), symbols
    if name == "adding":
        numbers, marks = torch.rand(ADDED, BATCH, generator=draw), torch.zeros(ADDED, BATCH)
        for first in (0, ADDED // 2):
            marks[first + torch.randint(ADDED // 2, (BATCH,), generator=draw), torch.arange(BATCH)] = 1
        return torch.stack([numbers, marks], -1), (numbers * marks).sum(0)
    images, labels = _digits()
    rows = torch.randint(len(labels), (BATCH,), generator=draw)
    return images[rows].T.unsqueeze(-1), labels[rows]


@cache
def _digits() -> Pair:
    return load_digits().part("train")


def loss_of(name: str, output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy, or the squared error of the sum; the first tags have no symbol yet."""
    if name == "tagging":
        return cross_entropy(output[BACK:].flatten(0, 1), target[:-BACK].flatten())
    return mse_loss(output[:, 0], target) if name == "adding" else cross_entropy(output, target)


def start_(model: Model, start: str, batch: Tensor, draw: Generator) -> None:
    """Draw the recurrent layers by the named start."""
    if start == "critical":
        critical_(model, batch=batch, generator=draw)
    elif start == "lowest":
        for layer in ("rnn l0", "rnn l0_reverse")[: 1 + model.rnn.bidirectional]:
            redraw_(model, layer, len(batch), batch, generator=draw)


def trained(name: str, module: str, start: str, rate: float, seed: int) -> list[float]:
    """The loss before each update."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = Model(TASKS[name], MODULES[module])
    draw = Generator().manual_seed(seed)
    start_(model, start, batch_of(name, draw)[0], draw)
    optimiser, losses = torch.optim.Adam(model.parameters(), rate), list[float]()
    with denormals_flushed():
        for _ in range(TASKS[name].updates):
            x, target = batch_of(name, draw)
            optimiser.zero_grad()
            loss = loss_of(name, model(x), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            losses.append(float(loss.detach()))
    return losses


Key = tuple[str, str, str, float, int]
KEYS = tuple(product(TASKS, MODULES, STARTS, RATES, SEEDS))


def in_words(key: Key) -> str:
    """How the record names a run."""
    name, module, start, rate, seed = key
    return f"{name} {module} {start} rate={rate:g} seed={seed}"


def train_missing(known: dict[str, list[float]], file: Path, jobs: int) -> None:
    """Train what is not known; the file is written after each run."""
    missing = [key for key in KEYS if in_words(key) not in known]
    with ProcessPoolExecutor(jobs) as workers:
        runs = {workers.submit(trained, *key): in_words(key) for key in missing}
        for number, run in enumerate(as_completed(runs), 1):
            losses = run.result()
            known[runs[run]] = [round(statistics.fmean(part), 4) for part in (losses, losses[-LAST:])]
            with replacing(file) as new:
                new.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
            print(f"{number} of {len(missing)}: {runs[run]} {known[runs[run]]}", file=sys.stderr, flush=True)


def rows(known: Mapping[str, list[float]]) -> Iterator[tuple[str, ...]]:
    """A line for each task and module: of each start the score at its best rate, and the last loss there."""
    for name, module in product(TASKS, MODULES):
        cells = list[str]()
        for start in STARTS:
            found = {rate: [known.get(in_words((name, module, start, rate, seed))) for seed in SEEDS] for rate in RATES}
            complete = {rate: [run for run in runs if run is not None] for rate, runs in found.items()}
            if any(len(runs) < len(SEEDS) for runs in complete.values()):
                cells.append("not run")
                continue
            best = min(RATES, key=lambda rate: statistics.fmean(run[0] for run in complete[rate]))
            scores, last = zip(*complete[best], strict=True)
            spread = f"{statistics.fmean(scores):.3g} ({min(scores):.3g} to {max(scores):.3g})"
            cells.append(f"{spread}, last {statistics.fmean(last):.2g}, at {best:g}")
        yield f"{name} {module}", *cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--table", action="store_true", help="show what is known; train nothing")
    arguments = parser.parse_args()
    known = json.loads(arguments.records.read_text()) if arguments.records.exists() else {}
    if not arguments.table:
        train_missing(known, arguments.records, arguments.jobs)
    table = Table(title=f"mean loss over all updates, {len(SEEDS)} seeds (least to largest)")
    for column in ("task", "torch", "critical_, both layers", "critical_, lower layer"):
        table.add_column(column)
    for line in rows(known):
        table.add_row(*line)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
