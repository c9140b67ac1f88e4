"""A layer's weights, gate by gate, and whether they are still a random initialisation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from isornn.diagnosis.drawn import ENOUGH, EXACT, can_be_drawn
from isornn.diagnosis.facts import DefaultDraw, GateWeights, WeightFacts
from isornn.diagnosis.kolmogorov_smirnov import kolmogorov_smirnov, ks_distance
from isornn.diagnosis.records import LayerDiagnosis
from isornn.modes import usual_modes
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.layout import GateTensors
from isornn.nn.measured_law import fan_in_variance
from isornn.theory.critical_points.rule import WEAK

# As `measured_gate` recognises orthogonal matrices: half precision rounds to 4e-3.
TOLERANCE = 1e-2
_ROUNDING = 1e-12
_FEW_GATES = 2
# Two bias vectors that were set alike agree in their means to this many standard errors, or to 10 %.
_ERRORS, _ALIKE = 3, 0.1


@usual_modes()
@torch.no_grad()
def weight_facts(layer: RecurrentLayer) -> WeightFacts:
    """Of one layer and direction."""
    recurrent = [gate.recurrent for gate in layer.gates.values() if gate.recurrent is not None]
    inputs = [gate.input for gate in layer.gates.values() if gate.input is not None]
    biases = [bias for gate in layer.gates.values() for bias in gate.biases]
    stacked = _singular_values(torch.cat(recurrent) if recurrent else None)
    return WeightFacts(
        gates={name: _gate(tensors) for name, tensors in layer.gates.items()},
        stacked_singular_values=stacked,
        recurrent_default=_default_draw(recurrent, layer.hidden),
        input_default=_default_draw(inputs, layer.hidden),
        bias_default=_default_draw(biases, layer.hidden),
        gates_without_input=tuple(
            name for name, gate in layer.gates.items() if gate.input is not None and not gate.input.any()
        ),
        not_drawn=(
            *_not_drawn("recurrent", {name: gate.recurrent for name, gate in layer.gates.items()}, stacked),
            *_not_drawn(
                "input",
                {name: gate.input for name, gate in layer.gates.items()},
                _singular_values(torch.cat(inputs) if inputs else None),
            ),
        ),
    )


def _not_drawn(kind: str, matrices: Mapping[str, Tensor | None], stacked: Tensor) -> list[str]:
    """Names of a layer's matrices of one kind, given the singular values of their stack: the parts of an orthogonal
    stack are no draws by themselves."""
    if equal(stacked, EXACT):
        return []
    return [f"{kind} {name}" for name, w in matrices.items() if w is not None and not can_be_drawn(w)]


def _gate(tensors: GateTensors) -> GateWeights:
    biases = [bias.double().cpu() for bias in tensors.biases]
    total = torch.stack(biases).sum(0) if biases else torch.zeros(1, dtype=torch.float64)
    return GateWeights(
        weight_var=fan_in_variance(tensors.recurrent),
        input_var=fan_in_variance(tensors.input),
        singular_values=_singular_values(tensors.recurrent),
        bias_means=tuple(float(bias.mean()) for bias in biases),
        bias_vars=tuple(float(bias.var(correction=0)) for bias in biases),
        bias_mean=float(total.mean()),
        bias_var=float(total.var(correction=0)),
    )


def _singular_values(weight: Tensor | None) -> Tensor:
    return torch.zeros(0, dtype=torch.float64) if weight is None else torch.linalg.svdvals(weight.double()).cpu()


def _default_draw(tensors: list[Tensor], hidden: int) -> DefaultDraw | None:
    if not tensors:
        return None
    bound = 1 / math.sqrt(hidden)
    values = torch.cat([tensor.flatten() for tensor in tensors]).double().cpu()
    # Rounded to the tensor's dtype, a bound can be passed by half a unit in the last place.
    slack = 1 + float(torch.finfo(tensors[0].dtype).eps)
    within = bool(values.abs().max() <= bound * slack)
    distance = ks_distance(((values + bound) / (2 * bound)).clamp(0, 1))
    return DefaultDraw(within, distance, kolmogorov_smirnov(distance, len(values)), len(values))


def untrained_evidence(weights: WeightFacts) -> str | None:
    """Evidence that a layer is as it was initialised; ``None`` without any, so that it counts as trained.

    An optimiser changes entries by different amounts, so that none of `_EVIDENCE` survives its training. As biases may
    not be trained, or a matrix be kept orthogonal, every matrix has to follow some law that matrices are drawn by, too.
    """
    if weights.not_drawn:
        return None
    return next((found for evidence in _EVIDENCE if (found := evidence(weights)) is not None), None)


def _torch_recurrent(weights: WeightFacts) -> str | None:
    """torch's own uniform law with its sharp bounds."""
    return "the recurrent matrices are torch's own draw" if _own_draw(weights.recurrent_default) else None


def _orthogonal(weights: WeightFacts) -> str | None:
    """Gate by gate, or the stack of all gates."""
    exact = [equal(values, EXACT) for values in _spectra(weights)]
    orthogonal = equal(weights.stacked_singular_values, EXACT) or (exact and all(exact))
    return "the recurrent matrices are orthogonal" if orthogonal else None


