"""All checks on a measured layer: each has its condition, its sentence, its evidence and its fix in one class."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from isornn.diagnosis import advice
from isornn.diagnosis.data_checks import (
    CostlyDenormals,
    DoubledBias,
    HeavyTails,
    Padding,
    SmallFeatures,
    StackedOrthogonal,
    UnnormalisedInput,
    UnnormalisedState,
    is_computed,
)
from isornn.diagnosis.finding import CANNOT_TELL, NOT_FINITE, Check, Finding
from isornn.diagnosis.gradient_checks import (
    Amplified,
    DefaultStart,
    EdgeOfChaos,
    Exploding,
    SaturatedForgetGate,
    TooShort,
    Vanishing,
)
from isornn.diagnosis.not_finite import OF_GRADIENT
from isornn.diagnosis.records import Diagnosis, LayerDiagnosis, Unmeasured
from isornn.diagnosis.use_checks import (
    AlongBatch,
    AxesMixed,
    ForwardAtStart,
    NotDetached,
    OfUse,
    ReverseAtStart,
    ShorterUnread,
    StateCarried,
    StateNotCarried,
    StatesExchanged,
    Truncated,
    Unused,
    ZeroGradient,
)

NOT_REACHED = "not_reached"
_COMPUTES = "computes with NaN or infinite numbers"

_INPUT = UnnormalisedInput()

# Most severe first: what stops training at once, what affects the input of all layers, what shortens their memory, what
# only costs time.
CHECKS: tuple[Check, ...] = (
    AlongBatch(),
    AxesMixed(),
    StateNotCarried(),
    StatesExchanged(),
    NotDetached(),
    Unused(),
    ZeroGradient(),
    ShorterUnread(),
    Exploding(),
    Amplified(),
    _INPUT,
    SmallFeatures(),
    HeavyTails(),
    UnnormalisedState(),
    Padding(),
    ForwardAtStart(),
    ReverseAtStart(),
    DefaultStart(),
    StackedOrthogonal(),
    SaturatedForgetGate(),
    Vanishing(),
    EdgeOfChaos(),
    Truncated(),
    StateCarried(),
    DoubledBias(),
    CostlyDenormals(),
    TooShort(),
)
KINDS = (NOT_FINITE, NOT_REACHED, *(check.kind for check in CHECKS if check.kind != CANNOT_TELL))


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """All findings, most severe first; empty where no check finds anything.

    Every check reads the measurements alone, layer by layer, and has a bar that its evidence names. The classes of
    `isornn.diagnosis.checks` state the conditions. Modules that could not be measured are findings too:
    ``"not_finite"`` where NaN or infinite numbers are the reason, ``"not_reached"`` where they are trained and the
    run did not call them, else ``"cannot_tell"``.

    Args:
        diagnosis: of `measure`.

    >>> import torch
    >>> from torch import nn
    >>> from isornn.diagnosis import measure
    >>> model = nn.LSTM(4, 32, batch_first=True)
    >>> found = findings(measure(model, torch.randn(4, 60, 4), theory=False))
    >>> [(finding.kind, finding.layer) for finding in found]
    [('default_start', 'LSTM l0')]
    >>> print(found[0].remedy)
    import isornn
    <BLANKLINE>
    # Where the last few steps predict the target (isornn memory measures it), the
    # default often trains faster.
    isornn.diagnosis.redraw_(model, 'LSTM l0', 60, batch)
    """
    by_layer = [(is_computed(layer), _of_layer(layer)) for layer in diagnosis.layers]
    if any(_INPUT in of_layer and not computed for computed, of_layer in by_layer):
        for computed, of_layer in by_layer:  # what is computed from inputs that are not normalised often is not either
            if computed:
                of_layer.pop(_INPUT, None)
    of_module = _explained_by_module(diagnosis.layers, [of_layer for _, of_layer in by_layer])
    found = [
        finding
        for layer, (_, of_layer) in zip(diagnosis.layers, by_layer, strict=True)
        for finding in _unexplained(of_layer, of_module[layer.info.module])
    ]
    # A frozen module that a run does not call loses nothing by it, as the target network that a loss calls.
    found += [_unmeasured(module) for module in diagnosis.unmeasured if module.called or module.trained]
    if diagnosis.outside:
        wrong = "; ".join(diagnosis.outside)
        sentence = f"Outside of the recurrent layers, {wrong}."
        found.append(Finding(NOT_FINITE, None, sentence, {"not finite": f"{wrong} (bar: none)"}))
    if diagnosis.loss is not None and not math.isfinite(diagnosis.loss):
        evidence = {"loss on the batch": f"{diagnosis.loss} (bar: finite)"}
        found.append(Finding(NOT_FINITE, None, f"The loss on the batch is {diagnosis.loss}.", evidence))
    order = [*KINDS, CANNOT_TELL]
    return tuple(sorted(found, key=lambda finding: order.index(finding.kind)))


def _of_layer(layer: LayerDiagnosis) -> dict[Check, Finding]:
    return {check: finding for check in CHECKS if (finding := check.find(layer)) is not None}


def _explained_by_module(
    layers: Sequence[LayerDiagnosis], found: Sequence[Mapping[Check, Finding]]
) -> dict[str, set[str]]:
    """By module the kinds that follow in all of its layers from a finding of the whole module."""
    explained: dict[str, set[str]] = {layer.info.module: set() for layer in layers}
    for layer, of_layer in zip(layers, found, strict=True):
        of_module = (check for check in of_layer if isinstance(check, OfUse))
        explained[layer.info.module].update(kind for check in of_module for kind in check.explains)
    return explained


def _unexplained(found: Mapping[Check, Finding], of_module: Collection[str]) -> list[Finding]:
    """The findings that do not follow from another one of the same layer, or from one ``of_module``."""
    explained = {*of_module, *(kind for check in found for kind in check.explains)}
    return [finding for check, finding in found.items() if check.kind not in explained]


def _unmeasured(module: Unmeasured) -> Finding:
    name, what = module.module or module.kind, f"{module.kind} {module.module}".strip()
    if not module.called:
        sentence = (
            f"{what} was never called on this batch: 0 calls, so that such batches do not train it, unless forward "
            "calls it in training mode alone, or computes with its weights without calling it."
        )
        return Finding(NOT_REACHED, name, sentence, {"calls": "0 (bar: at least 1)"}, advice.reach())
    if module.finite:
        return Finding(CANNOT_TELL, name, f"{what} was not measured: {module.reason}.", {"measured": "nothing"})
    evidence = {"first found": f"{module.reason} (bar: none)"}
    computes = "gets NaN or infinite gradients from behind it" if OF_GRADIENT in module.reason else _COMPUTES
    return Finding(NOT_FINITE, name, f"{what} {computes}: {module.reason}.", evidence)
