"""Eq. 15, the second moment of the squared singular values: as printed, as repaired, and in networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isornn.cells import ChoGRU, Gate, Peephole, Spec
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.simulation import simulate
from isornn.theory import analyze

_CLOSE = 0.03  # relative
_SPECS = {
    "peephole LSTM, all variances 1": Spec(Peephole(), {k: Gate(1.0, 1.0, bias_mean=float(k == "f")) for k in "ifgo"}),
    "peephole LSTM, broad forget gate": Spec(
        Peephole(), {"i": Gate(1.0, 1.0), "f": Gate(4.0, 4.0), "g": Gate(2.0, 0.5), "o": Gate(1.0, 1.0)}
    ),
    "peephole LSTM, critical": Spec(Peephole(), {k: Gate(1e-5, 0.0, bias_mean=5.0 * (k == "f")) for k in "ifgo"}),
    "GRU": Spec(
        ChoGRU(),
        {"z": Gate(6.0, 1.0, bias_mean=-1.0), "r": Gate(6.0, 1.0, bias_mean=1.0), "n": Gate(6.0, 1.0, bias_mean=0.8)},
    ),
}


def measure(bench: Bench) -> Measured:
    """m2 of simulated Jacobians, of the library's theory, and of both forms by units sampled here."""
    rows: list[dict[str, Any]] = []
    for number, (name, spec) in enumerate(_SPECS.items()):
        bench.progress(name, number, len(_SPECS))
        networks = simulate(
            spec,
            width=bench.settings["width"],
            steps=bench.settings["steps"],
            networks=bench.settings["networks"],
            tangents=1,
            singular_values=True,
            generator=bench.generator(number),
        )
        assert networks.spectrum is not None
        found = networks.spectrum.second_moment
        forms = {"peephole": _peephole, "gru_cho": _gru}[spec.cell.name]
        printed, repaired = forms(spec.gates, bench.settings["units"], bench.generator(100 + number))
        rows.append(
            {
                "name": name,
                "networks": float(found.value),
                "stderr": float(found.stderr),
                "theory": analyze(spec).jacobian.second_moment.number(),
                "repaired": repaired,
                "printed": printed,
            }
        )
    return {"rows": rows}


def _peephole(gates: Mapping[str, Gate], units: int, generator: torch.Generator) -> tuple[float, float]:
    """``J = diag(a) + rows of variance v``: printed ``E a^4 + 4 E a^2 v + 2 E v^2``, repaired as below."""
    c = torch.zeros(units, dtype=torch.float64)
    for _ in range(400):
        u = {name: _drawn(gate, c, generator) for name, gate in gates.items()}
        before, c = c, torch.sigmoid(u["f"]) * c + torch.sigmoid(u["i"]) * torch.tanh(u["g"])
    square = torch.sigmoid(u["f"]).square()
    v = (
        _variance(gates["i"]) * (_slope(u["i"]) * torch.tanh(u["g"])).square()
        + _variance(gates["f"]) * (before * _slope(u["f"])).square()
        + _variance(gates["g"]) * (torch.sigmoid(u["i"]) * (1 - torch.tanh(u["g"]).square())).square()
    )
    return _printed(square, v), _rows(square, v)


def _gru(gates: Mapping[str, Gate], units: int, generator: torch.Generator) -> tuple[float, float]:
    """The rows of the GRU's candidate share ``Z = D_g + B W_r``, so its repaired form has further terms."""
    h = torch.zeros(units, dtype=torch.float64)
    for _ in range(200):
        u = {name: _drawn(gates[name], h, generator) for name in ("z", "r")}
        u["n"] = _drawn(gates["n"], torch.sigmoid(u["r"]) * h, generator)
        f, n, before = torch.sigmoid(u["z"]), torch.tanh(u["n"]), h
        h = f * h + (1 - f) * n
    g, b = torch.sigmoid(u["r"]), before * _slope(u["r"])
    of_z, of_r = _variance(gates["z"]), _variance(gates["r"])
    p = of_z * (_slope(u["z"]) * (before - n)).square()
    q = _variance(gates["n"]) * ((1 - f) * (1 - n.square())).square()
    first = g.square().mean() + of_r * b.square().mean()
    second = (
        (g**4).mean()
        + 2 * of_r * (g * b).square().mean()
        + 2 * of_r * g.square().mean() * b.square().mean()
        + of_r**2 * ((b**4).mean() + b.square().mean().square())
    )
    v = p + q * first
    shared = 2 * p.mean() * q.mean() * first + q.mean().square() * second
    repaired = _rows(f.square(), v) - float(v.mean().square()) + float(p.mean().square() + shared)
    printed_z = of_z * (n.square() + before.square().mean()) * _slope(u["z"]).square()
    return _printed(f.square(), printed_z + q * (g.square() + of_r * b.square())), repaired


