"""Layers against torch.nn's and torchrecurrent's: time of a forward and backward pass, and peak memory, as ratios.

    python benchmarks/layers.py [--runs 9] [--device cpu]

Ours and the peer run in turn, and the ratio is that of the medians. Bars, on two cores of a CPU: peephole, LSTM, GRU
and Cho's GRU at most 1.5 times torch's layer; T-RNN 0.3, T-LSTM and T-GRU 0.45; each at most 0.7 of torchrecurrent's
class of the same equations (its peephole LSTM is Gers', and it has no ChoGRU, LSTM or GRU of its own); peak memory of
the peephole LSTM at T = 10,000 at most 1.5 times nn.LSTM's (read from Linux's /proc). Without torchrecurrent (pip
install --no-deps torchrecurrent) its rows are left out.

A cell of one's own: copies of the GRU and the LSTM at most 1.1 times the built-in ones; cells and options that torch
does not have at most 1.0 times torch's layer (1.2 where it is small); cells without a recurrent matrix at most 0.35;
the first call with a cell never compiled at most 3 s, in later processes at most 0.3 s more than a built-in's.

On a CUDA device nothing has a bar here: `scan_gpu.py` has those.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from table import heading, show

from isornn import nn
from isornn.cells import GRU, LSTM, Cell, Values, Vanilla, cell_named

SHAPES = ((64, 200, 28, 128), (32, 1000, 64, 256))  # sequences, steps, inputs, units
BARS = {
    "PeepholeLSTM": ("LSTM", 1.5),
    "LSTM": ("LSTM", 1.5),
    "ChoGRU": ("GRU", 1.5),
    "GRU": ("GRU", 1.5),
    "TRNN": ("LSTM", 0.3),
    "TLSTM": ("LSTM", 0.45),
    "TGRU": ("GRU", 0.45),
    "MinimalRNN": ("LSTM", None),
    "VanillaRNN": ("RNN", None),
    "GersLSTM": ("LSTM", None),
}
SAME_EQUATIONS = ("TRNN", "TLSTM", "TGRU", "MinimalRNN", "PeepholeLSTM", "GersLSTM")
TORCHRECURRENT = {name: name for name in SAME_EQUATIONS} | {"GersLSTM": "PeepholeLSTM"}
OWN_SHAPES = ((64, 200, 28, 128), (32, 400, 64, 256), (16, 500, 8, 32))
ONE_STEP = ((1, 1, 8, 64), (16, 1, 28, 128), (1, 1, 64, 512))
LONG = (8, 10_000, 28, 128)
VERY_LONG = (1, 100_000, 28, 128)


@dataclass(frozen=True)
class OwnLSTM(LSTM):
    """A copy of the LSTM's equations."""

    name = "own_lstm"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        c = torch.sigmoid(u.f) * s.c + torch.sigmoid(u.i) * torch.tanh(u.g)
        return {"h": torch.sigmoid(u.o) * torch.tanh(c), "c": c}


@dataclass(frozen=True)
class OwnGRU(GRU):
    """A copy of the GRU's equations."""

    name = "own_gru"

    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        z = torch.sigmoid(u.z)
        return {"h": z * s.h + (1 - z) * torch.tanh(u.nx + torch.sigmoid(u.r) * u.nh)}


@dataclass(frozen=True)
class Comparison:
    """A cell's layer beside a peer, and by shape what the ratio may be at most."""

    name: str
    cell: Cell
    peer: Callable[..., torch.nn.Module]
    peer_name: str
    bars: tuple[float, float, float]
    projected: bool = False  # to a quarter of the units


def comparisons() -> list[Comparison]:
    """Copies of built-in cells, cells and options beyond torch's, cells without a recurrent matrix."""
    peers: Mapping[str, Any] = {name: getattr(torch.nn, name) for name in ("LSTM", "GRU", "RNN")}
    beyond = {
        "MGU": (cell_named("mgu"), "GRU"),
        "CIFG": (cell_named("cifg"), "LSTM"),
        "LSTM, hard sigmoid": (LSTM("hard_sigmoid"), "LSTM"),
        "vanilla, PReLU": (Vanilla("prelu"), "RNN"),
    }
    diagonal = {"min_gru": "GRU", "min_lstm": "LSTM", "sru": "LSTM", "rg_lru": "GRU", "lru": "GRU"}
    return [
        Comparison("copy of LSTM", OwnLSTM(), nn.LSTM, "isornn's", (1.1, 1.1, 1.1)),
        Comparison("copy of GRU", OwnGRU(), nn.GRU, "isornn's", (1.1, 1.1, 1.1)),
        *(Comparison(name, cell, peers[p], f"nn.{p}", (1.0, 1.0, 1.2)) for name, (cell, p) in beyond.items()),
        Comparison("LSTM, projected", LSTM(), peers["LSTM"], "nn.LSTM", (1.0, 1.0, 1.2), projected=True),
        *(Comparison(n, cell_named(n), peers[p], f"nn.{p}", (0.35, 0.35, 0.35)) for n, p in diagonal.items()),
    ]


