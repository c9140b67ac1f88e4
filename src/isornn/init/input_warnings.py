"""Warnings of what a start is drawn for: an input that training may not have, or that no start makes up for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from isornn.capture.calls import Call
from isornn.capture.modules import RecurrentModule, has_own_forward
from isornn.capture.parts import CaptureError
from isornn.capture.run import capture, is_users
from isornn.capture.sequences import CapturedInputs, CapturedSequence, all_inputs, longest_sequence
from isornn.capture.use import reads_batch
from isornn.init.feature_sizes import wrong_with_data
from isornn.init.layer_input import LayerInput
from isornn.init.received import received_by
from isornn.modes import unhindered, usual_modes
from isornn.nn.layer_step import LayerStep
from isornn.nn.sequences import within
from isornn.nn.upwards import own_time
from isornn.warn import warn

_HALF_PRECISION = 0.05  # of the largest value; bfloat16 and some steps of it
_OTHER_INPUT = 2.0  # times as large or as long as in eval mode is another input in training; dropout's is below


class StandardisedInput(UserWarning):
    """A start drawn without a batch or law of the input, as if every layer's input had mean 0 and variance 1.

    >>> import warnings
    >>> from isornn.init import critical_
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = critical_(nn.GRU(1, 8), length=100)
    >>> caught[0].category.__name__
    'StandardisedInput'
    """


class UnnormalisedInput(UserWarning):
    """A start for data whose features have means or scales that weights and biases make up for only at first, or rare
    values that are far larger than the others.

    >>> import warnings
    >>> from isornn.init import critical_
    >>> kelvin = 290 + torch.randn(8, 20, 2)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = critical_(nn.GRU(2, 8, batch_first=True), batch=kelvin)
    >>> caught[0].category.__name__
    'UnnormalisedInput'
    """


def warn_of_unread(error: CaptureError) -> None:
    warn(f"{error}; set for standardised input", StandardisedInput)


def warn_of_shared(found: RecurrentModule, others: Sequence[RecurrentModule]) -> None:
    own = set(map(id, found.module.parameters(recurse=False)))
    for other in others:
        if own.intersection(map(id, other.module.parameters(recurse=False))):
            warn(f"{found.name}: it shares parameters with {other.name}, and sets them for its own input")


@usual_modes()
def warn_of_unnormalised(where: str, received: LayerInput, captured: CapturedInputs, batch: Any) -> None:
    x = captured.sequences.values
    if reads_batch(x, batch) is True:
        wrong = wrong_with_data(received, x, captured.lengths)
    else:
        wrong = received.unnormalised(each=False)
    if wrong is not None:
        warn(f"{where}: the features of its input {wrong}", UnnormalisedInput)


def warn_of_other_input_in_training(
    model: nn.Module, modules: Sequence[RecurrentModule], batch: Any, length: float | None
) -> None:
    """Name what is set for the input that it has in eval mode and has another one in training, as with targets that a
    decoder reads there; or, without a length, as many steps. A model that cannot be run so, as without its targets, is
    not judged, nor what forward hooks change: one that waits for the first training step is not called."""
    found_wrong = list[str]()
    if not any(map(is_users, model.modules())):  # all others are in eval mode anyway
        return
    with unhindered(), suppress(Exception):
        runs = [capture(model, modules, batch, None, training=mode, hooks=False).calls for mode in (False, True)]
        for found in modules:
            as_set, in_training = (_size_and_steps(found, calls[found.module]) for calls in runs)
            if as_set is None or in_training is None:
                continue
            if _unlike(as_set[0], in_training[0]):
                sizes = f"{as_set[0]:.2g}; in training mode that is {in_training[0]:.2g}"
                differs = f"input in eval mode, of root mean square {sizes}"
            elif length is None and _unlike(as_set[1], in_training[1]):
                differs = f"{as_set[1]} steps in eval mode; in training mode these are {in_training[1]}"
            else:
                continue
            found_wrong.append(
                f"{found.label}: it is set for its {differs}. If it reads targets there (teacher "
                "forcing), run the model so: batch=lambda model: model.train()(...)",
            )
    for wrong in found_wrong:  # outside, as a warning may be an error
        warn(wrong)


def _unlike(one: float, other: float) -> bool:
    return max(one, other) > _OTHER_INPUT * min(one, other)


@usual_modes()
def _size_and_steps(found: RecurrentModule, calls: Sequence[Call]) -> tuple[float, int] | None:
    """Of all inputs the root mean square, and the steps of the longest sequence; ``None`` where that is not known."""
    try:
        inputs = all_inputs(found, calls) if calls else None
    except CaptureError:
        inputs = None
    if inputs is None:
        return None
    inside = within(inputs.lengths, len(inputs.sequences.values))
    size = float(inputs.sequences.values[inside].double().square().mean().sqrt())
    return size, int(inputs.lengths.max())


@usual_modes()
def warn_of_own_forward(found: RecurrentModule, calls: Sequence[Call]) -> None:
    """Where its forward makes something else of its input than its weights."""
    if has_own_forward(found.module) and not _follows_its_class(found, longest_sequence(found, calls)):
        warn(
            f"{found.label}: its forward is its own, and does not return what its weights make of its "
            "input; it is set for that input, not for what forward may make of it",
        )


def _follows_its_class(found: RecurrentModule, sequence: CapturedSequence) -> bool:
    """Whether its outputs are those of its weights on its inputs, as far as half precision shows; not judged where it
    was given a state."""
    if sequence.initial is not None:
        return True
    whole = replace(sequence.sequences, lengths=sequence.lengths)
    top = max(layer.layer for layer in found.layers)
    received = received_by(found, CapturedInputs(whole, sequence.previous))
    outputs = [
        own_time(whole, LayerStep.of(one.layer).run(one.gate_inputs()), one.layer.direction)
        for one in received
        if one.layer.layer == top
    ]
    inside = within(sequence.lengths, len(sequence.output))
    made, returned = torch.cat(outputs, -1)[inside], sequence.output.double()[inside]
    return bool((made - returned).abs().max() <= _HALF_PRECISION * made.abs().max())
