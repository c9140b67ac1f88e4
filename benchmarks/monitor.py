"""What a Monitor costs: a training step that is watched beside one that is not, in one run.

    python benchmarks/monitor.py [--pairs 40] [--read last]

nn.LSTM, B = 64, T = 200, D = 28, N = 128, Adam. A plain step and a watched one take turns, each the first of its pair
every other time, so that what else runs on the machine meets both. A watched step is the step with its hooks, and all
that is then measured and recorded. At the default one step in 100 is watched, and the other 99 pay for one call of
``monitor.step``, which is timed by itself: training takes ``1 + (W - P + 99 s) / (100 P)`` times as long, W and P the
medians of watched and plain steps, s that of such a call. In brackets the same of the quartiles of W over pairs.
Wanted: below 1.03, in process CPU time and in wall time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median, quantiles

import torch
from table import claim, heading
from torch import Tensor, nn
from torch.nn import functional

from isornn.diagnosis import Monitor
from isornn.diagnosis.monitor import EVERY

B, T, D, N, CLASSES = 64, 200, 28, 128, 10
BAR = 1.03
CLOCKS = (("process CPU", time.process_time), ("wall", time.perf_counter))
Times = tuple[float, ...]


class Classifier(nn.Module):
    """Reads the last step, or every step (``read``)."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.rnn, self.head, self.read = nn.LSTM(D, N), nn.Linear(N, CLASSES), read

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.rnn(x)[0]
        return self.head(outputs[-1] if self.read == "last" else outputs.mean(0))


def trainer(read: str) -> tuple[nn.Module, Callable[[], None]]:
    """A model and one update of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, B, D, generator=generator)
    y = torch.randint(CLASSES, (B,), generator=generator)
    model = Classifier(read)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def update() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, update


def timed(work: Callable[[], None]) -> Times:
    """By each clock."""
    start = [clock() for _, clock in CLOCKS]
    work()
    return tuple(clock() - begin for (_, clock), begin in zip(CLOCKS, start, strict=True))


def idle(model: nn.Module, calls: int = 1000) -> Times:
    """One call of ``step`` after an update that is not watched."""
    with Monitor(model, every=10 * calls) as monitor:
        monitor.step()
        return tuple(one / calls for one in timed(lambda: [monitor.step() for _ in range(calls)] and None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--read", choices=("last", "all"), default="last", help="what the loss reads")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, update = trainer(options.read)

    def watched() -> None:
        with Monitor(model) as monitor:
            update()
            monitor.step()

    heading(f"A monitor of nn.LSTM, B = {B}, T = {T}, D = {D}, N = {N}; the loss reads {options.read}")
    first = timed(watched)[0] - timed(update)[0]
    print(f"a process's first look, which loads what is compiled, costs {first:.2f} s once")
    plain: list[Times] = []
    looked: list[Times] = []
    for pair in range(options.pairs):
        for kind, work in ((plain, update), (looked, watched))[:: 1 if pair % 2 else -1]:
            kind.append(timed(work))
    calls = idle(model)
    for place, (name, _) in enumerate(CLOCKS):
        step, call = median(times[place] for times in plain), calls[place]
        low, middle, high = quantiles([times[place] for times in looked], n=4)
        share = [1 + (watch - step + (EVERY - 1) * call) / (EVERY * step) for watch in (middle, low, high)]
        print(f"{name} time: plain {step:.4f} s, watched {middle:.4f} s, a call in between {1e6 * call:.2f} us")
        claim(f"training takes {share[0]:.4f} ({share[1]:.4f} to {share[2]:.4f}) times as long", share[0] < BAR)


if __name__ == "__main__":
    main()
