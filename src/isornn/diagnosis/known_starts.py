"""Which of the starts in use a layer's weights and biases have, by the laws of their entries."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import BiasLaw
from isornn.cells.openings import retention_signs, write_signs
from isornn.diagnosis.drawn import EXACT
from isornn.diagnosis.facts import KnownStart, WeightFacts
from isornn.diagnosis.kolmogorov_smirnov import kolmogorov_smirnov, ks_distance
from isornn.diagnosis.weights import equal, untrained_evidence
from isornn.nn.gate_tensors import RecurrentLayer

# One draw in a thousand is farther from its own law.
_RARE = 1e-3
# Standard errors of a variance, within which it is its law's.
_ERRORS = 5
_NEAR_ZERO = 1e-3  # variance times width of a critical start's gates that retain, at most

_MATRICES = {
    "torch": "torch's uniform weights",
    "orthogonal": "an orthogonal recurrent matrix for each gate",
    "stacked": "one orthogonal matrix for the stack of all gates' recurrent matrices",
    "identity": "identity matrices",
    "glorot": "Glorot's uniform recurrent entries for each gate",
    "stacked_glorot": "Glorot's uniform recurrent entries for the stack of all gates",
    "critical": "recurrent matrices close to 0 at the gate that retains",
}
_NAMES = {
    ("torch", "torch"): "torch",
    ("torch", "none"): "torch",
    ("torch", "chrono"): "chrono",
    ("torch", "doubled_chrono"): "doubled_chrono",
    ("torch", "forget_bias_3_to_6"): "forget_bias_3_to_6",
    ("orthogonal", "zero"): "orthogonal",
    ("orthogonal", "none"): "orthogonal",
    ("orthogonal", "chrono"): "chrono",
    ("orthogonal", "doubled_chrono"): "doubled_chrono",
    ("orthogonal", "uniform_gate"): "uniform_gate",
    ("glorot", "zero"): "glorot",
    ("glorot", "none"): "glorot",
    ("identity", "zero"): "identity",
    ("identity", "none"): "identity",
}
_USED = {
    "torch": "the default of torch, as in darts, neuralforecast, pytorch-forecasting, gluonts, sb3-contrib, RLlib, "
    "torchrl, asteroid and pyannote.audio",
    "forget_bias_3": "as in neuralhydrology",
    "forget_bias_1": "as NeMo's forget_gate_bias=1.0",
    "doubled_chrono": "as in NeMo with t_max",
    "chrono": "Tallec & Ollivier 2018",
    "uniform_gate": "Gu et al. 2020",
    "critical": "isornn.init.critical_",
}


@torch.no_grad()
def known_start(layer: RecurrentLayer, facts: WeightFacts) -> KnownStart | None:
    """The start that a layer has; ``None`` where it looks trained or has none of the laws known here.

    Entries are compared with a law by Kolmogorov and Smirnov's test (p > 0.001), orthogonal matrices by their singular
    values (to 1e-4), so that already a few updates leave no start.

    >>> from torch import nn
    >>> from isornn.diagnosis.weights import weight_facts
    >>> from isornn.nn.gate_tensors import recurrent_layers
    >>> _ = torch.manual_seed(0)
    >>> (layer,) = recurrent_layers(nn.LSTM(3, 64))
    >>> known_start(layer, weight_facts(layer)).name
    'torch'
    """
    matrices = _matrices(layer, facts)
    if matrices == "critical":
        if untrained_evidence(facts) is None:
            return None
        # Its biases make up for the mean of the input, so that they need have no law of their own.
        return KnownStart("critical", _MATRICES[matrices], _USED["critical"])
    biases = _biases(layer)
    if matrices is None or biases is None:
        return None
    kind, words = biases
    if matrices == "stacked":
        name = "stacked_orthogonal"
    elif kind.startswith("forget_bias") and matrices == "torch":
        name = kind
    elif kind == "forget_bias_1" and matrices == "orthogonal":
        name = "standard"
    else:
        name = _NAMES.get((matrices, kind), "other")
    used = _stacked_users(layer, kind) if matrices == "stacked" else _USED.get(name, "")
    return KnownStart(name, f"{_MATRICES[matrices]}, {words}", used)


def _stacked_users(layer: RecurrentLayer, biases: str) -> str:
    if biases == "torch":
        return "as in speechbrain (rnn_init)"
    inputs = [gate.input for gate in layer.gates.values() if gate.input is not None]
    stack = torch.cat(inputs).double() if inputs else torch.zeros(0, 1)
    whole = len(stack) > 0 and (stack.shape[1] == 1 or equal(torch.linalg.svdvals(stack), EXACT))
    if biases == "zero" and whole:
        return "as in CleanRL (ppo_atari_lstm)"
    return "as in Keras, and in sktime with init_weights" if biases in ("zero", "forget_bias_1") else ""


def _matrices(layer: RecurrentLayer, facts: WeightFacts) -> str | None:
    recurrent = [gate.recurrent.double() for gate in layer.gates.values() if gate.recurrent is not None]
    if not recurrent:
        given = [m.flatten() for g in layer.gates.values() for m in (g.input, g.previous_input) if m is not None]
        bound = 1 / math.sqrt(layer.hidden)
        return "torch" if given and _is_uniform(torch.cat(given), -bound, bound) else None
    retained = [facts.gates[gate] for gate in retention_signs(layer.cell) if gate in facts.gates]
    if retained and all(0 < gate.weight_var < _NEAR_ZERO for gate in retained):
        return "critical"
    if facts.recurrent_default is not None and facts.recurrent_default.likely:
        return "torch"
    square = all(matrix.shape[0] == matrix.shape[1] for matrix in recurrent)
    if square and all(torch.equal(matrix, torch.eye(len(matrix)).to(matrix)) for matrix in recurrent):
        return "identity"
    own = [gate.singular_values for gate in facts.gates.values() if len(gate.singular_values) > 0]
    if all(equal(values, EXACT) for values in own):
        return "orthogonal"
    if len(own) > 1 and equal(facts.stacked_singular_values, EXACT):
        return "stacked"
    entries, (rows, columns) = torch.cat(recurrent).flatten(), recurrent[0].shape
    for name, fans in (("glorot", rows + columns), ("stacked_glorot", len(recurrent) * rows + columns)):
        bound = math.sqrt(6 / fans)
        if _is_uniform(entries, -bound, bound):
            return name
    return None


_FEWEST_STEPS = 8  # that anyone sets chrono's biases for
Law = tuple[str, str]
"""A law's name, and its words."""


