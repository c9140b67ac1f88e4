"""Stacks of layers: the theory, layer by layer, against simulated stacks of N units a layer.

    python benchmarks/depth.py [--networks 12] [--width 1000] [--cases lstm-lstm ...] [--tied | --untied]

Untied: E[h^2] and C of every layer, the growth per step of a displacement of a layer's own states (chi), and what a
change of the input at one step does to the top's output t steps later. Tied: E[h^2] of every layer at every step from
state 0. Wanted: within 3 standard errors, those of networks and theory together. It takes some forty minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from specs import CHECKED, gate
from table import heading, show
from torch import Tensor

from isornn import Spec
from isornn.cells import GRU, LSTM, Cell, Values, initial_parameters
from isornn.cells.starts import start
from isornn.nn.random_network import RandomNetwork
from isornn.nn.step import step
from isornn.theory import Bidirectional, Quantity, StackAnalysis, analyze_stack

SEED = 11
WARMUP, STEPS, TANGENTS = 30, 26, 4
LONG_WARMUP = 60  # where copies have to find a correlation below 1
TIED_STEPS = 40
LAGS = (0, 1, 2, 4, 8, 16, 24)

Layers = Sequence[Spec | Bidirectional]

SLOW_GRU = Spec(GRU(), {"r": gate(1, 0.5), "z": gate(1, 0.5, 0, 2), "nx": gate(0, 1), "nh": gate(1, 0)})
CASES: Mapping[str, Layers] = {
    "lstm-lstm": [CHECKED["lstm"], CHECKED["lstm"]],
    "torch lstm-lstm": [start("torch", LSTM(), 1000, 1000), start("torch", LSTM(), 1000, 1000)],
    "gru-gru": [CHECKED["gru"], SLOW_GRU],
    "vanilla-vanilla-vanilla": [CHECKED["vanilla"]] * 3,
    "peephole-vanilla": [CHECKED["peephole"], CHECKED["vanilla"]],
    "minimal-gru_cho-lstm": [CHECKED["minimal"], CHECKED["gru_cho"], CHECKED["lstm"]],
    "bidirectional gru_cho-vanilla": [Bidirectional(CHECKED["gru_cho"], CHECKED["vanilla"]), CHECKED["vanilla"]],
}


@dataclass(frozen=True)
class Plan:
    """How stacks are run: ``apart`` starts the two copies in different states, to find a correlation below 1."""

    width: int
    tied: bool = False
    apart: bool = False

    @property
    def warmup(self) -> int:
        return LONG_WARMUP if self.apart else WARMUP

    @property
    def growth(self) -> tuple[int, int]:
        """Steps after a displacement between which its growth is read; soon where it drowns in what parts copies."""
        return (2, 10) if self.apart else (8, 20)


@dataclass(frozen=True)
class Heard:
    """A sequence for two copies (T, 2, D), and its tangents (T, K, 2, D)."""

    value: Tensor
    tangent: Tensor


@dataclass(frozen=True)
class Run:
    """One direction of one layer in one stack: E[h^2] and C by step, and the response to its own displacement."""

    second_moment: Tensor
    correlation: Tensor
    response: Tensor


def stacked(layers: Layers, plan: Plan, generator: torch.Generator) -> tuple[list[list[Run]], Tensor]:
    """One stack of networks: every layer's measurements, and d E[o_a o_b] of the top at every step.

    The input is changed at one step in the middle, the states of every layer are displaced at the same step.
    """
    two_sided = any(isinstance(layer, Bidirectional) for layer in layers)
    steps = TIED_STEPS if plan.tied else plan.warmup + STEPS + plan.warmup * two_sided
    first = layers[0].forward if isinstance(layers[0], Bidirectional) else layers[0]
    correlation = float(first.input.correlation)
    a, b = torch.randn(2, steps, plan.width, generator=generator, dtype=torch.float64)
    both = torch.stack([a, correlation * a + math.sqrt(1 - correlation**2) * b], 1)
    tangent = torch.zeros(steps, TANGENTS, 2, plan.width, dtype=torch.float64)
    if not plan.tied:
        tangent[plan.warmup] = torch.randn(TANGENTS, 1, plan.width, generator=generator, dtype=torch.float64)
    heard = Heard(math.sqrt(float(first.input.variance)) * both, tangent)
    found = []
    for layer in layers:
        specs = [layer] if isinstance(layer, Spec) else [layer.forward, layer.backward]
        runs, outputs = [], []
        for turn, spec in enumerate(specs):
            given = Heard(heard.value.flip(0), heard.tangent.flip(0)) if turn else heard
            run, out = one_layer(spec, given, plan, generator)
            runs.append(run)
            outputs.append(Heard(out.value.flip(0), out.tangent.flip(0)) if turn else out)
        found.append(runs)
        heard = Heard(torch.cat([o.value for o in outputs], -1), torch.cat([o.tangent for o in outputs], -1))
    return found, (heard.tangent[:, :, 0] * heard.tangent[:, :, 1]).mean((1, 2))


def one_layer(spec: Spec, heard: Heard, plan: Plan, generator: torch.Generator) -> tuple[Run, Heard]:
    """A layer over a whole sequence, with the tangents of its input and of a displacement of its own states."""
    steps, inputs, width = len(heard.value), heard.value.shape[-1], plan.width
    network = RandomNetwork.drawn(spec, width, inputs, generator)
    names = spec.cell.states
    states = tuple(torch.zeros(2, width, dtype=torch.float64) for _ in names)
    if plan.apart:
        states = tuple(torch.randn(2, width, generator=generator, dtype=torch.float64) for _ in names)
    along = tuple(torch.zeros(2 * TANGENTS, 2, width, dtype=torch.float64) for _ in names)
    own = torch.zeros(TANGENTS, 2, inputs, dtype=torch.float64)
    before, before_tangent = torch.zeros_like(heard.value[0]), torch.zeros_like(torch.cat([own, own]))
    seconds, correlations, responses, values, tangents = [], [], [], [], []
    for t in range(steps):
        if t > 0 and not plan.tied:
            network = network.redrawn(generator)
        x, dx = heard.value[t], torch.cat([heard.tangent[t], own])
        if plan.tied:
            states, out = advance(network)(x, before, *states)
        else:
            push = push_forward(advance(network), (x, before, *states))
            (states, out), (along, d_out) = torch.vmap(push, out_dims=(None, 0))(dx, before_tangent, *along)
            tangents.append(d_out[:TANGENTS])
            own_response = along[0][TANGENTS:]
            responses.append((own_response[:, 0] * own_response[:, 1]).mean())
            if t == plan.warmup:
                for part in along:
                    part[TANGENTS:] = torch.randn(TANGENTS, 1, width, generator=generator, dtype=torch.float64)
        values.append(out)
        before, before_tangent = x, dx
        a, b = states[0]
        mean, second = states[0].mean(), states[0].square().mean()
        seconds.append(second)
        correlations.append((a * b).mean().sub(mean**2) / (second - mean**2))
    response = torch.zeros(0) if plan.tied else torch.stack(responses)[[plan.warmup + lag for lag in plan.growth]]
    out = Heard(torch.stack(values), heard.tangent[..., :width] if plan.tied else torch.stack(tangents))
    return Run(torch.stack(seconds), torch.stack(correlations), response), out


def advance(network: RandomNetwork) -> Callable[..., tuple[tuple[Tensor, ...], Tensor]]:
    """States and output (2, N) from the input, the one before (2, D) and the states (2, N)."""
    cell: Cell = network.spec.cell

    def multiplied(matrix: Tensor | None, value: Tensor) -> Tensor:
        return torch.zeros(2, network.width, dtype=torch.float64) if matrix is None else value @ matrix.mT

    def advanced(x: Tensor, before: Tensor, *states: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        drive = {
            name: network.biases[name]
            + multiplied(network.inputs[name], x)
            + multiplied(network.previous[name], before)
            for name in cell.gates
        }
        named = Values(**dict(zip(cell.states, states, strict=True)))
        pointwise = x if cell.input_enters_pointwise else None
        new, u = step(
            cell,
            named,
            drive,
            lambda name, r: multiplied(network.recurrent[name], r),
            pointwise,
            initial_parameters(cell),
        )
        return tuple(getattr(new, name) for name in cell.states), cell.output(new, u)

    return advanced


def push_forward(function: Callable[..., object], at: tuple[Tensor, ...]) -> Callable[..., object]:
    return lambda *directions: torch.func.jvp(function, at, directions)


def mean_and_error(samples: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    stacked_samples = torch.stack(list(samples))
    return stacked_samples.mean(0), stacked_samples.std(0) / math.sqrt(len(stacked_samples))


def growth(responses: Sequence[Tensor], plan: Plan) -> tuple[Tensor, Tensor]:
    """Factor per step between the two times of ``responses`` (2,), of their mean over stacks; error by jackknife."""
    both, (first, last) = torch.stack(list(responses)), plan.growth
    without = (both.sum(0) - both) / (len(both) - 1)
    means = torch.cat([both.mean(0, keepdim=True), without])
    factors = (means[:, 1] / means[:, 0]) ** (1 / (last - first))
    return factors[0], ((factors[1:] - factors[1:].mean()).square().sum() * (len(both) - 1) / len(both)).sqrt()


def row(
    name: str, what: str, theory: float, error: float, networks: tuple[Tensor, Tensor]
) -> tuple[list[object], float]:
    value, spread = (float(x) for x in networks)
    off = abs(theory - value) / math.hypot(error, spread) if theory != value else 0.0
    return [name, what, theory, error, value, spread, f"{off:.1f}"], off


def untied(name: str, layers: Layers, width: int, networks: int) -> list[tuple[list[object], float]]:
    answer = analyze_stack(layers, length=max(LAGS))
    generator = torch.Generator().manual_seed(SEED)
    correlations = [layer.fixed_point.correlation for directions in answer.layers for layer in directions]
    plan = Plan(width, apart=any(float(c.value) < 1 for c in correlations))
    runs = [stacked(layers, plan, generator) for _ in range(networks)]
    rows = []
    for place, directions in enumerate(answer.layers):
        for turn, layer in enumerate(directions):
            label = f"layer {place + 1}{' backward' if turn else ''}"
            seen = [run[0][place][turn] for run in runs]
            point = layer.fixed_point
            measured = {
                "Q": (point.second_moment, [run.second_moment[plan.warmup :].mean() for run in seen]),
                "C": (point.correlation, [run.correlation[plan.warmup :].mean() for run in seen]),
            }
            for what, (quantity, samples) in measured.items():
                rows.append(row(name, f"{label} {what}", *number(quantity), mean_and_error(samples)))
            rows.append(row(name, f"{label} chi", *number(layer.chi), growth([run.response for run in seen], plan)))
    for sign, side in ((1, answer.forward), (-1, answer.backward)):
        for lag in LAGS if side is not None else ():
            samples = [run[1][plan.warmup + sign * lag] for run in runs]
            profile = side.profile
            pair = float(profile.value[lag]), float(profile.stderr[lag])
            rows.append(row(name, f"response {sign * lag:+d}", *pair, mean_and_error(samples)))
    return rows


def tied(name: str, layers: Layers, width: int, networks: int) -> list[tuple[list[object], float]]:
    answer: StackAnalysis = analyze_stack(layers, length=1, tied=True, steps=TIED_STEPS)
    generator = torch.Generator().manual_seed(SEED)
    runs = [stacked(layers, Plan(width, tied=True), generator)[0] for _ in range(networks)]
    rows = []
    assert answer.tied is not None
    for place, directions in enumerate(answer.tied):
        for turn, layer in enumerate(directions):
            q = layer.second_moment
            value, spread = mean_and_error([run[place][turn].second_moment for run in runs])
            for t in (1, 2, 4, 8, 16, 24, 40):
                label = f"layer {place + 1}{' backward' if turn else ''} Q({t})"
                rows.append(
                    row(name, label, float(q.value[t - 1]), float(q.stderr[t - 1]), (value[t - 1], spread[t - 1]))
                )
    return rows


def number(quantity: Quantity) -> tuple[float, float]:
    return float(quantity.value), float(quantity.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", type=int, default=12)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tied", action="store_true")
    which.add_argument("--untied", action="store_true")
    given = parser.parse_args()
    heading(f"Stacks of layers: theory against {given.networks} stacks of N = {given.width}")
    columns = ("stack", "quantity", "theory", "error", "networks", "error", "standard errors apart")
    good = True
    for title, check, wanted in (("untied", untied, not given.tied), ("tied", tied, not given.untied)):
        if not wanted:
            continue
        print(title)
        rows = []
        for name in given.cases:
            print(f"{title} {name}", file=sys.stderr, flush=True)
            rows += check(name, CASES[name], given.width, given.networks)
        show(columns, [line for line, _ in rows])
        off = [apart for _, apart in rows]
        beyond = sum(apart > 3 for apart in off)
        print(f"{beyond} of {len(off)} beyond 3 standard errors, the farthest at {max(off):.1f}\n", flush=True)
        good &= beyond == 0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
