"""Factorised matrices and geodesic descent: time against a plain RNN, and drift of the bases.

    python benchmarks/orthogonality.py timing [--units 128 500 1000] [--runs 9]
    python benchmarks/orthogonality.py drift [--steps 100000]

``timing``: seconds of one update on the copy task, T = 100 and batches of 50, linear transitions, for a plain layer
with SGD, the factorised one with GeodesicSGD, and other parametrisations of the same matrix with SGD (geotorch's rows
need pip install --no-deps geotorch). All run in turn, ratios are those of medians. Bars, on two cores of a CPU: 1.3,
1.4, 1.8 times the plain layer at 128, 500, 1000 units.

``drift``: max |U^T U - I| in float32 over many steps that all turn in one direction, the worst case, for steps just
below the size where one more power of X is taken. Bar: 1e-5.

What training gives is in ``copy_task.py`` and ``adding_task.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import torch
from copy_task import loss_of
from table import heading, show
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from training_runs import BATCH, NAME, UNITS

from isornn.nn import SpectralRNN, VanillaRNN, spectral
from isornn.nn.draws import haar
from isornn.optim import GeodesicSGD
from isornn.tasks import Copy, loader
from isornn.training import SequenceModel

TASK = Copy(100)
GEODESIC_RATE, RATE = 1e-2, 1e-3
BARS = {128: 1.3, 500: 1.4, 1000: 1.8}
BARRED = ("plain, SGD", "factorised, GeodesicSGD")


# -- timing -----------------------------------------------------------------------------------------------------------


def plain(units: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = SequenceModel.of(TASK, VanillaRNN(Copy.inputs, units, nonlinearity="identity"))
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    return model, torch.optim.SGD(model.parameters(), RATE)


def factorised(units: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = SequenceModel.of(TASK, SpectralRNN(Copy.inputs, units, margin=0.1, nonlinearity="identity"))
    return model, GeodesicSGD(spectral.groups(model), RATE, geodesic_lr=GEODESIC_RATE)


def orthogonal(kind: str) -> Callable[[int], tuple[nn.Module, torch.optim.Optimizer]]:
    """torch's own parametrisation: orthogonal, no margin."""

    def made(units: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = plain(units)
        parametrizations.orthogonal(model.recurrent, NAME, kind)
        return model, torch.optim.SGD(model.parameters(), RATE)

    return made


def almost_orthogonal(kind: str) -> Callable[[int], tuple[nn.Module, torch.optim.Optimizer]]:
    """geotorch's: the same set of matrices and the same map of the spectrum, bases as exponentials or Cayley's."""

    def made(units: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        import geotorch

        model, _ = plain(units)
        geotorch.almost_orthogonal(model.recurrent, NAME, lam=0.1, f="scaled_sigmoid", triv=kind)
        return model, torch.optim.SGD(model.parameters(), RATE)

    return made


def update_seconds(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    begin = time.perf_counter()
    loss = loss_of(model, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return time.perf_counter() - begin


def timing(units: list[int], runs: int) -> bool:
    """The table; whether the bars are met."""
    kinds = {
        BARRED[0]: plain,
        BARRED[1]: factorised,
        "torch orthogonal (Cayley), SGD": orthogonal("cayley"),
        "torch orthogonal (exponential), SGD": orthogonal("matrix_exp"),
    }
    if importlib.util.find_spec("geotorch") is None:
        print("geotorch is not installed: its rows are left out\n")
    else:
        kinds["geotorch almost_orthogonal (Cayley), SGD"] = almost_orthogonal("cayley")
        kinds["geotorch almost_orthogonal (exponential), SGD"] = almost_orthogonal("expm")
    good = True
    for size in units:
        torch.manual_seed(0)
        x, y = next(iter(loader(TASK, BATCH)))
        made = {name: kind(size) for name, kind in kinds.items()}
        times: dict[str, list[float]] = {name: [] for name in made}
        for run in range(-1, runs):
            for name, parts in made.items():
                # An exponential of 1000 x 1000 takes as long as many updates: the peers run less often.
                if run < 3 or name in BARRED:
                    times[name].append(update_seconds(*parts, x, y))
        medians = {name: statistics.median(values[1:]) for name, values in times.items()}
        first, second = (medians[name] for name in BARRED)
        bar = BARS.get(size)
        good &= bar is None or second <= bar * first
        rows = [
            [size, name, seconds, seconds / first, bar if name == BARRED[1] and bar is not None else "-"]
            for name, seconds in medians.items()
        ]
        show(("units", "matrix and optimiser", "seconds", "ratio", "bar"), rows)
        sys.stdout.flush()
    return good


# -- drift ------------------------------------------------------------------------------------------------------------


def drift(steps: int) -> bool:
    """The table; whether the bar is met."""
    rows = []
    for size in (1e-6, 1.7e-4, 6.9e-3, 5e-2, 0.3):
        basis = nn.Parameter(haar((UNITS, UNITS), torch.Generator().manual_seed(0)).float())
        turn = torch.randn(UNITS, UNITS, generator=torch.Generator().manual_seed(1))
        turn = turn - turn.mT
        turn *= size / turn.norm()
        optimizer = GeodesicSGD([{"params": [basis], "kind": "bases"}], lr=1.0)
        unit, worst, begin = torch.eye(UNITS, dtype=torch.float64), 0.0, time.perf_counter()
        for step in range(steps):
            basis.grad = basis.detach() @ turn
            optimizer.step()
            if step % 31 == 0:
                now = basis.detach().double()
                worst = max(worst, float((now.mT @ now - unit).abs().max()))
        rows.append([size, steps, worst, 1000 * (time.perf_counter() - begin) / steps])
    show(("||X||", "steps", "max |U^T U - I|", "ms a step"), rows)
    return all(row[2] < 1e-5 for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    timed = commands.add_parser("timing")
    timed.add_argument("--units", type=int, nargs="+", default=list(BARS))
    timed.add_argument("--runs", type=int, default=9)
    commands.add_parser("drift").add_argument("--steps", type=int, default=100_000)
    options = vars(parser.parse_args())
    command = options.pop("command")
    heading(f"Orthogonality: {command}")
    good = {"timing": timing, "drift": drift}[command](**options)
    print("every bar is met" if good else "a bar is NOT met")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
