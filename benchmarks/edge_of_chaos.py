"""Gradients that survive at the edge of chaos: who has them, who is called, and what training makes of them.

    python benchmarks/edge_of_chaos.py [--quick]

Three tables. neuralhydrology's start (torch's LSTM, forget gate's bias_hh 3) over 365 steps, by width, seed and size
of the input: ln of the gradient after T steps relative to one, ln of what the gates alone would leave, the leading
Lyapunov exponent, and what is found. Every cell at four starts, four lengths and three inputs: how many are called. And
that start and the critical one before and after updates by Adam on the adding task.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator

import torch
from table import heading, show
from torch import Tensor, nn

import isornn
from isornn.cells import SpecError
from isornn.cells.catalogue import CELLS, FURTHER_CELLS, cell_named
from isornn.diagnosis import findings, measure
from isornn.diagnosis.retention import GradientRetention
from isornn.init import ModuleError
from isornn.tasks import Adding

COLUMNS = ("start", "T", "ln gradient", "ln by gates alone", "Lyapunov exponent", "found")
STARTS = ("critical", "standard", "chrono", "orthogonal")
UPDATES, BATCH = 100, 32


def forget_bias_3(inputs: int, width: int, seed: int) -> nn.LSTM:
    """neuralhydrology's start."""
    torch.manual_seed(seed)
    lstm = nn.LSTM(inputs, width)
    lstm.get_parameter("bias_hh_l0").data[width : 2 * width] = 3
    return lstm


def row(name: str, model: nn.Module, x: Tensor) -> tuple[str, ...]:
    """Under COLUMNS."""
    diagnosis = measure(model, x)
    layer = diagnosis.layers[0]
    found = GradientRetention.of(layer.backward, diagnosis.length)
    assert found is not None
    kinds = ", ".join(finding.kind for finding in findings(diagnosis)) or "-"
    gradient = f"{found.log:.2f} ± {found.error:.2f}"
    return (
        name,
        str(diagnosis.length),
        gradient,
        str(layer.memory.through_gates),
        str(layer.lyapunov.exponents[0]),
        kinds,
    )


def surveyed(lengths: tuple[int, ...]) -> Iterator[tuple[str, str, bool]]:
    """Cell, start, and whether it is called, of all that can be drawn."""
    for name in (*CELLS, *FURTHER_CELLS):
        for steps in lengths:
            for data in ("white", "slow", "symbols"):
                torch.manual_seed(1)
                x = torch.randn(steps, 6, 5)
                if data == "slow":
                    x = x.cumsum(0) / 10
                elif data == "symbols":
                    x = nn.functional.one_hot(torch.randint(0, 5, (steps, 6)), 5).float()
                for start in STARTS:
                    model = isornn.nn.RNN(cell_named(name), 5, 48)
                    try:
                        if start == "critical":
                            isornn.init.critical_(model, steps, batch=x)
                        else:
                            getattr(isornn.init, f"{start}_")(model, *[steps] * (start == "chrono"))
                    except (SpecError, ModuleError):
                        continue
                    called = any(finding.kind == "edge_of_chaos" for finding in findings(measure(model, x)))
                    yield name, start, called


def trained(start: str, seed: int, steps: int) -> Iterator[tuple[str, ...]]:
    """Rows before and after updates."""
    rnn = forget_bias_3(2, 64, seed)
    if start == "critical":
        isornn.init.critical_(rnn, steps, generator=torch.Generator().manual_seed(seed))
    head = nn.Linear(64, 1)
    task = Adding(steps, seed=seed)
    x, y = (torch.stack(parts) for parts in zip(*(task[i] for i in range(BATCH * UPDATES)), strict=True))
    x, y = x.transpose(0, 1).contiguous(), y.reshape(-1, 1)
    optimiser = torch.optim.Adam([*rnn.parameters(), *head.parameters()], 1e-3)
    yield row(f"{start}, seed {seed}, at first", rnn, x[:, :8])
    for update in range(UPDATES):
        own = slice(update * BATCH, (update + 1) * BATCH)
        optimiser.zero_grad()
        nn.functional.mse_loss(head(rnn(x[:, own])[0][-1]), y[own]).backward()
        nn.utils.clip_grad_norm_([*rnn.parameters(), *head.parameters()], 1.0)
        optimiser.step()
    yield row(f"{start}, seed {seed}, after {UPDATES}", rnn, x[:, :8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one width, two lengths, one seed")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    heading("isornn.diagnosis: gradients at the edge of chaos")
    widths, seeds, lengths = (
        ((64,), range(1), (20, 40)) if quick else ((32, 64, 128, 256), range(4), (20, 40, 100, 365))
    )
    generator = torch.Generator().manual_seed(0)
    rows = [
        row(
            f"bias 3, N {width}, seed {seed}",
            forget_bias_3(5, width, seed),
            torch.randn(365, 8, 5, generator=generator),
        )
        for width in widths
        for seed in seeds
    ]
    for size in (0.1, 0.5, 2.0, 5.0):
        x = size * torch.randn(365, 8, 5, generator=generator)
        rows.append(row(f"bias 3, N 128, inputs of size {size:g}", forget_bias_3(5, 128, 0), x))
    show(COLUMNS, rows)
    counts: Counter[tuple[str, bool]] = Counter()
    cells: Counter[str] = Counter()
    for name, start, called in surveyed(lengths):
        counts[start, called] += 1
        cells[f"{start} {name}"] += called
    show(("start", "layers", "called"), [(s, counts[s, False] + counts[s, True], counts[s, True]) for s in STARTS])
    print("called:", ", ".join(f"{name} {count}" for name, count in cells.items() if count) or "none", "\n")
    steps = 100 if quick else 365
    show(COLUMNS, [line for start in ("bias 3", "critical") for seed in seeds for line in trained(start, seed, steps)])


if __name__ == "__main__":
    main()
