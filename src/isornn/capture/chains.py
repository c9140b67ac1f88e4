"""Which calls of a recurrent module go on with which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from isornn.capture.calls import Call
from isornn.capture.modules import RecurrentModule

# How many unfinished sequences a call may continue: a loop may alternate between some.
_OPEN = 32


def chained(module: RecurrentModule, calls: Sequence[Call]) -> list[list[Call]]:
    """The calls in separate sequences: each goes on from the very state in which the one before ended."""
    chains: list[list[Call]] = []
    for call in calls:
        chain = None
        if call.state is not None and not is_whole(module, call):
            chain = next((chain for chain in reversed(chains[-_OPEN:]) if _goes_on(module, chain[-1], call)), None)
        if chain is None:
            chains.append([call])
        else:
            chain.append(call)
    return chains


def is_whole(module: RecurrentModule, call: Call) -> bool:
    """Whether its sequences end with it: of both directions, or with lengths of their own."""
    return module.directions > 1 or call.lengths is not None or isinstance(call.inputs, PackedSequence)


def _goes_on(module: RecurrentModule, call: Call, later: Call) -> bool:
    # Sequences with lengths of their own end at different steps, so none of them goes on in step with the others.
    if is_whole(module, call) or later.state is None:
        return False
    return all(torch.equal(a, b) for a, b in zip(call.final, later.state, strict=True))


def joined_though_altered(module: RecurrentModule, chains: Sequence[list[Call]]) -> list[list[Call]]:
    """Those together whose state the model has changed in between: see `all_inputs`."""
    whole: list[list[list[Call]]] = []
    for chain in chains:
        first, found = chain[0], None
        if first.state is not None and not is_whole(module, first) and not _starts_alike(chains[0][0], first):
            unfinished = [one for one in whole[-_OPEN:] if not is_whole(module, one[-1][-1])]
            found = next((one for one in reversed(unfinished) if _share_a_row(one[-1][-1], first)), None)
            # A loop that passes states on as they are shows it, so the next sequence is not taken for the same one.
            if found is None and unfinished and len(chain) == len(unfinished[-1][-1]) == 1:
                found = unfinished[-1] if _is_one_step(module, first, unfinished[-1][-1][-1]) else None
        if found is None:
            whole.append([chain])
        else:
            found.append(chain)
    return [[call for chain in one for call in chain] for one in whole]


def _is_one_step(module: RecurrentModule, call: Call, before: Call) -> bool:
    """Whether it may be the step after ``before``, of as many sequences."""
    assert isinstance(call.inputs, Tensor)
    kind: Any = module.module
    steps = 1 if module.steps_by_hand else call.inputs.shape[int(kind.batch_first and call.inputs.dim() == 3)]
    return steps == 1 and all(a.shape == b.shape for a, b in zip(before.final, call.state or (), strict=True))


def _share_a_row(call: Call, later: Call) -> bool:
    """Whether a sequence's state, not 0, is the same in both; of a smaller batch, one of the first sequences."""
    for final, state in zip(call.final, later.state or (), strict=True):
        if final.dim() > 1 and final.shape[-1] == state.shape[-1] and final.shape[-2] >= state.shape[-2]:
            same = (final[..., : state.shape[-2], :] == state).all(-1) & state.bool().any(-1)
            if bool(same.any()):
                return True
    return False


def _starts_alike(first: Call, call: Call) -> bool:
    """Whether the call's state is 0, or the one from which the first started, as one that is learned."""
    state = call.state or ()
    if not any(bool(part.any()) for part in state):
        return True
    return first.state is not None and all(torch.equal(a, b) for a, b in zip(first.state, state, strict=True))
