"""The sequence of a recurrent module that can be measured, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from isornn.capture.calls import Call
from isornn.capture.modules import RecurrentModule
from isornn.capture.parts import CaptureError
from isornn.capture.sequences import ALTERED, CapturedSequence, longest_sequence

UNTIED = "its weights are fresh at every step, so that a run cannot be repeated"


def measurable_sequence(
    module: RecurrentModule, calls: Sequence[Call], *, refused: str | None, uncalled: str
) -> CapturedSequence:
    """The longest sequence of the module's calls.

    Args:
        refused: why some of its calls could not be read; ``None`` where all were.
        uncalled: the reason where there is no call.

    Raises:
        CaptureError: the reason for which none can be measured.
    """
    reason = refused
    if reason is None and module.untied:
        reason = UNTIED
    if reason is None and not calls:
        reason = uncalled
    if reason is not None:
        raise CaptureError(reason)
    found = longest_sequence(module, calls)
    if found.altered:
        raise CaptureError(ALTERED)
    return found