def _torch_biases(weights: WeightFacts) -> str | None:
    """Of a layer with recurrent matrices, of as many rows as are enough."""
    spectra = _spectra(weights)
    drawn = spectra and _own_draw(weights.bias_default, sum(map(len, spectra)))
    return "the biases are torch's own draw" if drawn else None


def _torch_inputs(weights: WeightFacts) -> str | None:
    """Of a layer without recurrent matrices: input matrices, and biases where there are some."""
    if _spectra(weights) or not _own_draw(weights.input_default):
        return None
    if weights.bias_default is None:
        return "the input matrices are torch's own draw"
    return "input matrices and biases are torch's own draw" if _own_draw(weights.bias_default, ENOUGH) else None


def _equal_biases(weights: WeightFacts) -> str | None:
    """Over units, in two gates of three or more, as a trained layer from elsewhere may have one vector that is 0."""
    biased = {name: gate for name, gate in weights.gates.items() if gate.bias_means}
    alike = [name for name, gate in biased.items() if _is_constant(gate)]
    enough = min(2, max(1, len(biased) - 1))
    return f"biases are the same for all units in {', '.join(alike)}" if len(alike) >= enough else None


def _is_constant(gate: GateWeights) -> bool:
    """Whether all units have one bias; one unit is always like itself."""
    return len(gate.singular_values) != 1 and gate.bias_var <= _ROUNDING * gate.bias_mean**2


def _gates_without_input(weights: WeightFacts) -> str | None:
    """In some gates and not in others, as the critical start has it."""
    blank = weights.gates_without_input
    others = any(gate.input_var > 0 for gate in weights.gates.values())
    return f"the input matrix is 0 in {', '.join(blank)}" if blank and others else None


def _weak_recurrence(weights: WeightFacts) -> str | None:
    """In cells of one or two gates, which all read the input: matrices of just the critical start's variance."""
    weak = [name for name, gate in weights.gates.items() if _is_weak(gate)]
    if not weak or len(weights.gates) > _FEW_GATES:
        return None
    return f"the recurrent matrices are of the critical start's variance in {', '.join(weak)}"


_EVIDENCE = (
    _torch_recurrent,
    _orthogonal,
    _torch_biases,
    _torch_inputs,
    _equal_biases,
    _gates_without_input,
    _weak_recurrence,
)
"""What only an initialisation has; the first that holds is named."""


def _spectra(weights: WeightFacts) -> list[Tensor]:
    """Singular values of the recurrent matrices there are."""
    return [gate.singular_values for gate in weights.gates.values() if len(gate.singular_values) > 0]


def _is_weak(gate: GateWeights) -> bool:
    """Whether the recurrent entries' variance is the critical start's, by what it varies among draws."""
    entries = len(gate.singular_values) ** 2
    return entries >= ENOUGH and abs(gate.weight_var / WEAK - 1) < _ERRORS * math.sqrt(2 / entries)


def layer_evidence(layer: LayerDiagnosis) -> str | None:
    """`untrained_evidence`; ``None`` of parametrised weights, which keep their form through training."""
    return None if layer.info.parametrised else untrained_evidence(layer.weights)


def too_few_to_tell(weights: WeightFacts) -> bool:
    """Whether a layer without `untrained_evidence` may be new all the same: its few weights are within torch's law."""
    return weights.recurrent_default is not None and weights.recurrent_default.likely


def why_kept(weights: WeightFacts) -> str:
    """Why a layer without `untrained_evidence` keeps its weights, as a clause."""
    if too_few_to_tell(weights):
        return "it has too few weights to tell whether it is trained"
    return "it looks trained, or has a start that is not known here"


def _own_draw(draw: DefaultDraw | None, entries: int | None = None) -> bool:
    """Whether the entries, ``entries`` of them or all, are enough for a test, and look drawn by torch."""
    return draw is not None and draw.likely and (draw.entries if entries is None else entries) >= ENOUGH


def equal(singular_values: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether they are all the same: the columns are orthogonal and of one length.

    >>> equal(torch.tensor([1.0, 0.999])), equal(torch.tensor([1.0, 0.5]))
    (True, False)
    """
    if len(singular_values) < 2 or not singular_values[0] > 0:
        return False
    return bool(singular_values[-1] > (1 - tolerance) * singular_values[0])


def doubled_gates(weights: WeightFacts, hidden: int) -> list[str]:
    """All gates whose two bias vectors, which add, were both set, and alike.

    Beyond ±1/sqrt(N) a vector is not torch's own draw.
    """
    return [name for name, gate in weights.gates.items() if _is_doubled(gate, hidden)]


def _is_doubled(gate: GateWeights, hidden: int) -> bool:
    if len(gate.bias_means) != 2:
        return False
    first, second = gate.bias_means
    error = math.sqrt(sum(gate.bias_vars) / hidden)
    close = abs(first - second) <= max(_ERRORS * error, _ALIKE * max(abs(first), abs(second)))
    return min(abs(first), abs(second)) > 1 / math.sqrt(hidden) and first * second > 0 and close
