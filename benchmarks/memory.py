"""The memory that tasks of known lag need, measured from their data alone by `isornn.memory`.

Ten tasks with lags of 10 to 2,000 steps, controls with nothing to find or too few sequences, and further kinds, sizes
and lags: those marked "tried" were looked at while the method was written, the others were not.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from table import claim, heading, show
from torch import Tensor

import isornn
from isornn.lookback.record import GROWING, NOTHING, TOO_FEW
from isornn.records import read_record, write_record
from isornn.tasks import Adding, Copy, NoisePadded, load_digits

FACTOR, SECONDS = 2.0, 60.0
Data = tuple[Tensor, Tensor]
Draw = Callable[[torch.Generator], Data]


@dataclass(frozen=True)
class Known:
    """A task, and the length that its definition says is needed.

    Args:
        draw: inputs and targets.
        truth: the fewest steps, and the most, that a right answer may be multiplied from; or the reason for none.
    """

    name: str
    draw: Draw
    truth: tuple[int, int] | str

    def right(self, found: isornn.lookback.Memory) -> bool:
        if isinstance(self.truth, str):
            return found.needed is None and found.reason == self.truth
        low, high = self.truth
        return found.needed is not None and low / FACTOR <= found.needed <= high * FACTOR


def at(lag: int) -> tuple[int, int]:
    """A sample so many steps before the last: its own step counts."""
    return lag + 1, lag + 1


# ---- what the tasks are ----


def echo(sequences: int, steps: int, lag: int, noise: float = 0.0) -> Draw:
    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 1, generator=g)
        return x, x[:, -1 - lag, 0] + noise * torch.randn(sequences, generator=g)

    return draw


def echo_of_each_step(sequences: int, steps: int, lag: int) -> Draw:
    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, generator=g)
        y = torch.zeros_like(x)
        y[:, lag:] = x[:, :-lag]
        return x[:, :, None], y

    return draw


def parity(sequences: int, steps: int, lag: int, apart: int = 1) -> Draw:
    """The product of two signs, ``lag - apart`` and ``lag`` steps before the last; neither alone says anything."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randint(0, 2, (sequences, steps, 1), generator=g) * 2.0 - 1
        return x, (x[:, -1 - lag, 0] * x[:, -1 - lag + apart, 0] > 0).long()

    return draw


def parity_of_three(sequences: int, steps: int, lag: int) -> Draw:
    def draw(g: torch.Generator) -> Data:
        x = torch.randint(0, 2, (sequences, steps, 1), generator=g) * 2.0 - 1
        return x, (x[:, -1 - lag : steps - lag + 2, 0].prod(1) > 0).long()

    return draw


def task(kind: Callable[..., torch.utils.data.Dataset[Data]], length: int, sequences: int) -> Draw:
    def draw(g: torch.Generator) -> Data:
        made = kind(length, size=sequences, seed=int(torch.randint(1 << 30, (), generator=g)))
        x, y = zip(*(made[place] for place in range(sequences)), strict=True)
        return torch.stack(x), torch.stack(y)

    return draw


def padded_pixels(padding: int, sequences: int = 1000) -> Draw:
    """The 64 pixels of a digit, one a step, then zeros."""

    def draw(g: torch.Generator) -> Data:
        digits = load_digits()
        chosen = torch.randperm(len(digits.train_labels), generator=g)[:sequences]
        x = torch.zeros(len(chosen), 64 + padding, 1)
        x[:, :64, 0] = digits.train_images[chosen]
        return x, digits.train_labels[chosen]

    return draw


def noise_padded(steps: int, sequences: int = 500) -> Draw:
    """A digit at the first step, then noise in each of its 64 pixels."""

    def draw(g: torch.Generator) -> Data:
        made = NoisePadded(load_digits(), steps, seed=int(torch.randint(1 << 30, (), generator=g)))
        x, y = zip(*(made[place] for place in range(sequences)), strict=True)
        return torch.stack(x), torch.tensor(y)

    return draw


def window(sequences: int, steps: int, first: int, last: int, noise: float = 0.5) -> Draw:
    """The sum of the samples from ``first`` to ``last`` steps before the last, and noise in proportion."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 1, generator=g)
        y = x[:, steps - 1 - last : steps - first, 0].sum(1) / math.sqrt(last - first + 1)
        return x, y + noise * torch.randn(sequences, generator=g)

    return draw


def volatility(sequences: int, steps: int, first: int, last: int) -> Draw:
    """The logarithm of the variance that the samples in a stretch far back were drawn with; elsewhere it is 1."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 1, generator=g)
        y = torch.randn(sequences, generator=g)
        x[:, steps - 1 - last : steps - first, 0] *= torch.exp(y / 2)[:, None]
        return x, y

    return draw


