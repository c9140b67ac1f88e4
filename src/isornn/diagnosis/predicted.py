"""What the theory predicts for a layer, from its weights and the inputs that it has."""

from __future__ import annotations

from dataclasses import replace

import torch

from isornn.cells import Spec, SpecError
from isornn.diagnosis.facts import InputFacts
from isornn.diagnosis.records import Predicted, TiedPrediction
from isornn.init import ModuleError, spec_of
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.theory import TheoryMissing, analyze
from isornn.theory.population.units import Draws
from isornn.theory.tied.analysis import lyapunov_exponent
from isornn.theory.tied.following import follow_tied
from isornn.theory.tied.moments import input_moments
from isornn.theory.tied.paths import TiedLaws

# Steps of the response profile; steps and number of the networks with one draw of weights.
LENGTH, STEPS, NETWORKS = 100, 40, 16


def predicted(layer: RecurrentLayer, inputs: InputFacts) -> Predicted:
    """The theory's prediction for the layer, for Gaussian inputs of the measured means, variance and correlation.

    They are taken to be independent over steps and features. What their means add to gates is known exactly, but where
    the input enters the update itself, too: there a feature's mean is taken to be independent of the unit's biases.

    Response profiles extend over 100 steps; `analyze` has longer ones, and tied networks in full.
    """
    law, means = inputs.law, inputs.feature_means
    known = None if layer.cell.input_enters_pointwise else means
    if known is None:
        law = replace(law, mean=float(means.double().square().mean().sqrt()))
    try:
        spec = spec_of(layer.module, layer.layer, layer.direction, law, means=known)
        untied = analyze(spec, length=LENGTH, generator=torch.Generator().manual_seed(0))
        return Predicted(untied, _tied(spec, layer.hidden))
    except (ModuleError, SpecError, TheoryMissing) as missing:
        return Predicted(None, None, str(missing))


def _tied(spec: Spec, hidden: int) -> TiedPrediction:
    width = 2 ** max(4, min(11, round(torch.tensor(float(hidden)).log2().item())))
    laws = TiedLaws.of(spec)
    draws = Draws(laws.units.batch, NETWORKS, width, torch.Generator().manual_seed(0))
    followed = follow_tied(laws, input_moments(laws, [laws.units.input_correlation]), draws, STEPS, tilted=False)
    return TiedPrediction(STEPS, width, lyapunov_exponent(followed, spec.batch_shape))