def _drawn(gate: Gate, read: Tensor, generator: torch.Generator) -> Tensor:
    spread = (_variance(gate) * read.square().mean() + float(gate.input_var)).sqrt()
    return float(gate.bias_mean) + spread * torch.randn(len(read), generator=generator, dtype=torch.float64)


def _variance(gate: Gate) -> float:
    return float(gate.weight_var)


def _slope(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)


def _printed(square: Tensor, v: Tensor) -> float:
    return float((2 * (square + v).square() - square.square()).mean())


def _rows(square: Tensor, v: Tensor) -> float:
    """``E a^4 + 2 E[a^2 v] + 2 E[a^2] E[v] + E[v^2] + E[v]^2``, for independent rows."""
    mean, average = square.mean(), v.mean()
    return float((square.square() + 2 * square * v + v.square()).mean() + 2 * mean * average + average.square())


def judge(measured: Measured) -> Verdict:
    """The repaired form is the networks' in every spec; the printed one is not, in one at least."""
    rows = measured["rows"]
    off = {form: [abs(row[form] / row["networks"] - 1) for row in rows] for form in ("repaired", "theory", "printed")}
    right = max(off["repaired"] + off["theory"]) <= _CLOSE
    wrong = any(
        gap > _CLOSE and abs(row["printed"] - row["networks"]) > 5 * row["stderr"]
        for gap, row in zip(off["printed"], rows, strict=True)
    )
    details = "; ".join(
        f"{row['name']}: networks {row['networks']:.4f} +- {row['stderr']:.4f}, repaired {row['repaired']:.4f}, "
        f"library {row['theory']:.4f}, printed {row['printed']:.4f}"
        for row in rows
    )
    return Verdict("holds" if right and wrong else "does not hold", f"m2 (bar {_CLOSE:.0%}): {details}")


def panels(measured: Measured) -> list[Panel]:
    """Both forms against networks; on the line they agree."""
    rows = measured["rows"]
    networks = [row["networks"] for row in rows]
    return [
        Panel(
            "eq. 15 over four specs",
            "m2 of networks",
            "m2 of the formula",
            [
                Curve(sorted(networks), sorted(networks), "equal", "dashed", colour=6),
                Curve(networks, [row["printed"] for row in rows], "printed", "points", colour=1),
                Curve(networks, [row["repaired"] for row in rows], "repaired", "points", colour=0),
            ],
        )
    ]


TARGET = Target(
    id="gilboa-eq15",
    source="Gilboa et al. 2019, eq. 15",
    claim="m2 of the Jacobian's squared singular values is that of the repaired eq. 15; the printed one is too large.",
    published="m2 = 2 E[(sum a_k)^2] - E[a_0^2]",
    choices="Repaired, with a = a_0^(1/2) on the diagonal and rows of variance v: m2 = E a^4 + 2 E[a^2 v] + "
    "2 E[a^2] E[v] + E[v^2] + E[v]^2; the GRU's rows share a factor, which adds terms. Printed and repaired are "
    "averages over units sampled by Algorithm 1's iteration; the library's own theory does not sample.",
    settings={
        "small": {"width": 500, "steps": 60, "networks": 3, "units": 50_000},
        "paper": {"width": 1500, "steps": 100, "networks": 8, "units": 500_000},
    },
    measure=measure,
    judge=judge,
    panels=panels,
    corrected=True,
)