def seasonal(sequences: int, period: int, share: float = 0.8) -> Draw:
    """The next sample of ``x_t = share x_(t - period) + noise``: it needs the last ``period`` samples, no more."""

    def draw(g: torch.Generator) -> Data:
        steps = 4 * period
        x = torch.randn(sequences, 12 * period + steps + 1, generator=g)
        for t in range(period, x.shape[1]):
            x[:, t] += share * x[:, t - period]
        return x[:, -1 - steps : -1, None], x[:, -1]

    return draw


def short_and_far(sequences: int, steps: int, lag: int) -> Draw:
    """The absolute value of the last sample, and half as much one sample far back."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 1, generator=g)
        return x, x[:, -1, 0].abs() / 0.6 + 0.7 * x[:, -1 - lag, 0]

    return draw


def marked_token(sequences: int, steps: int, symbols: int, nearest: int, farthest: int) -> Draw:
    """The symbol after the only marker, which is anywhere from ``nearest`` to ``farthest`` steps before the last."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randint(1, symbols + 1, (sequences, steps), generator=g)
        place = steps - 1 - torch.randint(nearest, farthest + 1, (sequences,), generator=g)
        each = torch.arange(sequences)
        x[each, place] = 0
        return x, x[each, place + 1]

    return draw


def token(sequences: int, steps: int, symbols: int, lag: int) -> Draw:
    """Whether a symbol far back is of the first half of the alphabet."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randint(0, symbols, (sequences, steps), generator=g)
        return x, (x[:, -1 - lag] < symbols // 2).long()

    return draw


def largest(sequences: int, steps: int, first: int, last: int) -> Draw:
    """The largest of the samples from ``first`` to ``last`` steps before the last."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 1, generator=g)
        return x, x[:, steps - 1 - last : steps - first, 0].amax(1)

    return draw