def beside(one: Comparison, runs: int, device: str) -> tuple[list[list[Any]], bool]:
    """Rows over the shapes, and whether all meet their bars."""
    rows, good = [], True
    for (batch, steps, inputs, units), bar in zip(OWN_SHAPES, one.bars, strict=True):
        torch.manual_seed(0)
        inputs = units if one.cell.input_enters_pointwise else inputs
        x = torch.randn(steps, batch, inputs, device=device)
        options = {"proj_size": units // 4} if one.projected else {}
        ours, theirs = nn.RNN(one.cell, inputs, units, **options), one.peer(inputs, units, **options)
        ours, theirs = ours.to(device), theirs.to(device)
        own, other = medians(ours, theirs, x, runs)
        shape = f"B={batch} T={steps} D={inputs} N={units}"
        rows.append([one.name, one.peer_name, shape, own, other, own / other, bar if device == "cpu" else "-"])
        good &= device != "cpu" or own / other <= bar
    return rows, good


def first_call(cell: str, folder: str) -> float:
    """Seconds of a process's first forward and backward pass, with kernels kept in ``folder``."""
    program = f"""
import time, torch, numba
from isornn import cells, nn
start = time.perf_counter()
layer = nn.RNN(cells.cell_named({cell!r}), 28, 128)
layer(torch.randn(200, 64, 28))[0].sum().backward()
print(time.perf_counter() - start)
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    return float(found.stdout)


def first_calls(runs: int) -> bool:
    """The table of first calls; whether the bars are met."""
    never = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            never.append(first_call("mgu", folder))
            for cell in ("mgu", "lstm"):
                first_call(cell, folder)
            later, built_in = ([first_call(cell, folder) for _ in range(runs)] for cell in ("mgu", "lstm"))
    first, second, third = map(statistics.median, (never, later, built_in))
    rows = [
        ["MGU, never compiled", first, 3.0],
        ["MGU, a later process", second, third + 0.3],
        ["LSTM, a later process", third, "-"],
    ]
    show(("first call (numba imported before)", "seconds", "bar"), rows)
    return first <= 3.0 and second <= third + 0.3


def seconds(layer: torch.nn.Module, x: torch.Tensor) -> float:
    """Of one forward and backward pass."""
    begin = time.perf_counter()
    layer.zero_grad()
    layer(x)[0].sum().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def medians(ours: torch.nn.Module, peer: torch.nn.Module, x: torch.Tensor, runs: int) -> tuple[float, float]:
    """Median seconds of both, run in turn."""
    for layer in (ours, peer):
        seconds(layer, x)
    pairs = [(seconds(ours, x), seconds(peer, x)) for _ in range(runs)]
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second)


def single_steps(runs: int, device: str) -> list[list[Any]]:
    """Rows of one step a call, as a policy or a generator takes them, and as a model that feeds back is trained."""
    rows = []
    for name, peer in (("LSTM", "LSTM"), ("GRU", "GRU"), ("PeepholeLSTM", "LSTM")):
        for (batch, steps, inputs, units), gradients in itertools.product(ONE_STEP, (False, True)):
            x = torch.randn(steps, batch, inputs, device=device)
            layers = [getattr(kind, cell)(inputs, units).to(device) for kind, cell in ((nn, name), (torch.nn, peer))]
            times = [[called(layer, x, gradients) for layer in layers] for _ in range(1 + runs)]
            own, other = map(statistics.median, zip(*times[1:], strict=True))  # the first run warms up
            shape = f"B={batch} D={inputs} N={units}"
            rows.append([name, f"nn.{peer}", shape, "yes" if gradients else "no", own, other, own / other])
    return rows


def called(layer: torch.nn.Module, x: torch.Tensor, gradients: bool, calls: int = 100) -> float:
    """Seconds for each of many calls, the state carried from one to the next; with the backward pass through all."""
    layer.zero_grad()
    begin = time.perf_counter()
    with torch.set_grad_enabled(gradients):
        state, total = None, torch.zeros((), device=x.device)
        for _ in range(calls):
            out, state = layer(x, state)
            total = total + out.sum()
    if gradients:
        total.backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls


def compared(
    name: str, peer: str, kind: Any, bar: float | None, runs: int, device: str
) -> tuple[list[list[Any]], bool]:
    """Rows over the shapes, and whether all meet the bar."""
    rows, good = [], True
    bar = bar if device == "cpu" else None
    for batch, steps, inputs, units in SHAPES:
        torch.manual_seed(0)
        x = torch.randn(steps, batch, inputs, device=device)
        ours, theirs = getattr(nn, name)(inputs, units).to(device), kind(inputs, units).to(device)
        own, other = medians(ours, theirs, x, runs)
        good &= bar is None or own / other <= bar
        shape = f"B={batch} T={steps} D={inputs} N={units}"
        rows.append([name, peer, shape, own, other, own / other, "-" if bar is None else bar])
    return rows, good


def peak(layer: str, every: int | None, shape: tuple[int, ...]) -> float:
    """Megabytes beyond the start that a pass takes in a process of its own."""
    program = f"""
import torch
from isornn import nn
def most():  # the resident set's peak; that of getrusage outlives exec
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
batch, steps, inputs, units = {shape}
layer = {layer}(inputs, units{"" if every is None else f", checkpoint_every={every}"})
x = torch.randn(steps, batch, inputs)
layer(x[:8])[0].sum().backward()  # more steps than torch's own cell computes
before = most()
layer(x)[0].sum().backward()
print(most() - before)
"""
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def memory() -> bool:
    """The table of peak memory; whether the bar is met."""
    rows: list[list[Any]] = []
    reference = {}
    for ours, peer in (("nn.PeepholeLSTM", "LSTM"), ("nn.LSTM", "LSTM"), ("nn.ChoGRU", "GRU"), ("nn.GRU", "GRU")):
        reference[peer] = reference.get(peer) or peak(f"torch.nn.{peer}", None, LONG)
        own = peak(ours, None, LONG)
        rows.append([ours, LONG, own, reference[peer], own / reference[peer]])
    rows += [
        [f"nn.LSTM, checkpoint_every={every}", VERY_LONG, peak("nn.LSTM", every, VERY_LONG), "-", "-"]
        for every in (None, 316)
    ]
    show(("layer", "B, T, D, N", "MB", "torch.nn's", "ratio"), rows)
    return bool(rows[0][-1] <= 1.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
    heading(f"Forward and backward pass, seconds, medians of {options.runs} runs")
    if options.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}\n")
    columns = ("layer", "peer", "shape", "ours", "peer's", "ratio", "bar")
    rows: list[list[Any]] = []
    good = True
    for name, (peer, bar) in BARS.items():
        more, fine = compared(name, f"nn.{peer}", getattr(torch.nn, peer), bar, options.runs, options.device)
        rows, good = rows + more, good and fine
    show(columns, rows)
    rows = []
    for one in comparisons():
        more, fine = beside(one, options.runs, options.device)
        rows, good = rows + more, good and fine
    show(columns, rows)
    show(("one step a call", *columns[1:3], "gradients", *columns[3:-1]), single_steps(options.runs, options.device))
    if options.device == "cpu":
        good &= first_calls(3)
    if importlib.util.find_spec("torchrecurrent") is None:
        print("torchrecurrent is not installed: its rows are left out\n")
    else:
        import torchrecurrent

        print(f"torchrecurrent {importlib.metadata.version('torchrecurrent')}\n")
        rows = []
        for name, theirs in TORCHRECURRENT.items():
            kind = getattr(torchrecurrent, theirs)
            more, fine = compared(name, f"torchrecurrent.{theirs}", kind, 0.7, options.runs, options.device)
            rows, good = rows + more, good and fine
        show(columns, rows)
    if options.device == "cpu":
        good &= memory()
        print("every bar is met" if good else "a bar is NOT met")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
