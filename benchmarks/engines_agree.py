"""Quadrature against the population engine on 50 random specs of every cell that both can do.

    python benchmarks/engines_agree.py [--specs 50] [--cells peephole,gru_cho]

Wanted: at most 1 % of the comparisons beyond 3 standard errors of the population, none beyond 5. It takes
ten minutes or so; what is done is kept in results/engines_agree.json, and a later call goes on from there (delete it
to start anew).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from table import RESULTS, heading, show

from isornn.cells import CELLS, Spec, cell_named
from isornn.cells.random_specs import random_spec
from isornn.theory import analyze

QUADRATURE = ("vanilla", "minimal", "gru_cho", "peephole", "t_rnn", "t_lstm", "t_gru")
COMPARED = (
    *("fixed_point.mean", "fixed_point.second_moment", "fixed_point.correlation"),
    *("chi", "chi_1", "reach", "jacobian.mean", "jacobian.second_moment"),
)
FILE = RESULTS / "engines_agree.json"
ROUNDING = 1e-9  # differences below this (relative) are none, whatever the standard error


def specs(cell: str, count: int) -> Iterator[Spec]:
    """The first ``count`` of the cell's sequence of random specs."""
    generator = torch.Generator().manual_seed(list(CELLS).index(cell))
    for _ in range(count):
        yield random_spec(cell_named(cell), generator)


def compare(spec: Spec, seed: int) -> dict[str, Any]:
    """Both engines' numbers, and by how many standard errors they differ."""
    begin = time.perf_counter()
    exact = dict(analyze(spec, length=20).quantities())
    middle = time.perf_counter()
    sampled = dict(
        analyze(spec, engine="population", length=20, generator=torch.Generator().manual_seed(seed)).quantities()
    )
    end = time.perf_counter()
    rows: dict[str, Any] = {}
    for name in COMPARED:
        a, b, error = exact[name].number(), sampled[name].number(), sampled[name].error()
        row: dict[str, Any] = {"quadrature": a, "population": b, "stderr": error}
        if a is None or b is None:
            row |= {"z": None, "reasons": [exact[name].reason(), sampled[name].reason()]}
        elif abs(a - b) <= ROUNDING * max(1.0, abs(a)):
            row["z"] = 0.0
        else:
            row["z"] = (b - a) / error if error else math.copysign(1e9, b - a)
        rows[name] = row
    return {"spec": spec.to_json(), "seconds": [middle - begin, end - middle], "compared": rows}


def load() -> dict[str, list[dict[str, Any]]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def store(found: dict[str, list[dict[str, Any]]]) -> None:
    """Whole or not at all."""
    FILE.parent.mkdir(exist_ok=True)
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    os.replace(part, FILE)


def summary(cell: str, records: list[dict[str, Any]]) -> list[object]:
    rows = [row for record in records for row in record["compared"].values()]
    sizes = [abs(row["z"]) for row in rows if row["z"] is not None]
    # a number that only one engine gives; "no number" by both is agreement
    alone = sum((row["quadrature"] is None) != (row["population"] is None) for row in rows)
    worst = max(sizes, default=0.0)
    share = sum(z > 3 for z in sizes) / max(len(sizes), 1)
    seconds = [sum(record["seconds"][engine] for record in records) / max(len(records), 1) for engine in (0, 1)]
    beyond = [sum(z > limit for z in sizes) for limit in (3, 5)]
    return [cell, len(records), len(sizes), beyond[0], f"{100 * share:.2f} %", beyond[1], worst, alone, *seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--specs", type=int, default=50)
    parser.add_argument("--cells", default=",".join(QUADRATURE))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = load()
    chosen = options.cells.split(",")
    # spec by spec over the cells, so that a run cut short has some of each
    for index in range(options.specs):
        for cell in chosen:
            done = found.setdefault(cell, [])
            if index < len(done):
                continue
            spec = list(specs(cell, index + 1))[-1]
            done.append(compare(spec, seed=1000 + index))
            store(found)
            last = done[-1]
            sizes = {n: round(r["z"], 1) for n, r in last["compared"].items() if r["z"] is not None and abs(r["z"]) > 3}
            print(
                f"{cell} {index + 1}/{options.specs} {last['seconds'][1]:.1f} s {sizes or ''}",
                file=sys.stderr,
                flush=True,
            )
    heading("Quadrature against population, random specs")
    columns = ["cell", "specs", "compared", "> 3", "share", "> 5", "worst", "one only", "quadrature s", "population s"]
    rows = [summary(cell, found[cell][: options.specs]) for cell in chosen]
    everything = [record for cell in chosen for record in found[cell][: options.specs]]
    show(columns, [*rows, summary("all", everything)])


if __name__ == "__main__":
    main()
