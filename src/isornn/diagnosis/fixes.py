"""Corrections of a layer's weights: functions that a finding prints as a call, and that `fix_` calls the same way."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from isornn.capture.modules import RecurrentModule, recurrent_modules
from isornn.cells import Cell, Input, Spec
from isornn.diagnosis.json_record import layer_name
from isornn.diagnosis.records import LayerDiagnosis
from isornn.diagnosis.weights import doubled_gates, weight_facts, why_kept
from isornn.init.data import redraw_for_batch_
from isornn.init.naming import redraw_named
from isornn.init.writing import check_settable
from isornn.nn import draws
from isornn.nn.gate_tensors import RecurrentLayer
from isornn.nn.ownership import check_alone, check_writable
from isornn.nn.rnn import suffix
from isornn.nn.spectral import parametrize_spectral_
from isornn.theory.critical_points.point import critical

Correction = Callable[..., str]
_SHORTEST = 2  # steps that a start can be drawn for
_COMMENT = 77  # characters of a comment's line, after "# "


@dataclass(frozen=True)
class Fix:
    """A call of one of this module's functions on one layer.

    Args:
        function: the function.
        layer: the layer's name.
        arguments: those after the model and the layer.
        notes: comments to print above the call.
        measured: whether it takes the batch too, to measure what the layer receives.
        choice: why only the user can say whether it is right, so that `fix_` does not make it; empty where it is.
    """

    function: Correction
    layer: str
    arguments: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    measured: bool = False
    choice: str = ""

    @property
    def code(self) -> str:
        """Python that makes the call, where ``model`` and the ``batch`` it is called with are known."""
        given = ", ".join(["model", repr(self.layer), *map(repr, self.arguments), *["batch"] * self.measured])
        notes = [f"# {line}" for note in self.notes for line in textwrap.wrap(note, _COMMENT)]
        return "\n".join(["import isornn", "", *notes, f"isornn.diagnosis.{self.function.__name__}({given})"])

    def __call__(self, model: nn.Module, batch: Any = None, generator: torch.Generator | None = None) -> str:
        given = {"batch": batch} if self.measured else {}
        return self.function(model, self.layer, *self.arguments, **given, generator=generator)


@torch.no_grad()
def redraw_(
    model: nn.Module,
    layer: str,
    length: int,
    batch: Any = None,
    *,
    generator: torch.Generator | None = None,
) -> str:
    """Initialise one layer again for sequences of ``length`` steps, as `isornn.init.critical_` does, given a batch.

    A cell that is not pointwise has no theory and gets orthogonal matrices (`isornn.init.orthogonal_`).

    Args:
        model: the model.
        layer: a layer and direction by its name in the report: ``"encoder.rnn l1"``.
        length: T, from 2 to 1e6.
        batch: what the model is called with, from which the layer's input is measured; without it the input is taken as
            standardised.
        generator: source of all draws; torch's global one if ``None``.

    Returns:
        What was done.

    Raises:
        ValueError: no such layer.
        ModuleError: parametrised weights; gates that need biases and have none; DistributedDataParallel in several
            processes.
        SpecError: length.

    >>> redraw_(nn.GRU(3, 5), "GRU l0", 100)
    'drawn again by the critical start'
    """
    found = _to_change(model, layer)
    check_writable(found)
    if not found.cell.pointwise:
        redraw_named("orthogonal", found, generator)
        return "drawn again by the orthogonal start"
    if batch is not None:
        redraw_for_batch_(model, found, batch, length, _critical, generator)
        return "drawn again by the critical start for the input that it receives"
    spec = _critical(found.cell, length, Input())
    check_settable(found, spec)
    draws.redraw(found, spec, generator)
    return "drawn again by the critical start"


def _critical(cell: Cell, length: float, input: Input) -> Spec:
    return critical(cell, length, input=input).spec


@torch.no_grad()
def orthogonal_by_gate_(model: nn.Module, layer: str, *, generator: torch.Generator | None = None) -> str:
    """Draw each gate's recurrent matrix orthogonal, not the stack of them.

    A parametrised stack is replaced by one that keeps each gate's own matrix orthogonal, with new parameters.

    Args:
        model, layer, generator: as in `redraw_`.

    Returns:
        What was done.

    Raises:
        ValueError: no such layer.

    >>> gru = nn.GRU(3, 4)
    >>> orthogonal_by_gate_(gru, "GRU l0")
    "each gate's own recurrent matrix is drawn orthogonal"
    >>> r, z, n = gru.weight_hh_l0.split(4)
    >>> torch.allclose(z @ z.T, torch.eye(4), atol=1e-5)
    True
    """
    found = _to_change(model, layer)
    name = "weight_hh" + ("" if isinstance(found.module, nn.RNNCellBase) else suffix(found.layer, found.direction))
    if parametrize.is_parametrized(found.module, name):
        parametrize.remove_parametrizations(found.module, name)
        parametrize_spectral_(found.module, name, margin=0.0)
        return "each gate's own recurrent matrix is kept orthogonal, by new parameters"
    check_writable(found)
    for gate in found.gates.values():
        if gate.recurrent is not None:
            gate.recurrent.copy_(draws.haar(tuple(gate.recurrent.shape), generator))
    return "each gate's own recurrent matrix is drawn orthogonal"


@torch.no_grad()
def single_bias_(model: nn.Module, layer: str, *, generator: torch.Generator | None = None) -> str:
    """Set ``bias_hh`` to 0 in the gates where it repeats ``bias_ih``; the two add.

    Args:
        model, layer: as in `redraw_`.
        generator: not used; every correction has one.

    Returns:
        What was done.

    Raises:
        ValueError: no such layer.

    >>> lstm = nn.LSTM(3, 4)
    >>> for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
    ...     bias.data[4:8] = 1.0
    >>> single_bias_(lstm, "LSTM l0")
    'the second bias of f is 0 now'
    >>> lstm.bias_hh_l0[4:8].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    found = _to_change(model, layer)
    check_writable(found)
    doubled = doubled_gates(weight_facts(found), found.hidden)
    for gate in doubled:
        found.gates[gate].biases[1].zero_()
    return f"the second bias of {', '.join(doubled)} is 0 now"


