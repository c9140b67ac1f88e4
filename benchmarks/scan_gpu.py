"""The linear scan on a CUDA device against copying, and the peephole LSTM against cuDNN's LSTM.

    python benchmarks/scan_gpu.py [--runs 9]

Bars, on an H100 or H200: forward and backward of the scan at 0.6 of the bandwidth of a copy or more, and the peephole
LSTM at most 2.5 times cuDNN's LSTM. Counted are the arrays that have to be moved: three forward (a, b; h) and five
backward (a, h, the gradient of h; those of a and b). A layer that is graphed has its launches in a CUDA graph
(torch.cuda.make_graphed_callables). cuDNN multiplies in TF32, as torch has it by default, and the layer in float32.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable

import torch
from layers import SHAPES, medians
from table import heading, median_seconds, show

from isornn import nn
from isornn.nn.kernels.device import runs_triton

SCAN = (16, 16_384, 1024)  # sequences, steps, channels
LAYER = (128, 784, 1, 600)  # sequences, steps, inputs, units
ARRAYS_COPIED, ARRAYS_SCANNED = 2, 3 + 5
BAR, LAYER_BAR = 0.6, 2.5


def seconds(what: Callable[[], object], runs: int) -> float:
    """The median of finished runs, after one that is not counted."""

    def finished() -> None:
        what()
        torch.cuda.synchronize()

    finished()
    return median_seconds(finished, runs)


def scanned(runs: int) -> float:
    """Print the scan's table; the share of the copy's bandwidth."""
    batch, steps, channels = SCAN
    shape = (steps, batch, channels)
    a = torch.rand(shape, device="cuda").requires_grad_()
    b, grad = torch.randn(shape, device="cuda").requires_grad_(), torch.randn(shape, device="cuda")
    target = torch.empty_like(grad)
    copying = seconds(lambda: target.copy_(grad), runs)
    scanning = seconds(lambda: torch.autograd.grad(nn.linear_scan(a, b), (a, b), grad), runs)
    size = grad.nbytes / 1e9
    speeds = [ARRAYS_COPIED * size / copying, ARRAYS_SCANNED * size / scanning]
    share = speeds[1] / speeds[0]
    way = "Triton" if runs_triton(grad.device) else "doubling"
    where = f"B={batch} T={steps} N={channels} float32"
    show(
        ("operation", "shape", "seconds", "GB/s", "share of the copy's", "bar"),
        [
            ["copy", where, copying, speeds[0], "-", "-"],
            [f"linear_scan by {way}, forward and backward", where, scanning, speeds[1], share, BAR],
        ],
    )
    return share


def layers(runs: int) -> float:
    """Print the peephole LSTM's table; the ratio at the first shape."""
    rows: list[list[object]] = []
    ratios = []
    for batch, steps, inputs, units in (LAYER, *SHAPES):
        torch.manual_seed(0)
        x = torch.randn(steps, batch, inputs, device="cuda")
        ours, peer = (kind(inputs, units).to("cuda") for kind in (nn.PeepholeLSTM, torch.nn.LSTM))
        where = f"B={batch} T={steps} D={inputs} N={units}"
        for name, layer in (("PeepholeLSTM", ours), ("PeepholeLSTM, graphed", graphed(ours, x))):
            own, other = medians(layer, peer, x, runs)
            bar = "-" if ratios else LAYER_BAR
            ratios.append(own / other)
            rows.append([name, "nn.LSTM (cuDNN)", where, own, other, own / other, bar])
    show(("layer", "peer", "shape", "ours", "peer's", "ratio", "bar"), rows)
    return ratios[0]


def graphed(layer: torch.nn.Module, x: torch.Tensor) -> torch.nn.Module:
    """The layer, captured for inputs of this shape."""
    captured: torch.nn.Module = torch.cuda.make_graphed_callables(copy.deepcopy(layer), (torch.empty_like(x),))
    return captured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA device, and there is none.")
        return 1
    heading("Linear scan and peephole LSTM on a CUDA device, forward and backward, seconds")
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}\n")
    share = scanned(options.runs)
    good = layers(options.runs) <= LAYER_BAR and share >= BAR
    print("the bars are met" if good else "a bar is NOT met")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
