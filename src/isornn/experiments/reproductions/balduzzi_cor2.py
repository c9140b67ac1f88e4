"""Corollary 2: the gradients of strongly typed cells in closed form, and that they do not explode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isornn.experiments.target import Bench, Measured, Target, Verdict
from isornn.figures import Curve, Panel
from isornn.nn import RNN, TGRU, TLSTM, TRNN, CoupledLSTM
from isornn.nn.typed import learn

_EXACT = 1e-8
_BOUNDED = 10.0  # times the shortest length's gradient
_LAYERS: dict[str, Callable[..., RNN]] = {"T-RNN": TRNN, "T-LSTM": TLSTM, "T-GRU": TGRU, "LSTM": CoupledLSTM}


def measure(bench: Bench) -> Measured:
    """Gaps between eqs. 51-58 and autograd; the size of the gradient of a last output over the length, by scale."""
    settings, gaps, norms = bench.settings, {}, {}
    for number, (name, kind) in enumerate(_LAYERS.items()):
        bench.progress(name, number, len(_LAYERS))
        generator = bench.generator(number)
        if name != "LSTM":
            drawn = (_gap(name, _layer(kind, settings, 1.0, generator), settings, generator) for _ in range(10))
            gaps[name] = max(drawn)
        layer = _layer(kind, settings, settings["large"], generator)
        norms[name] = [_norm(layer, length, settings, generator) for length in settings["lengths"]]
    return {"gaps": gaps, "lengths": list(settings["lengths"]), "norms": norms}


def _layer(kind: Callable[..., RNN], settings: Any, scale: float, generator: torch.Generator) -> RNN:
    layer = kind(settings["inputs"], settings["units"], dtype=torch.float64)
    for name, parameter in layer.named_parameters():
        fan = 1 if name.startswith("bias") else parameter.shape[-1]
        torch.nn.init.normal_(parameter, std=scale / fan**0.5, generator=generator)
    return layer


def _norm(layer: RNN, length: int, settings: Any, generator: torch.Generator) -> float:
    """Of the gradient of the last output's first unit with respect to all parameters, largest over sequences."""
    largest = 0.0
    for _ in range(settings["sequences"]):
        x = torch.randn(length, 1, settings["inputs"], generator=generator, dtype=torch.float64)
        parts = torch.autograd.grad(layer(x)[0][-1, 0, 0], list(layer.parameters()))
        largest = max(largest, float(torch.cat([part.flatten() for part in parts]).norm()))
    return largest


def _gap(name: str, layer: RNN, settings: Any, generator: torch.Generator) -> float:
    """Largest difference between the formulas and autograd over W, V and b, relative to each one's largest entry."""
    x = torch.randn(settings["steps"], 1, settings["inputs"], generator=generator, dtype=torch.float64)
    wanted = torch.randn(settings["units"], generator=generator, dtype=torch.float64)
    loss = (layer(x)[0][-1, 0] * wanted).sum()
    x_t = x[:, 0]
    # What each parameter is the matrix on: W on x_t, V on x_(t-1), with x_0 = 0, and b on 1.
    read = {"weight_ih_l0": x_t, "weight_ph_l0": x_t.roll(1, 0).index_fill(0, torch.tensor(0), 0.0)}
    read["bias_ih_l0"] = torch.ones(len(x_t), 1, dtype=x.dtype)
    read = {parameter: inputs for parameter, inputs in read.items() if hasattr(layer, parameter)}
    gradients = torch.autograd.grad(loss, [layer.get_parameter(parameter) for parameter in read])
    with torch.no_grad():
        u = {k: v[:, 0] for k, v in learn(layer, x).items()}
        gaps = []
        for inputs, of_all in zip(read.values(), gradients, strict=True):
            ours = _formulas(name, u, inputs, wanted)
            exact = of_all.reshape(len(of_all), -1)
            found = torch.cat([ours[gate] for gate in layer.cell.gates])
            gaps.append(float((found - exact).abs().max() / exact.abs().max()))
    return max(gaps)


def _formulas(name: str, u: dict[str, Tensor], x: Tensor, wanted: Tensor) -> dict[str, Tensor]:
    """Eqs. 51-58 for the matrices on ``x``, summed over outputs with the weights ``wanted``."""
    f, z = torch.sigmoid(u["f"]), u["z"]
    after = torch.stack([f[s + 1 :].prod(0) for s in range(len(f))])
    o = torch.tanh(u["o"]) if name != "T-RNN" else torch.ones_like(f)
    if name == "T-GRU":
        weights, content, later = after * wanted, o * z, (1 - f)
        return {
            "f": _of_log(weights * content, torch.zeros_like(f), later, x),
            "z": (weights * o).mT @ x,
            "o": (weights * z * (1 - o * o)).mT @ x,
        }
    weights = (1 - f) * after * o[-1] * wanted
    found = {"f": _of_log(weights * z, -f, 1 - f, x), "z": weights.mT @ x}
    if name == "T-LSTM":
        pooled = ((1 - f) * after * z).sum(0)
        found["o"] = torch.outer(wanted * (1 - o[-1] ** 2) * pooled, x[-1])
    return found


def _of_log(weights: Tensor, own: Tensor, later: Tensor, x: Tensor) -> Tensor:
    """``sum_s w_s d log P(s)``, where log P(s) moves by ``own_s x_s + sum_(r>s) later_r x_r``."""
    before = weights.cumsum(0) - weights  # of all s < r
    return (weights * own + before * later).mT @ x


def judge(measured: Measured) -> Verdict:
    """Formulas are autograd's; the gradients of T-RNN and T-LSTM do not grow with the length, the LSTM's do."""
    gap = max(measured["gaps"].values())
    growth = {name: max(norms) / norms[0] for name, norms in measured["norms"].items()}
    details = ", ".join(f"{name} {ratio:.3g}" for name, ratio in growth.items())
    why = (
        f"formulas and autograd differ by at most {gap:.1e}, relative (bar {_EXACT}); largest gradient over lengths "
        f"{measured['lengths'][0]} to {measured['lengths'][-1]}, in units of the first's: {details} (bar for T-RNN and "
        f"T-LSTM {_BOUNDED:g})"
    )
    holds = gap < _EXACT and max(growth["T-RNN"], growth["T-LSTM"]) < _BOUNDED < growth["LSTM"]
    return Verdict("holds" if holds else "does not hold", why)


def panels(measured: Measured) -> list[Panel]:
    """Gradients over the length."""
    curves = [Curve(measured["lengths"], norms, name) for name, norms in measured["norms"].items()]
    return [Panel("gradient of a last output", "length", "norm", curves, log=("x", "y"))]


_SMALL = {
    "inputs": 7,
    "units": 32,
    "steps": 40,
    "large": 5.0,
    "lengths": [10, 20, 40, 80, 160, 320],
    "sequences": 5,
}
TARGET = Target(
    id="balduzzi-cor2",
    source="Balduzzi & Ghifary 2016, corollary 2, eqs. 51-58",
    claim="Gradients of strongly typed cells are the closed sums of corollary 2, so that those of T-RNN and T-LSTM do "
    "not explode with the length, as an LSTM's do with large weights.",
    published="exact identities; no explosion, in words",
    choices="Formulas for the matrices W on x_t, V on x_(t-1) and the biases. For the growth all weights are drawn "
    "five times larger than norm-keeping ones; largest gradient over five sequences. LSTM as printed there.",
    settings={"small": _SMALL, "paper": {**_SMALL, "units": 128, "lengths": [10, 100, 1000]}},
    measure=measure,
    judge=judge,
    panels=panels,
)
