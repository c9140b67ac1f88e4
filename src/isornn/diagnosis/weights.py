"""What a layer's weights look like, gate by gate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from isornn.diagnosis.numbers import listed
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layout import GateTensors


@dataclass(frozen=True)
class GateWeights:
    """One gate's tensors.

    Args:
        weight_var: ``P mean(W_ij^2)``, the fan-in convention of `Gate`; input_var likewise with D. 0 without a matrix.
        singular_values: of the gate's recurrent matrix, from the largest; empty without one.
        bias_means, bias_vars: over units of each bias vector by itself: torch's ``bias_ih`` and ``bias_hh``, which add.
        bias_mean, bias_var: of their sum.
    """

    weight_var: float
    input_var: float
    singular_values: Tensor
    bias_means: tuple[float, ...]
    bias_vars: tuple[float, ...]
    bias_mean: float
    bias_var: float

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        plain = ("weight_var", "input_var", "bias_mean", "bias_var")
        return {
            **{name: getattr(self, name) for name in plain},
            "singular_values": listed(self.singular_values),
            "bias_means": list(self.bias_means),
            "bias_vars": list(self.bias_vars),
        }


@dataclass(frozen=True)
class DefaultDraw:
    """Whether tensors look like torch's own start, uniform in +-1/sqrt(N).

    Args:
        within: whether all entries lie within the bounds.
        distance: Kolmogorov and Smirnov's, largest gap between the two distribution functions.
        p_value: how often a true draw is at least as far away.
    """

    within: bool
    distance: float
    p_value: float

    @property
    def likely(self) -> bool:
        """Within the bounds, and not one of the 1 in 1000 draws that are farthest away."""
        return self.within and self.p_value > 1e-3

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        return {"within": self.within, "distance": self.distance, "p_value": self.p_value, "likely": self.likely}


@dataclass(frozen=True)
class WeightFacts:
    """A layer's weights.

    Args:
        gates: by the cell's gate names.
        stacked_singular_values: of all recurrent matrices stacked, (M N, P), as torch stores them; empty without any.
        recurrent_default, input_default, bias_default: whether these look like torch's default draw; ``None`` where
            the layer has no such tensor.
    """

    gates: Mapping[str, GateWeights]
    stacked_singular_values: Tensor
    recurrent_default: DefaultDraw | None
    input_default: DefaultDraw | None
    bias_default: DefaultDraw | None

    def to_json(self) -> dict[str, object]:
        """One JSON object."""
        names = ("recurrent_default", "input_default", "bias_default")
        defaults = {name: getattr(self, name) for name in names}
        return {
            "gates": {name: gate.to_json() for name, gate in self.gates.items()},
            "stacked_singular_values": listed(self.stacked_singular_values),
            **{name: None if draw is None else draw.to_json() for name, draw in defaults.items()},
        }


@torch.no_grad()
def weight_facts(place: RecurrentLayer) -> WeightFacts:
    """Of one layer and direction."""
    recurrent = [gate.recurrent for gate in place.gates.values() if gate.recurrent is not None]
    inputs = [gate.input for gate in place.gates.values() if gate.input is not None]
    biases = [bias for gate in place.gates.values() for bias in gate.biases]
    return WeightFacts(
        gates={name: _gate(tensors) for name, tensors in place.gates.items()},
        stacked_singular_values=_singular_values(torch.cat(recurrent) if recurrent else None),
        recurrent_default=_default_draw(recurrent, place.hidden),
        input_default=_default_draw(inputs, place.hidden),
        bias_default=_default_draw(biases, place.hidden),
    )


def _gate(tensors: GateTensors) -> GateWeights:
    biases = [bias.double().cpu() for bias in tensors.biases]
    total = torch.stack(biases).sum(0) if biases else torch.zeros(1, dtype=torch.float64)
    return GateWeights(
        weight_var=_fan_in_variance(tensors.recurrent),
        input_var=_fan_in_variance(tensors.input),
        singular_values=_singular_values(tensors.recurrent),
        bias_means=tuple(float(bias.mean()) for bias in biases),
        bias_vars=tuple(float(bias.var(correction=0)) for bias in biases),
        bias_mean=float(total.mean()),
        bias_var=float(total.var(correction=0)),
    )


def _fan_in_variance(weight: Tensor | None) -> float:
    return 0.0 if weight is None else weight.shape[-1] * float(weight.double().square().mean())


def _singular_values(weight: Tensor | None) -> Tensor:
    return torch.zeros(0, dtype=torch.float64) if weight is None else torch.linalg.svdvals(weight.double()).cpu()


def _default_draw(tensors: list[Tensor], hidden: int) -> DefaultDraw | None:
    if not tensors:
        return None
    bound = 1 / math.sqrt(hidden)
    values = torch.cat([tensor.flatten() for tensor in tensors]).double().cpu()
    # Rounded to the tensor's dtype, a bound can be passed by half a unit in the last place.
    slack = 1 + float(torch.finfo(tensors[0].dtype).eps)
    found = stats.kstest(values.numpy(), stats.uniform(-bound, 2 * bound).cdf)
    return DefaultDraw(bool(values.abs().max() <= bound * slack), float(found.statistic), float(found.pvalue))