def counted(sequences: int, steps: int, symbols: int, recent: int) -> Draw:
    """Whether symbol 0 is more frequent than usual in the last so many steps."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randint(0, symbols, (sequences, steps), generator=g)
        return x, ((x[:, -recent:] == 0).float().mean(1) > 1 / symbols).long()

    return draw


def one_of_many(sequences: int, steps: int, features: int, lag: int) -> Draw:
    """One of many features, far back."""

    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, features, generator=g)
        return x, x[:, -1 - lag, features // 2]

    return draw


def unrelated(sequences: int, steps: int, classes: int) -> Draw:
    def draw(g: torch.Generator) -> Data:
        x = torch.randn(sequences, steps, 2, generator=g).cumsum(1) / math.sqrt(steps)
        values = torch.randn(sequences, generator=g)
        return x, torch.randint(0, classes, (sequences,), generator=g) if classes else values

    return draw


TEN = (
    Known("echo of noise, 10", echo(1000, 200, 10, noise=0.5), at(10)),
    Known("seasonal AR, next value, 24", seasonal(1000, 24), (24, 24)),
    Known("marked token, up to 60", marked_token(1000, 100, 6, 20, 60), at(60)),
    Known("copying, 111", task(Copy, 100, 300), at(110)),
    Known("adding, 200", task(Adding, 200, 1000), (200, 200)),
    Known("noise-padded digits, 300", noise_padded(300), (300, 300)),
    Known("sum of 480 to 500", window(1000, 1000, 480, 500), at(500)),
    Known("digits, then 1000 zeros", padded_pixels(1000), (1000, 1064)),
    Known("parity of two signs, 1500", parity(1000, 2000, 1500), at(1500)),
    Known("echo of noise, 2000", echo(500, 2100, 2000), at(2000)),
)
CONTROLS = (
    Known("unrelated values", unrelated(1000, 300, 0), NOTHING),
    Known("unrelated classes", unrelated(500, 1000, 4), NOTHING),
    Known("echo 1000, 20 sequences", echo(20, 2000, 1000), TOO_FEW),
    Known("parity 1000, 40 sequences", parity(40, 2000, 1000), TOO_FEW),
)
OTHERS = (
    Known("tried: echo 700 in noise", echo(300, 1000, 700, noise=1.2), at(700)),
    Known("tried: signs 1207, 1200 back", parity(600, 1500, 1207, 7), at(1207)),
    Known("tried: sum of 400 to 430", window(600, 600, 400, 430), at(430)),
    Known("tried: log variance of 200 to 260", volatility(800, 400, 200, 260), at(260)),
    Known("tried: marked token, up to 250", marked_token(1000, 300, 8, 1, 250), at(250)),
    Known("tried: |x| now, x 150 back", short_and_far(800, 300, 150), at(150)),
    Known("tried: echo of each step, 50", echo_of_each_step(100, 200, 50), at(50)),
    Known("tried: symbol of 50, 1800 back", token(800, 2000, 50, 1800), at(1800)),
    Known("tried: three signs, 40", parity_of_three(1000, 100, 40), at(40)),
    Known("tried: noise-padded digits, 100", noise_padded(100, 1000), (100, 100)),
    Known("tried: digits, then 200 zeros", padded_pixels(200, 400), (200, 264)),
    Known("tried: adding, 700", task(Adding, 700, 1000), (700, 700)),
    Known("largest of 250 to 257", largest(1000, 400, 250, 257), at(257)),
    Known("frequent symbol, last 120", counted(1000, 500, 5, 120), (120, 120)),
    Known("one of 20 features, 450 back", one_of_many(400, 600, 20, 450), at(450)),
    Known("seasonal AR, next value, 365", seasonal(300, 365), (365, 365)),
    Known("copying, 31, 60 sequences", task(Copy, 20, 60), at(30)),
    Known("adding, 60, 150 sequences", task(Adding, 60, 150), (60, 60)),
    Known("echo 1000, 100 sequences", echo(100, 1200, 1000), at(1000)),
)


PARTS = {
    "ten": ("The ten", TEN, 9),
    "controls": ("Controls", CONTROLS, len(CONTROLS)),
    "others": ("Other kinds, sizes and lags", OTHERS, math.ceil(0.9 * len(OTHERS))),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--further-seeds", type=int, default=1, help="of the further kinds")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument(
        "--kept", type=Path, default=Path("memory-rows"), help="folder of finished rows; a call resumes"
    )
    given = parser.parse_args()
    heading("The memory that tasks of known lag need, from their data alone")
    print("load: processes that wanted one of the cores, on average of the minute after which the row was done\n")
    for part in given.parts:
        title, tasks, bar = PARTS[part]
        seeds = given.further_seeds if part == "others" else given.seeds
        rows = [row for one in tasks for row in measured(one, seeds, given.kept)]
        print(title)
        show(["task", "seed", "needed", "found", "score", "right", "s, wall", "s, process", "load"], rows)
        least = min(sum(row[5] == "yes" for row in rows if row[1] == seed) for seed in range(seeds))
        claim(f"right (within a factor {FACTOR:g}): fewest of {seeds} seeds {least} of {len(tasks)}", least >= bar)
        wall, process = (max(float(str(row[place])) for row in rows) for place in (6, 7))
        claim(f"at most {SECONDS:g} s of processor time each: {process:.0f} s", process <= SECONDS)
        claim(f"at most {SECONDS:g} s by the clock, with the load as it was: {wall:.0f} s", wall <= SECONDS)
        print(flush=True)
    return 0


def measured(one: Known, seeds: int, kept: Path) -> list[list[object]]:
    """A row for each seed, of the data and of the method; what an interrupted call had found is in ``kept``."""
    rows = []
    for seed in range(seeds):
        file = kept / f"{one.name}, {seed}.json"
        if not file.exists():
            write_record(file, {"row": _row(one, seed)})
        rows.append(read_record(file)["row"])
    return rows


def _row(one: Known, seed: int) -> list[object]:
    x, y = one.draw(torch.Generator().manual_seed(seed))
    wall, process = time.perf_counter(), time.process_time()
    found = isornn.memory(x, y, generator=torch.Generator().manual_seed(seed))
    spent = time.perf_counter() - wall, time.process_time() - process
    wanted = one.truth if isinstance(one.truth, str) else "-".join(f"{end}" for end in sorted({*one.truth}))
    answer = found.reason if found.needed is None else f"{found.needed}"
    best = max(zip(found.scores, found.errors, strict=True), default=None)
    score = "-" if best is None else f"{best[0]:.2f} +- {best[1]:.2f}"
    yes, load = "yes" if one.right(found) else "NO", f"{os.getloadavg()[0]:.0f}"
    row = [one.name, seed, _short(wanted), _short(answer), score, yes, *(f"{value:.1f}" for value in spent), load]
    print(*row, file=sys.stderr, flush=True)
    return row


def _short(answer: str) -> str:
    return {NOTHING: "nothing", TOO_FEW: "too few", GROWING: "growing"}.get(answer, answer)


if __name__ == "__main__":
    sys.exit(main())
