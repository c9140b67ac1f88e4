"""Apply the corrections that findings name, where a layer is still as it was initialised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from isornn.cells import SpecError
from isornn.diagnosis.advice import Advice
from isornn.diagnosis.facts import WeightFacts
from isornn.diagnosis.finding import Finding
from isornn.diagnosis.fixes import Fix, layer_by_name, named_layers, redraw_
from isornn.diagnosis.weights import untrained_evidence, weight_facts, why_kept
from isornn.init.received import in_forward_order
from isornn.nn.gate_tensors import ModuleError
from isornn.nn.ownership import check_writable

_FIRST = {
    "unnormalised_input": "normalise the inputs of {} first",
    "heavy_tails": "take logarithms of the inputs of {}, or clip them, first",
}
"""What comes before a start that is drawn for the input, by the kind that says so."""


@dataclass(frozen=True)
class Outcome:
    """What became of a layer's findings, in a sentence, and whether the layer was changed."""

    sentence: str
    changed: bool = False

    def of(self, layer: str) -> Outcome:
        return Outcome(f"{layer}: {self.sentence}", self.changed)


def fix_(
    model: nn.Module, findings: Sequence[Finding], batch: Any = None, *, generator: torch.Generator | None = None
) -> list[str]:
    """Apply in place the corrections that findings name, layer by layer, where the layer is still as initialised.

    Layers are corrected in the order in which the model calls them on the batch, so that each is drawn for what it
    receives from those below as they then are.

    A layer that is redrawn needs no other correction. Nothing is changed for findings about data, torch's modes or too
    short sequences, where inputs are not normalised or have heavy tails, which comes before a start that is drawn for
    them, in a layer that looks trained (`untrained_evidence` finds nothing), and in one whose weights cannot be written
    to.

    Args:
        model: the model that was measured.
        findings: of `findings`.
        batch: what the model was measured on; without it inputs are taken as standardised.
        generator: source of all draws; torch's global one if ``None``.

    Returns:
        What was changed, and what was not with the reason and what to do instead; a sentence for each layer or finding.

    Raises:
        ValueError: a finding's layer is not in the model.

    >>> model = nn.RNN(4, 32, batch_first=True)
    >>> from isornn.diagnosis import findings, measure
    >>> batch = torch.randn(8, 60, 4)
    >>> fix_(model, findings(measure(model, batch)), batch, generator=torch.Generator().manual_seed(0))
    ['RNN l0: drawn again by the critical start for the input that it receives (default_start).']
    """
    return [outcome.sentence for outcome in applied(model, findings, batch, generator)]


def applied(
    model: nn.Module, findings: Sequence[Finding], batch: Any, generator: torch.Generator | None
) -> list[Outcome]:
    """What `fix_` does, returned as outcomes in place of sentences."""
    done, layers = list[Outcome](), {finding.fix.layer for finding in findings if isinstance(finding.fix, Fix)}
    # Before anything is drawn: layers may share parameters.
    facts = {name: weight_facts(layer_by_name(model, name)) for name in layers}
    raw = next((finding for finding in findings if finding.kind in _FIRST), None)
    for name in _in_order(model, dict.fromkeys(finding.layer for finding in findings), batch):
        own = [finding for finding in findings if finding.layer == name]
        for finding in own:
            left = f"{name or 'the whole model'}: left alone ({finding.kind})"
            if isinstance(finding.fix, Advice):
                done.append(Outcome(f"{left}: {finding.fix.why}."))
            elif finding.fix is None:
                done.append(Outcome(f"{left}: {finding.sentence}"))
        of_weights = [finding for finding in own if isinstance(finding.fix, Fix)]
        if of_weights and raw is not None:
            kinds = ", ".join(finding.kind for finding in of_weights)
            first = _FIRST[raw.kind].format(raw.layer)
            done.append(Outcome(f"{name}: left alone ({kinds}): {first}, then diagnose again."))
        elif of_weights:
            done += [outcome.of(str(name)) for outcome in _fixed(model, of_weights, facts, batch, generator)]
    return done


def _in_order(model: nn.Module, names: Iterable[str | None], batch: Any) -> list[str | None]:
    """Layers in forward order if a batch is given; the model as a whole and other modules last, in the given order."""
    layers = [] if batch is None else [name for name, _ in named_layers(in_forward_order(model, batch))]
    return sorted(names, key=lambda name: layers.index(name) if name in layers else len(layers))


def _fixed(
    model: nn.Module,
    findings: Sequence[Finding],
    as_found: Mapping[str, WeightFacts],
    batch: Any,
    generator: torch.Generator | None,
) -> list[Outcome]:
    fixes = {finding.kind: finding.fix for finding in findings if isinstance(finding.fix, Fix)}
    facts = as_found[next(iter(fixes.values())).layer]
    kinds = ", ".join(fixes)
    try:
        redraw = next((fix for fix in fixes.values() if fix.function is redraw_), None)
        if redraw is not None:
            # First: computed weights, as by weight drop, have no law that shows whether they are trained.
            check_writable(layer_by_name(model, redraw.layer))
        if untrained_evidence(facts) is None:
            kept = f"left alone ({kinds}): {why_kept(facts)}; a new start would throw away what it has learnt."
            return [Outcome(kept)]
        if redraw is not None:
            return [Outcome(f"{redraw(model, batch, generator)} ({kinds}).", changed=True)]
        return [
            Outcome(f"left alone ({kind}): {fix.choice}.")
            if fix.choice
            else Outcome(f"{fix(model, batch, generator)} ({kind}).", changed=True)
            for kind, fix in fixes.items()
        ]
    except (ModuleError, SpecError) as refused:
        return [Outcome(f"left alone ({kinds}): {refused}.")]
