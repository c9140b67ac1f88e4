"""Theory against networks of width 1000 whose inputs have means or are correlated over time, for nine cells.

    python benchmarks/inputs.py [--cells lstm,gru] [--jobs 2]

Recurrent matrices are drawn afresh at every step, input matrices once. Q = E h^2 and C of two sequences are averages
over the steps; the reach and the growth per step of E|dh|^2 (over the second half of the steps) are of a change at the
fixed point. Wanted: every number within 1 % of the theory's or within 3 standard errors, of both together. The error of
4 networks is itself uncertain (Student's t with 3 degrees of freedom is beyond 3 in 6 % of all cases), so a case with a
number beyond is measured again with 16 other networks, and where one is beyond again (1 % of all cases) with 64 others;
the largest measurement decides. What is done is kept in results/inputs.json, and a later call goes on from there
(delete it to start anew).
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from table import RESULTS, claim, heading, show
from torch import Tensor

from isornn.cells import Gate, Input, Spec, cell_named
from isornn.cells.openings import refusal, retention_signs
from isornn.nn.random_network import RandomNetwork
from isornn.simulation import InputSequences
from isornn.theory import analyze
from isornn.theory.population.engine import Population
from isornn.theory.population.jacobian import StateStructure
from isornn.theory.population.response import first_fall
from isornn.theory.quadrature.affine import quadrature_refusal

CELLS = ("vanilla", "minimal", "gru", "gru_cho", "lstm", "peephole", "t_rnn", "t_lstm", "t_gru")
LAWS = {
    "mean 1": Input(1.0, 0.5, mean=1.0),
    "a = .9": Input(1.0, 0.5, autocorrelation=0.9),
    "a = .5": Input(1.0, 0.5, autocorrelation=0.5),
    "a = .99": Input(1.0, 0.5, autocorrelation=0.99),
}
WIDTH, WARMUP, STEPS, TANGENTS = 1000, 60, 40, 4
NETWORKS = (4, 16, 64)  # of the first measurement, the second, and the third
NUMBERS = ("Q", "C", "growth", "reach")
FILE = RESULTS / "inputs.json"
Found = dict[str, tuple[float, float]]
States = tuple[Tensor, ...]
Along = Callable[..., States]


def spec_of(cell: str, law: str) -> Spec:
    """Every matrix with weights: recurrent variance 1/2, input variance 1, of the previous input 1/2."""
    kind = cell_named(cell)
    signs = {} if refusal(kind) else retention_signs(kind)
    gates = {
        name: Gate(0.5 * reads.state, 1.0 * reads.input, 0.5 * reads.previous_input, float(signs.get(name, 0)))
        for name, reads in kind.gates.items()
    }
    return Spec(kind, gates, LAWS[law], biases="fixed")


def theory_of(spec: Spec) -> Found:
    """Values and standard errors; the response is that of identical copies."""
    alone = analyze(spec.replace("input.correlation", 1.0), length=STEPS)
    profile = alone.profile.tolist()
    growth = (profile[STEPS] / profile[STEPS // 2]) ** (2 / STEPS)
    if quadrature_refusal(spec) is None:
        point = analyze(spec, length=1).fixed_point
        moments = {"Q": point.second_moment, "C": point.correlation}
        found = {name: (float(value.value), float(value.stderr)) for name, value in moments.items()}
    else:
        settled = Population(spec, generator=torch.Generator().manual_seed(0)).settle("apart")
        names = {"Q": "second_moment", "C": "correlation"}
        found = {k: (float(getattr(settled.moments, n)), float(settled.moments.stderr[n])) for k, n in names.items()}
    reach = (float(alone.reach.value), float(alone.reach.stderr))
    # a profile comes without errors: those of the whole decay, or where there is no one rate of the reach
    rate = float(alone.chi.stderr) if bool(alone.chi.defined) else growth * -math.log(growth) * reach[1] / reach[0]
    return found | {"growth": (growth, rate), "reach": reach}


def networks_of(spec: Spec, seed: int, networks: int) -> Found:
    """Means over networks and their standard errors."""
    generator = torch.Generator().manual_seed(seed)
    rows = [network(spec, generator) for _ in range(networks)]
    response = torch.stack([row[1] for row in rows])
    left_out = [(response.sum(0) - one) / (networks - 1) for one in response]
    found = {}
    for place, name in enumerate(("Q", "C")):
        values = torch.stack([row[0][place] for row in rows])
        found[name] = (float(values.mean()), float(values.std() / networks**0.5))
    for name, number in (("growth", growth_of), ("reach", first_fall)):
        whole, parts = number(response.mean(0)), torch.stack([number(curve) for curve in left_out])
        error = ((parts - parts.mean()).square().sum() * (networks - 1) / networks).sqrt()
        found[name] = (float(whole), float(error))
    return found


def growth_of(curve: Tensor) -> Tensor:
    return (curve[STEPS] / curve[STEPS // 2]) ** (2 / STEPS)


def network(spec: Spec, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Q and C, averages over the steps after the warm-up, and E|dh|^2 at steps 0, 1, .. of those."""
    drawn = RandomNetwork.drawn(spec, WIDTH, WIDTH, generator)
    inputs, sigma = InputSequences(spec.input, WIDTH, generator), float(spec.input.correlation)
    names = spec.cell.states
    a = b = tuple(torch.zeros(WIDTH, dtype=torch.float64) for _ in names)
    before, moments, response = inputs.drawn(sigma), [], []
    tangent: States = ()
    for step in range(WARMUP + STEPS + 1):
        drawn = drawn.redrawn(generator) if step else drawn
        x = inputs.drawn(sigma)
        along_a, along_b = (drawn.advance(x[copy], before[copy]) for copy in (0, 1))
        if step == WARMUP:
            tangent = displaced(along_a, a, spec, generator)
        elif step > WARMUP:
            tangent = pushed(along_a, a, tangent)
        a, b, before = along_a(*a), along_b(*b), x
        if step >= WARMUP:
            response.append(tangent[0].square().mean())
            both = torch.stack([a[0], b[0]])
            moments.append(torch.stack([both.mean(), both.square().mean(), (a[0] * b[0]).mean()]))
    mean, second, pair = torch.stack(moments).mean(0)
    return (second, (pair - mean**2) / (second - mean**2)), torch.stack(response)


