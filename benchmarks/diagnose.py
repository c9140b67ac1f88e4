"""What a diagnosis costs: seconds and peak memory for a long sequence.

    python benchmarks/diagnose.py [--steps 10000] [--width 256] [--sequences 4] [--inputs 8] [--cells LSTM GRU RNN]
                                  [--layers 1] [--bidirectional] [--no-theory] [--no-loss]

A torch module with torch's own start, Gaussian inputs, the loss the square of the last output. Each cell has a process
of its own, so that the peak is its own; exponents are the first layer's. Wanted on two cores: at T = 10,000 and N = 256
at most 60 s and 4 GiB; of two bidirectional layers at T = 800, N = 128, 8 sequences, without theory and loss, 5 s.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection

import torch
from table import heading, show
from torch import nn

from isornn.diagnosis import measure

COLUMNS = ("cell", "seconds", "of these processor's", "peak GiB", "check", "xi back", "Lyapunov")


def measured(cell: str, arguments: argparse.Namespace, answer: Connection) -> None:
    """Diagnose one layer and send its row."""
    torch.manual_seed(0)
    shape = {"num_layers": arguments.layers, "bidirectional": arguments.bidirectional}
    layer = getattr(nn, cell)(arguments.inputs, arguments.width, **shape)
    x = torch.randn(arguments.steps, arguments.sequences, arguments.inputs)
    started, spent = time.perf_counter(), time.process_time()
    target = (lambda output: output[0][-1].square().sum()) if arguments.loss else None
    report = measure(layer, x, target=target, theory=arguments.theory)
    seconds, spent = time.perf_counter() - started, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = report.layers[0]
    exponent = found.lyapunov.exponents[0]
    answer.send(
        (
            cell,
            f"{seconds:.1f}",
            f"{spent:.1f}",
            f"{peak:.2f}",
            f"{found.check.residual:.0e}",
            f"{found.backward.xi.number():.3f} +- {found.backward.xi.error():.3f}",
            f"{exponent.number():.4f} +- {exponent.error():.4f}",
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--cells", nargs="+", default=["LSTM", "GRU", "RNN"])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--bidirectional", action="store_true")
    parser.add_argument("--no-loss", dest="loss", action="store_false")
    parser.add_argument("--no-theory", dest="theory", action="store_false")
    arguments = parser.parse_args()
    heading(f"isornn.diagnosis.measure: T = {arguments.steps}, N = {arguments.width}, {arguments.sequences} sequences")
    rows = []
    for cell in arguments.cells:
        receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=measured, args=(cell, arguments, sender))
        process.start()
        sender.close()
        rows.append(receiver.recv())
        process.join()
    show(COLUMNS, rows)


if __name__ == "__main__":
    main()