@dataclass(frozen=True)
class _BiasVectors:
    """A layer's bias vectors, of which torch has two for a gate; those of gates that retain have the sign with which
    they do.

    Args:
        hidden: N.
        by_gate: of each gate that retains.
        total: their sums by gate, one behind the other.
        written: the sums of the gates that write, likewise.
        others: of all gates that do not retain; ``further`` of those that do not write either.
    """

    hidden: int
    by_gate: list[list[Tensor]]
    total: Tensor
    written: Tensor
    others: list[Tensor]
    further: list[Tensor]

    @staticmethod
    def of(layer: RecurrentLayer) -> _BiasVectors:
        signs, write = retention_signs(layer.cell), write_signs(layer.cell)
        own = {name: [signs.get(name, 1) * bias.double().cpu() for bias in g.biases] for name, g in layer.gates.items()}
        biased = {name: vectors for name, vectors in own.items() if vectors}
        return _BiasVectors(
            layer.hidden,
            [biased[name] for name in signs if name in biased],
            _sums([biased[name] for name in signs if name in biased]),
            _sums([biased[name] for name in write if name in biased]),
            [vector for name, vectors in biased.items() if name not in signs for vector in vectors],
            [vector for name, vectors in biased.items() if name not in signs | write for vector in vectors],
        )

    @property
    def retaining(self) -> list[Tensor]:
        """Those of all gates that retain."""
        return [vector for own in self.by_gate for vector in own]

    @property
    def rest(self) -> str | None:
        """Whether those that do not retain are "zero", or as "torch" draws them; of one gate alone what it may be."""
        if self.others:
            return _quiet(self.others, self.hidden)
        return "torch" if _quiet(self.retaining, self.hidden) == "torch" else "zero"

    @property
    def is_mirrored(self) -> bool:
        """Whether the gates that write have the negative of those that retain, and no others have any."""
        there = any(bool(vector.any()) for vector in self.further)
        return (
            not there
            and self.written.shape == self.total.shape
            and torch.allclose(self.written, -self.total, atol=1e-4)
        )


def _sums(by_gate: list[list[Tensor]]) -> Tensor:
    return torch.cat([torch.stack(vectors).sum(0) for vectors in by_gate]) if by_gate else torch.zeros(0)


def _biases(layer: RecurrentLayer) -> Law | None:
    found = _BiasVectors.of(layer)
    if not found.retaining and not found.others:
        return "none", "no biases"
    if not found.retaining:
        return None if found.rest is None else (found.rest, _REST[found.rest])
    return _alike_in_all_gates(found) or _offset(found) or _spread_over_units(found)


_REST = {"torch": "biases as torch has them", "zero": "biases 0"}


def _alike_in_all_gates(found: _BiasVectors) -> Law | None:
    if found.rest == "torch" and _quiet(found.retaining, found.hidden) == "torch":
        return "torch", "torch's biases"
    if found.rest == "zero" and not bool(found.total.any()):
        return "zero", "biases 0"
    return None