def pushed(along: Along, states: States, tangents: States) -> States:
    """Tangents (TANGENTS, N) of each state one step on."""
    return torch.func.vmap(lambda *one: torch.func.jvp(along, states, one)[1])(*tangents)


def displaced(along: Along, states: States, spec: Spec, generator: torch.Generator) -> States:
    """The theory's displacement after this step: N(0, 1) of states that carry themselves, the others move along."""
    coupled = StateStructure.of(spec.cell).self_coupled or spec.cell.states
    normal = torch.randn(TANGENTS, WIDTH, generator=generator, dtype=torch.float64)
    if len(spec.cell.states) == 1:
        return (normal,)
    place = spec.cell.states.index(coupled[0])
    one = tuple(torch.ones(WIDTH).double() if j == place else torch.zeros(WIDTH).double() for j in range(len(states)))
    moved = torch.func.jvp(along, states, one)[1]
    return tuple(part / moved[place] * normal for part in moved)


def case(cell: str, law: str, networks: int) -> tuple[str, dict[str, Found]]:
    torch.set_num_threads(1)
    spec = spec_of(cell, law)
    seed = CELLS.index(cell) * len(LAWS) + list(LAWS).index(law) + 1000 * NETWORKS.index(networks)
    return key_of(cell, law, networks), {"theory": theory_of(spec), "networks": networks_of(spec, seed, networks)}


def key_of(cell: str, law: str, networks: int) -> str:
    return f"{cell}, {law}{'' if networks == NETWORKS[0] else f', {networks} networks'}"


def load() -> dict[str, dict[str, Found]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def store(found: dict[str, dict[str, Found]]) -> None:
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    os.replace(part, FILE)


def agreement(theory: Found, networks: Found, name: str) -> tuple[float, float]:
    """The relative difference, and in standard errors."""
    (a, a_error), (b, b_error) = theory[name], networks[name]
    error = math.hypot(a_error, b_error)
    return (b - a) / abs(a), (b - a) / error if error else math.copysign(math.inf, b - a)


def beyond(both: dict[str, Found]) -> list[str]:
    """The numbers that are off by more than 1 % and 3 standard errors."""
    found = {name: agreement(both["theory"], both["networks"], name) for name in NUMBERS}
    return [name for name, (relative, z) in found.items() if abs(relative) > 0.01 and abs(z) > 3]


def summary(found: dict[str, dict[str, Found]], cells: list[str]) -> None:
    rows, missed, count = [], [], 0
    for cell in cells:
        for law in sorted(LAWS):
            keys = [key for networks in NETWORKS if (key := key_of(cell, law, networks)) in found]
            rows += [row_of(key, found[key]) for key in keys]
            missed += [f"{keys[-1]}: {name}" for name in beyond(found[keys[-1]])]
            count += len(NUMBERS)
    columns = ["cell, input"]
    for name in NUMBERS:
        columns += [name, "networks", "z"]
    show(columns, rows)
    claim(f"{count} numbers within 1 % or 3 standard errors; beyond: {', '.join(missed) or 'none'}", not missed)


def row_of(key: str, both: dict[str, Found]) -> list[object]:
    row: list[object] = [key]
    for name in NUMBERS:
        value, error = both["networks"][name]
        _, z = agreement(both["theory"], both["networks"], name)
        row += [f"{both['theory'][name][0]:.4f}", f"{value:.4f} +- {error:.4f}", f"{z:+.1f}"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    found, cells = load(), arguments.cells.split(",")

    def measure(todo: list[tuple[str, str]], networks: int) -> None:
        waiting = [(cell, law, networks) for cell, law in todo if key_of(cell, law, networks) not in found]
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for done in as_completed([pool.submit(case, *one) for one in waiting]):
                key, both = done.result()
                found[key] = both
                store(found)

    todo = [(cell, law) for law in LAWS for cell in cells]
    for networks in NETWORKS:
        measure(todo, networks)
        todo = [one for one in todo if beyond(found[key_of(*one, networks)])]
    heading(f"Inputs with means and inputs correlated over time: theory, and {NETWORKS[0]} networks of width {WIDTH}")
    summary(found, cells)


if __name__ == "__main__":
    main()
