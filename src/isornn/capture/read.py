"""What a model gives a layer to start from, and which results it reads, by the gradients of what it makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isornn.capture.sequences import CapturedSequence


def unread_shorter(found: CapturedSequence) -> int:
    """How many sequences are shorter than the longest where nothing is read of any of these, and of all the longest
    the output at their last step alone.

    So it is where step -1 of the padded outputs is read; 0 where no lengths were given, or there are no gradients.
    """
    joined_by_row = found.of_rows is not None  # whose lengths are those of episodes
    if found.sequences.lengths is None or joined_by_row or found.of_output is None:
        return 0
    if any(bool(_any(part).any()) for states in (found.of_ends or {}).values() for layer in states for part in layer):
        return 0
    read = _any(found.of_output)
    shorter = (found.lengths < found.lengths.max()).to(read.device)
    as_padded = not bool(read[:-1].any()) and not bool(read[-1, shorter].any()) and bool(read[-1, ~shorter].all())
    return int(shorter.sum()) if as_padded else 0


def reads_repeated_end(found: CapturedSequence, directions: int) -> bool | None:
    """Whether anything of the forward direction is read at steps that only repeat their sequence's last row, as padding
    does.

    A reverse direction runs over these steps first, so all that it returns depends on them. ``None`` where there are no
    gradients.
    """
    if found.of_output is None or found.of_ends is None:
        return None
    x = found.sequences.values
    same = (x[1:] == x[:-1]).all(-1).flip(0).long().cumprod(0).flip(0).bool()
    repeated = torch.cat([torch.zeros_like(same[:1]), same]) if len(same) else torch.zeros_like(_any(x))
    ends = [(time, part) for time, states in found.of_ends.items() for layer in states[::directions] for part in layer]
    at_end = any(bool((_any(part) & repeated[time - 1]).any()) for time, part in ends)
    return at_end or bool((_any(found.of_output.chunk(directions, -1)[0]) & repeated).any())


def unread_places(found: CapturedSequence, directions: int) -> tuple[tuple[int, int], ...]:
    """Layers and directions, counted from 0, of which nothing is read, neither by the model nor by a layer above.

    So it is with ``h_n[0]`` of two layers, and with ``h_n[-1]`` of two directions. None where nothing of the module is
    read, where it runs over several separate sequences, or where there are no gradients.
    """
    if found.of_output is None or found.of_ends is None or found.chains > 1:
        return ()
    layers = len(next(iter(found.of_ends.values()))) // directions
    places = [(layer, direction) for layer in range(layers) for direction in range(directions)]
    read = {place for place in places if _reads_at_ends(found, place[0] * directions + place[1])}
    read |= {(layers - 1, side) for side, part in enumerate(found.of_output.chunk(directions, -1)) if bool(part.any())}
    if not read:
        return ()
    highest, _ = max(read)  # both directions of the layers below are its input
    return tuple(place for place in places if place[0] >= highest and place not in read)


def _reads_at_ends(found: CapturedSequence, place: int) -> bool:
    """Whether the state of a layer and direction, numbered as in ``h_n``, is read where calls end."""
    return any(bool(part.any()) for states in (found.of_ends or {}).values() for part in states[place])


def reads_at_its_start(found: CapturedSequence, direction: int, directions: int) -> bool:
    """Whether of the last layer's forward (0) or reverse (1) direction only the output at its own first step is read.

    There it has read that one step. False where there are no gradients.
    """
    if direction >= directions or found.of_output is None or int(found.lengths.min()) < 2:
        return False
    if _reads_at_ends(found, direction - directions):
        return False
    read = _any(found.of_output.chunk(directions, -1)[direction])
    first = found.lengths.to(read.device) - 1 if direction else torch.zeros_like(found.lengths, device=read.device)
    at_first = torch.arange(len(read), device=read.device).unsqueeze(1) == first
    return bool(read.any()) and not bool((read & ~at_first).any())


def state_sizes(states: Sequence[str], found: CapturedSequence) -> dict[str, float]:
    """By state, the root mean square of the initial one, over layers; without those that are 0."""
    sizes: dict[str, float] = {}
    for layer in found.initial or ():
        for name, value in zip(states, layer, strict=True):
            sizes[name] = max(sizes.get(name, 0.0), float(value.double().square().mean().sqrt()))
    return {name: size for name, size in sizes.items() if size > 0}


def _any(gradient: Tensor) -> Tensor:
    """Where a gradient ``(..., features)`` is not 0; e^-100 of a mask that is added to scores counts as 0."""
    return (gradient.abs() > torch.finfo(gradient.dtype).tiny).any(-1)