def _offset(found: _BiasVectors) -> Law | None:
    """A number, or U(3, 6), at the gates that retain, where all others are 0 or as torch has them."""
    if found.rest is None:
        return None
    words = "biases 0 but" if found.rest == "zero" else "torch's biases but"
    if _is_uniform(found.total, 3.0, 6.0):
        return "forget_bias_3_to_6", f"{words} U(3, 6) at the gate that retains"
    constant = [vector for vector in found.retaining if bool(vector.max() == vector.min()) and bool(vector.any())]
    value = sum(float(vector[0]) for vector in constant)
    left = [vector for vector in found.retaining if not any(vector is other for other in constant)]
    if not constant and found.rest == "torch":
        # One vector holds both, drawn about a mean.
        mean = float(found.total.mean())
        value = float(round(mean)) if abs(mean - round(mean)) < _ERRORS / found.hidden else round(mean, 1)
        left = [found.total - value]
    if value and _quiet(left, found.hidden) is not None:
        return f"forget_bias_{value:g}", f"{words} {value:g} at the gate that retains"
    return None


def _spread_over_units(found: _BiasVectors) -> Law | None:
    if found.rest == "zero" or (found.rest is None and found.is_mirrored):
        return _spread(found.total, found.by_gate)
    return None


def _spread(total: Tensor, by_gate: list[list[Tensor]]) -> tuple[str, str] | None:
    """Of biases that spread time scales over units; all others are 0, or mirror them."""
    there = [[vector for vector in own if bool(vector.any())] for own in by_gate]
    if all(len(own) > 1 and all(_chrono(vector) > _RARE for vector in own) for own in there):
        longest = max(float(vector.exp().max()) for own in there for vector in own)
        return "doubled_chrono", f"chrono's biases for some {longest + 1:.0f} steps in both bias vectors, which add"
    once, gate = _chrono(total), _uniform(total.sigmoid(), 1 / len(total), 1 - 1 / len(total))
    if once > max(gate, _RARE):
        return "chrono", f"chrono's biases for some {float(total.exp().max()) + 1:.0f} steps"
    if gate > _RARE:
        return "uniform_gate", "a gate that retains uniform over units"
    # Last: a few units with one of chrono's biases each can look like it.
    longest, twice = _doubled(total)
    if longest < _FEWEST_STEPS or twice <= _RARE:
        return None
    return "doubled_chrono", f"the sum of two of chrono's biases for some {longest:.0f} steps"


def _chrono(biases: Tensor) -> float:
    """p of ``ln U(1, T-1)``, T - 1 a little above the largest."""
    values = biases.exp()
    return _uniform(values, 1.0, float(values.max()) * (1 + 1 / len(values))) if bool(values.max() > 2) else 0.0


def _doubled(biases: Tensor) -> tuple[float, float]:
    """T of ``ln r + ln r'``, r and r' ~ U(1, T-1), from the mean, and p of that law."""
    half = float(biases.mean()) / 2
    if not 0.2 < half < 15:
        return 0.0, 0.0
    low, high = 1.01, math.exp(half + 2)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if (middle * math.log(middle) - middle + 1) / (middle - 1) > half else (middle, high)
    grid = (torch.arange(256, dtype=torch.float64) + 0.5) / 256
    one = BiasLaw("chrono", 1.0, low).quantile(grid)
    law = (one[:, None] + one).flatten().sort().values
    ranks = torch.searchsorted(law, biases.sort().values).double() / len(law)
    return low + 1, _uniform(ranks, 0.0, 1.0)


def _quiet(vectors: Iterable[Tensor], hidden: int) -> str | None:
    """ "zero", or "torch" where they are drawn as torch does, or normal with the variance of torch's sums."""
    there = [vector for vector in vectors if bool(vector.any())]
    if not there:
        return "zero"
    entries, bound = torch.cat(there), 1 / math.sqrt(hidden)
    if _is_uniform(entries, -bound, bound):
        return "torch"
    variance, error = bound**2 / 3, _ERRORS * math.sqrt(2 / len(entries))
    size = float(entries.square().mean())
    alike = any(abs(size / (count * variance) - 1) < error for count in (1, 2))
    return "torch" if alike and float(entries.abs().max()) < 6 * bound else None


def _is_uniform(values: Tensor, low: float, high: float) -> bool:
    return _uniform(values, low, high) > _RARE


def _uniform(values: Tensor, low: float, high: float) -> float:
    """p of the uniform law; 0 where a value is outside of it."""
    shares = (values.flatten().double().cpu() - low) / (high - low)
    slack = 1e-6
    if not bool((shares.min() >= -slack) & (shares.max() <= 1 + slack)):
        return 0.0
    return kolmogorov_smirnov(ks_distance(shares), len(shares))
