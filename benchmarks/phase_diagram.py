"""Phase diagrams of 100 x 100 specs: Cho's GRU from the shell to the picture, and the LSTM's accuracy for its time.

Bars: 6 s for the picture; 3 minutes on 2 cores for the LSTM, with a median error in xi of at most 5 % against 16 times
the units on 100 specs of the grid.

Then what a spec costs, in milliseconds of processor time within a batch of 64 LSTMs: untied by units sampled and by xi,
tied by paths and by steps T.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from table import heading, median_seconds, show

from isornn import Gate, Spec
from isornn.cells import LSTM
from isornn.theory import PhaseDiagram, phase_diagram
from isornn.theory.population.analysis import population_analysis
from isornn.theory.population.engine import Effort
from isornn.theory.population.units import Draws
from isornn.theory.tied.following import follow_tied
from isornn.theory.tied.moments import input_moments
from isornn.theory.tied.paths import TiedLaws

AXES = ["--x", "z.bias_mean=0:6:100", "--y", "n.weight_var=0.1:9:100"]
SIDE, CHECKED = 100, 10
UNITS, REPLICATES = 16 * 16, 8  # 16 times what most of the diagram is made with
BATCH = 64
LONG = Effort(settle_steps=1000, settle_tolerance=5e-3, response_steps=512, response_tolerance=0.01, apart=False)


def picture(folder: str) -> float:
    """Seconds of the command, median of 3."""
    command = [sys.executable, "-m", "isornn", "phase", "--cell", "gru_cho", *AXES, "-o", str(Path(folder) / "map.png")]
    return median_seconds(lambda: subprocess.run(command, check=True, capture_output=True), runs=3)


def lstm() -> tuple[PhaseDiagram, float]:
    base = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"})
    lines = [torch.linspace(low, high, SIDE, dtype=torch.float64) for low, high in ((0.0, 6.0), (0.1, 9.0))]
    begin = time.perf_counter()
    diagram = phase_diagram(base, ("f.bias_mean", lines[0]), ("f.weight_var", lines[1]))
    return diagram, time.perf_counter() - begin


def median_error(diagram: PhaseDiagram) -> float:
    """Of xi on every tenth row and column, relative to the units above; the middle of tiles and their edges."""
    places = torch.linspace(3, SIDE - 4, CHECKED).long()
    specs = diagram.spec.replace("f.weight_var", diagram.y.values[places][:, None])
    specs = specs.replace("f.bias_mean", diagram.x.values[places])
    generator = torch.Generator().manual_seed(12345)
    answer = population_analysis(specs, 1, generator=generator, units=UNITS, replicates=REPLICATES, effort=LONG)
    reference = answer.xi
    found = diagram.quantities["xi"]
    both = found.defined[places][:, places] & reference.defined
    return float((found.value[places][:, places] / reference.value - 1)[both].abs().median())


def cost_rows() -> list[list[object]]:
    """Milliseconds of processor time for each spec."""
    specs = Spec(LSTM(), {gate: Gate(1.0, 1.0) for gate in "ifgo"}).replace(
        "f.weight_var", torch.linspace(0.5, 1.5, BATCH)
    )
    rows: list[list[object]] = []
    for bias in (0.0, 3.0, 5.0):
        batch = specs.replace("f.bias_mean", bias)
        for units in (128, 512):
            generator = torch.Generator().manual_seed(0)
            begin = time.process_time()
            found = population_analysis(batch, 1, generator=generator, units=units // 8, replicates=8, effort=LONG)
            spent = time.process_time() - begin
            name = f"untied, xi about {float(found.xi.value.nanmedian()):.2g}"
            rows.append([name, "", units, 1000 * spent / BATCH])
    for steps in (15, 30, 60, 120):
        for units in (128, 512):
            laws = TiedLaws.of(specs)
            draws = Draws(BATCH, 8, units, torch.Generator().manual_seed(0))
            begin = time.process_time()
            follow_tied(laws, input_moments(laws, [laws.units.input_correlation]), draws, steps, tilted=False)
            rows.append(["tied", steps, 8 * units, 1000 * (time.process_time() - begin) / BATCH])
    return rows


def main() -> int:
    heading(f"Phase diagrams of {SIDE} x {SIDE} specs")
    with tempfile.TemporaryDirectory() as folder:
        drawn = picture(folder)
    diagram, seconds = lstm()
    error = median_error(diagram)
    rows = [
        ["gru_cho from the shell with picture", drawn, 6.0, ""],
        ["lstm", seconds, 180.0, f"{100 * error:.1f} %"],
    ]
    show(("diagram", "seconds", "bar", "median error of xi"), rows)
    show(("spec of an LSTM", "steps T", "samples n_s", "ms a spec"), cost_rows())
    return 0 if drawn <= 6 and seconds <= 180 and error <= 0.05 else 1


if __name__ == "__main__":
    sys.exit(main())
