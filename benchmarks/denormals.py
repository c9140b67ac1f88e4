"""What denormal numbers cost on this CPU: a backward pass of torch's own layers, loss on the last step, one thread.

    python benchmarks/denormals.py

CPU seconds of ``backward()``, medians of 9 in turn with and without ``torch.set_flush_denormal(True)``.
"""

from __future__ import annotations

import statistics
import time

import torch
from table import heading, show
from torch import nn

from isornn.init import critical_
from isornn.modes import denormals_flushed

D, N, B, T, RUNS = 64, 128, 64, 200, 9
TINY = torch.finfo(torch.float32).tiny


def main() -> None:
    torch.set_num_threads(1)
    heading(f"Denormal numbers: backward pass, D = {D}, N = {N}, B = {B}, T = {T}, the mode as each column says")
    torch.manual_seed(0)
    x = torch.randn(T, B, D)
    layers = {"nn.LSTM": nn.LSTM(D, N), "nn.GRU": nn.GRU(D, N), "nn.RNN": nn.RNN(D, N)}
    layers["nn.LSTM, critical start"] = critical_(nn.LSTM(D, N), T)
    rows = []
    for name, layer in layers.items():
        found: dict[bool, list[float]] = {False: [], True: []}
        for run in range(RUNS + 1):
            for flush, seconds in found.items():
                taken = backward_seconds(layer, x, flush)
                if run:  # the first warms up
                    seconds.append(taken)
        with_them, without = (statistics.median(found[flush]) for flush in (False, True))
        spread = " to ".join(f"{a:.3g}" for a in (min(found[False]), max(found[False])))
        rows.append((name, f"{denormal_share(layer, x):.1%}", with_them, without, with_them / without, spread))
    show(("layer", "denormal in dL/dx", "computed with, s", "flushed, s", "ratio", "range of the first"), rows)


def backward_seconds(layer: nn.Module, x: torch.Tensor, flush: bool) -> float:
    with denormals_flushed(flush):
        loss = layer(x)[0][-1].square().mean()
        begin = time.process_time()
        loss.backward()
        return time.process_time() - begin


def denormal_share(layer: nn.Module, x: torch.Tensor) -> float:
    with denormals_flushed(False):
        leaf = x.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(layer(leaf)[0][-1].square().mean(), leaf)
        return float(((gradient != 0) & (gradient.abs() < TINY)).double().mean())


if __name__ == "__main__":
    main()