def _to_change(model: nn.Module, name: str) -> RecurrentLayer:
    found = layer_by_name(model, name)
    check_alone(model)
    return found


def layer_by_name(model: nn.Module, name: str) -> RecurrentLayer:
    layers = dict(named_layers(recurrent_modules(model)))
    by_place = {layer.where: layer for layer in layers.values()}  # as `isornn.init.critical_` reports it
    if name not in layers | by_place:
        raise ValueError(f"layer: {name!r} is not allowed; the model has {', '.join(layers)}")
    return (layers | by_place)[name]


def named_layers(modules: Iterable[RecurrentModule]) -> Iterator[tuple[str, RecurrentLayer]]:
    for module in modules:
        for layer in module.layers:
            yield layer_name(module.name, module.kind, layer.layer, layer.direction), layer


def redraw_fix(layer: LayerDiagnosis, trained: bool, *caveats: str) -> Fix:
    """`redraw_` for the input that the layer then receives; ``caveats`` are comments above it."""
    notes = [*caveats]
    if trained:
        why = why_kept(layer.weights)
        notes.append(f"{why[0].upper()}{why[1:]}. This throws away what it has learnt.")
    if layer.info.parametrised:
        notes.append(
            "Its weights are computed from others, as by weight norm or weight drop: do this before it is wrapped."
        )
    if layer.memory.gate is not None and not layer.info.bias:
        notes.append("Its gates need biases: build it with bias=True.")
    return Fix(redraw_, layer.info.name, (max(layer.length, _SHORTEST),), tuple(notes), measured=True)
