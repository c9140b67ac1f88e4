"""The type rules: which cells satisfy them, and what the powers of a recurrent matrix do to the basis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, cell_named, typing_of
from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.nn.typed import symmetric_matrix

_EXACT = 1e-10
_PUBLISHED = {
    "t_rnn": "strongly",
    "t_lstm": "strongly",
    "t_gru": "strongly",
    "t_mr": "strongly",
    "scrn": "strongly",
    "lstm_coupled": "weakly",
    "gru_cho": "weakly",
    "mut1": "weakly",
    "vanilla": "not",
}


def measure(bench: Bench) -> Measured:
    """The rules' verdict on every cell; the overlap of the bases that V^k begins and ends in, general and symmetric."""
    size, powers = bench.settings["size"], bench.settings["powers"]
    generator = bench.generator()
    general = torch.randn(size, size, generator=generator, dtype=torch.float64) / size**0.5
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    scale = torch.randn(size, generator=generator, dtype=torch.float64)
    symmetric = symmetric_matrix(basis, scale)
    cells: dict[str, Any] = {}
    for name in _PUBLISHED:
        found = typing_of(_cell(name))
        cells[name] = {"verdict": found.verdict, "offences": list(found.offences)}
    return {
        "cells": cells,
        "powers": list(range(1, powers + 1)),
        "general": [_outside(torch.linalg.svd(general).U, general, k) for k in range(1, powers + 1)],
        "symmetric": [_outside(basis, symmetric, k) for k in range(1, powers + 1)],
    }


def _cell(name: str) -> Cell:
    return cell_named(name, {"nonlinearity": "sigmoid"} if name == "vanilla" else None)


def _outside(basis: Tensor, matrix: Tensor, power: int) -> float:
    """Share of ``V^k (V^k)^T``, in the basis given, that is off the diagonal: 0 where the power ends in that basis."""
    raised = torch.linalg.matrix_power(matrix, power)
    seen = (basis.mT @ raised @ raised.mT @ basis).square()
    return float(1 - seen.diagonal().sum() / seen.sum())


def judge(measured: Measured) -> Verdict:
    """Verdicts as the paper has them; V and V^2 end in different bases, P D P^T and its powers in one."""
    wrong = {name: kind for name, kind in _PUBLISHED.items() if measured["cells"][name]["verdict"] != kind}
    mixed, kept = min(measured["general"][1:]), max(measured["symmetric"])
    why = (
        f"{len(_PUBLISHED) - len(wrong)} of {len(_PUBLISHED)} cells typed as published"
        f"{'' if not wrong else ', but not ' + ', '.join(wrong)}; of V^k V^kT, k >= 2, at least {mixed:.2f} lies off "
        f"the diagonal of V's own basis; for P D P^T at most {kept:.1e}"
    )
    return Verdict("holds" if not wrong and mixed > 0.1 and kept < _EXACT else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """How much of a power leaves the basis of the first."""
    curves = [
        Curve(measured["powers"], measured["general"], "V, general"),
        Curve(measured["powers"], measured["symmetric"], "P D P^T"),
    ]
    return [Panel("powers of a recurrent matrix", "power k", "share off the first power's basis", curves)]


TARGET = Target(
    id="balduzzi-types",
    source="Balduzzi & Ghifary 2016, sections 2 and 3, eqs. 10-13",
    claim="T-RNN, T-LSTM, T-GRU, T-MR and SCRN's state layer are strongly typed, LSTM, GRU and MUT1 weakly, the "
    "vanilla RNN not; V and V^2 end in different bases, while all powers of P D P^T share one.",
    published="the statements, in words",
    choices="A checker that calls a cell's update with symbols that carry types; LSTM and GRU as printed there. A "
    "random V of 50 units for the bases.",
    settings={"small": {"size": 50, "powers": 8}, "paper": {"size": 256, "powers": 16}},
    measure=measure,
    judge=judge,
    panels=panels,
)
