"""LSTMs through the population engine: xi to 1 % within a second of import, and the isometric start at T = 1000.

Bars: each row at most 1 s and 1 % from a run with 16 times the units; `isometric` at most 10 s.
"""

from __future__ import annotations

import sys
import time

import torch
from table import heading, median_seconds, show

from isornn import Gate, Spec, analyze, isometric
from isornn.cells import GRU, LSTM, Cell
from isornn.cells.starts import start
from isornn.theory.population.analysis import population_analysis


def gate(weight_var: float, input_var: float, bias_var: float, bias_mean: float) -> Gate:
    return Gate(weight_var, input_var, bias_var=bias_var, bias_mean=bias_mean)


def lstm(i: Gate, f: Gate, g: Gate, o: Gate) -> Spec:
    return Spec(LSTM(), {"i": i, "f": f, "g": g, "o": o})


ROWS = {
    "forget bias 1": lstm(gate(1, 0.5, 0, 0), gate(1, 0.5, 0, 1), gate(1, 0.5, 0, 0), gate(1, 0.5, 0, 0)),
    "strong forget gate": lstm(gate(2, 1, 0, 0.5), gate(4, 0.5, 0.1, 2), gate(3, 0.5, 0, 0), gate(2, 0.5, 0, 0.5)),
    "nn.LSTM default": start("torch", LSTM(), 128, 49),
    "nn.GRU default": start("torch", GRU(), 128, 49),
    "weak, forget bias 5": lstm(gate(1e-5, 1, 0, 0), gate(1e-5, 0, 0, 5), gate(1e-5, 1, 0, 0), gate(1, 0, 0, 0)),
}


def main() -> int:
    heading("LSTM rows: xi and seconds, the first row's with what torch loads on first use")
    rows, good = [], True
    for name, spec in ROWS.items():
        begin = time.perf_counter()
        answer = analyze(spec)
        seconds = time.perf_counter() - begin
        exact = population_analysis(spec, 100, generator=torch.Generator().manual_seed(1), units=4096)
        xi, reference = answer.xi.number(), exact.xi.number()
        assert xi is not None and reference is not None
        miss = abs(xi / reference - 1)
        good &= miss <= 0.01 and seconds <= 1
        rows.append([name, answer.chi.number(), xi, answer.xi.error(), reference, miss, seconds])
    show(("spec", "chi", "xi", "stderr", "xi, 16 x the units", "relative miss", "seconds"), rows)
    rows = []
    cells: tuple[Cell, ...] = (LSTM(), GRU())
    for cell in cells:
        point = isometric(cell, 1000)
        seconds = median_seconds(lambda cell=cell: isometric(cell, 1000), runs=3)
        good &= seconds <= 10 and point.conditions[0].met
        rows.append(
            [f"isometric({cell.name}, 1000)", point.analysis.reach.number(), point.analysis.reach.error(), seconds]
        )
    show(("call", "reach", "stderr", "seconds"), rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
