"""By how much does the best rate of Adam move with the width? `critical_` for a batch, 64 to 512 units.

    python benchmarks/initialisers/widths.py [--mnist DIR] [--tasks rows,adding] [--table]

Two tasks: ``rows``, the digit of a 28x28 image read in 28 rows (MNIST's files in DIR, ``isornn data fetch mnist``), and
``adding`` over 100 steps. No sequence is seen twice, so the loss of training is that of unseen data; the score is its
mean over the last quarter of the updates. One layer, batches of 32, gradient norm clipped at 1, three seeds.

Two settings with the same start: ``one rate`` for all parameters, as torch's optimisers have it, and ``by width``,
where the rates of the recurrent matrix and of the read-out's weights are the rate times 64 / N
(`isornn.optim.rates_by_width`). At 64 units they are the same.

Rates are powers of 2: from 2^-7, neighbours are tried until the best has a worse one on either side. The best rate lies
at the minimum of the parabola through these three (logarithm of the score against that of the rate); its standard error
comes from leaving out one seed at a time. Runs are kept in ``benchmarks/results/widths.json``; an interrupted call goes
on where it was, ``--table`` trains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from isornn.files import replacing
from isornn.init import critical_
from isornn.modes import denormals_flushed
from isornn.optim import rates_by_width
from isornn.tasks import load_digits

RECORDS = Path(__file__).parent.parent / "results" / "widths.json"
MODULES = {"LSTM": nn.LSTM, "GRU": nn.GRU}
WIDTHS, SEEDS = (64, 128, 256, 512), (0, 1, 2)
BATCH, CLIP = 32, 1.0
UPDATES = {"rows": 200, "adding": 100}
STEPS = {"rows": 28, "adding": 100}
SETTINGS = ("one rate", "by width")
FIRST, LEAST, MOST = -7, -13, -1  # powers of 2

Pair = tuple[Tensor, Tensor]
Score = Callable[[int, int], float | None]  # of a power and a seed


class Model(nn.Module):
    def __init__(self, task: str, kind: type[nn.LSTM] | type[nn.GRU], units: int) -> None:
        super().__init__()
        self.rnn = kind(28 if task == "rows" else 2, units, batch_first=True)
        self.readout = nn.Linear(units, 10 if task == "rows" else 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.rnn(x)[0][:, -1])


@cache
def images(folder: Path) -> Pair:
    digits = load_digits(folder, pooled=False)
    x, y = digits.part("train")
    return x.reshape(-1, 28, 28), y


def batches(task: str, folder: Path | None, draw: torch.Generator) -> Iterator[Pair]:
    """Batches of sequences of which none comes twice."""
    if task == "rows":
        assert folder is not None
        x, y = images(folder)
        for rows in torch.randperm(len(x), generator=draw).split(BATCH):
            yield x[rows], y[rows]
    steps = STEPS["adding"]
    while task == "adding":
        values = torch.rand(BATCH, steps, generator=draw)
        marks = torch.zeros(BATCH, steps)
        for low in (0, steps // 2):
            marks.scatter_(1, torch.randint(low, low + steps // 2, (BATCH, 1), generator=draw), 1.0)
        yield torch.stack([values, marks], -1), (values * marks).sum(1, keepdim=True)


def trained(task: str, module: str, units: int, setting: str, rate: float, seed: int, folder: Path | None) -> float:
    """The mean loss of the last quarter; infinite if a loss was."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = Model(task, MODULES[module], units)
    data = batches(task, folder, draw)
    first = torch.cat([next(data)[0] for _ in range(2)])
    critical_(model, STEPS[task], batch=first, generator=draw)
    if setting == "by width":
        optimiser = torch.optim.Adam(rates_by_width(model, Model(task, MODULES[module], WIDTHS[0]), rate))
    else:
        optimiser = torch.optim.Adam(model.parameters(), rate)
    losses = []
    for _, (x, y) in zip(range(UPDATES[task]), data, strict=False):
        optimiser.zero_grad()
        output = model(x)
        loss = cross_entropy(output, y) if task == "rows" else mse_loss(output, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        losses.append(float(loss.detach()))
    last = losses[-len(losses) // 4 :]
    return statistics.fmean(last) if all(map(math.isfinite, losses)) else math.inf


class Runs:
    """Scores by key, in a file that is written after each run."""

    def __init__(self, file: Path, training: bool, folder: Path | None) -> None:
        self.file, self.training, self.folder = file, training, folder
        self.known: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}

    def of(self, task: str, module: str, units: int, setting: str, power: int, seed: int) -> float | None:
        """One run, trained if it is not known; ``None`` where nothing may be trained."""
        setting = SETTINGS[0] if units == WIDTHS[0] else setting
        key = f"{task} {module} {units} {setting} 2^{power} seed={seed}"
        if key not in self.known and self.training:
            print(key, file=sys.stderr, flush=True)
            found = trained(task, module, units, setting, 2.0**power, seed, self.folder)
            self.known[key] = found if math.isfinite(found) else 1e9
            with replacing(self.file) as new:
                new.write_text(json.dumps(self.known, indent=1))
        return self.known.get(key)


@dataclass(frozen=True)
class Best:
    """The rate at a parabola's minimum, as a power of 2, its standard error, and the score at the best rate tried."""

    power: float
    error: float
    score: float

    def __str__(self) -> str:
        return f"{2**self.power:.4f} (2^{self.power:.2f} +- {self.error:.2f}), {self.score:.4g}"


def best_of(score: Score) -> Best | None:
    """``None`` where runs are missing or the best rate is at an end of those allowed."""
    known: dict[int, list[float]] = {}

    def mean(power: int) -> float:
        if power not in known:
            found = [score(power, seed) for seed in SEEDS]
            if any(one is None for one in found):
                raise LookupError
            known[power] = [math.log(one) for one in found if one is not None]
        return statistics.fmean(known[power])

    at = FIRST
    try:
        while LEAST < at < MOST:
            around = min((at - 1, at, at + 1), key=mean)
            if around == at:
                break
            at = around
        else:
            return None
    except LookupError:
        return None
    three = [known[at + side] for side in (-1, 0, 1)]
    left_out = [
        at + vertex([[x for k, x in enumerate(one) if k != seed] for one in three]) for seed in range(len(SEEDS))
    ]
    spread = sum((one - statistics.fmean(left_out)) ** 2 for one in left_out)
    error = math.sqrt(spread * (len(SEEDS) - 1) / len(SEEDS))
    return Best(at + vertex(three), error, math.exp(mean(at)))


def moved(first: Best | None, last: Best | None) -> str:
    """By how much the best rate moves, with its standard error."""
    if first is None or last is None:
        return "-"
    power = last.power - first.power
    return f"{2**power:.2f} (2^{power:+.2f} +- {math.hypot(first.error, last.error):.2f})"


def vertex(three: Sequence[Sequence[float]]) -> float:
    """Where the parabola through the means at -1, 0, 1 is least, at most 1 away."""
    low, middle, high = map(statistics.fmean, three)
    curvature = low + high - 2 * middle
    return 0.0 if curvature <= 0 else max(-1.0, min(1.0, (low - high) / (2 * curvature)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files, for the task rows")
    parser.add_argument("--tasks", default=",".join(UPDATES))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--table", action="store_true", help="show what is known; train nothing")
    arguments = parser.parse_args()
    tasks = arguments.tasks.split(",")
    if "rows" in tasks and arguments.mnist is None and not arguments.table:
        parser.error("rows needs --mnist DIR")
    torch.set_num_threads(1)
    runs = Runs(arguments.records, not arguments.table, arguments.mnist)
    table = Table(title="best rate of Adam, its standard error in powers of 2, and the score there")
    for column in ("task", "rates", *map(str, WIDTHS), f"moves by, {WIDTHS[0]} to {WIDTHS[-1]}"):
        table.add_column(column)
    with denormals_flushed():
        for units in WIDTHS:  # the small ones first, so that an interrupted call has whole columns
            for task in tasks:
                for module in MODULES:
                    for setting in SETTINGS:
                        best_of(partial(runs.of, task, module, units, setting))
    for task in tasks:
        for module in MODULES:
            for setting in SETTINGS:
                found = [best_of(partial(runs.of, task, module, units, setting)) for units in WIDTHS]
                shown = ["-" if one is None else str(one) for one in found]
                table.add_row(f"{task} {module}", setting, *shown, moved(found[0], found[-1]))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
