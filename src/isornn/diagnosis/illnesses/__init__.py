"""What is wrong with a measured model, each illness with its rule, its evidence and its remedy."""

from __future__ import annotations

from collections.abc import Callable

from isornn.diagnosis.illnesses.data import padding, unnormalised_input
from isornn.diagnosis.illnesses.memory import cannot_tell, default_start, exploding, saturated_forget_gate, vanishing
from isornn.diagnosis.illnesses.speed import denormals
from isornn.diagnosis.illnesses.start_tensors import doubled_bias, stacked_orthogonal
from isornn.diagnosis.illnesses.verdict import CANNOT_TELL, ILLNESSES, Verdict
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis

__all__ = ["CANNOT_TELL", "ILLNESSES", "Verdict", "verdicts"]

_RULES: tuple[Callable[[LayerDiagnosis, int], Verdict | None], ...] = (
    *(exploding, default_start, saturated_forget_gate, vanishing, cannot_tell),
    *(padding, unnormalised_input),
    *(stacked_orthogonal, doubled_bias, denormals),
)

# What follows from another illness of the same layer, and goes with it, is not said a second time.
_EXPLAINED = {
    "unnormalised_input": {"exploding", "saturated_forget_gate", "vanishing"},
    "default_start": {"vanishing"},
    "saturated_forget_gate": {"vanishing"},
}


def verdicts(diagnosis: Diagnosis) -> tuple[Verdict, ...]:
    """What is wrong, the gravest first; nothing where the model is healthy.

    Every rule reads the measurements alone, layer by layer, and has a bar that its evidence names:

    ===================== ==============================================================================================
    exploding             backward profile at ``length`` above 2^10 of its value after one step, by two standard errors;
                          its rate and the leading Lyapunov exponent above 0, likewise
    unnormalised_input    first layers only: ``sqrt(input_var E[x^2])`` above ln 99, below 2^-10; or by feature a mean
                          of ten standard deviations that drives by more than 1
    padding               first layers only: of the steps, 5 % more repeat the last row than the first
    default_start         recurrent entries within ±1/sqrt(N), uniform at p > 0.001, and vanishing as below
    stacked_orthogonal    singular values of the stacked matrix equal to 1 %, those of a gate's own not
    saturated_forget_gate more than half of the units keep for over 100 lengths; or 25 % of the gate's values below 0.01
                          and vanishing as below
    vanishing             backward profile at ``length`` below 2^-10 of its value after one step, by two standard errors
    doubled_bias          the remember gate's two bias vectors alike, both with a mean beyond ±1/sqrt(N), in a layer as
                          it was drawn (`start_of`)
    denormals             more than 1 % of the numbers in the gradient or the outputs denormal, and a pass at least 1.25
                          times slower by it on this CPU (see `isornn.diagnosis.Denormals`)
    cannot_tell           sequences shorter than half of ``length`` in which neither bar is passed; unmeasured modules
    ===================== ==============================================================================================

    Args:
        diagnosis: of `measure`.

    >>> import torch
    >>> from torch import nn
    >>> from isornn.diagnosis import measure
    >>> model = nn.LSTM(4, 32, batch_first=True)
    >>> found = verdicts(measure(model, torch.randn(4, 60, 4), theory=False))
    >>> [(verdict.illness, verdict.place) for verdict in found]
    [('default_start', 'LSTM l0')]
    >>> print(found[0].remedy)
    import isornn
    <BLANKLINE>
    isornn.init.critical_(model, length)
    """
    found = [verdict for layer in diagnosis.layers for verdict in _of_layer(layer, diagnosis.length)]
    for module in diagnosis.unmeasured:
        why = f"Nothing can be said of {module.kind} {module.module}: {module.reason}."
        found.append(Verdict(CANNOT_TELL, module.module or module.kind, why, {"measured": "nothing"}, ""))
    order = [*ILLNESSES, CANNOT_TELL]
    return tuple(sorted(found, key=lambda verdict: order.index(verdict.illness)))


def _of_layer(layer: LayerDiagnosis, length: int) -> list[Verdict]:
    found = [verdict for rule in _RULES if (verdict := rule(layer, length)) is not None]
    explained = {name for verdict in found for name in _EXPLAINED.get(verdict.illness, ())}
    return [verdict for verdict in found if verdict.illness not in explained]
