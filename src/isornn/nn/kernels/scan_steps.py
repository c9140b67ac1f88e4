"""All steps of a cell at once, where every state is affine in itself alone: ``s_t = A_t s_(t-1) + B_t``.

A scan finds the states, and backwards their gradients; everything else is the stage's statements on whole sequences.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell
from isornn.nn.kernels.device import scan_on_device
from isornn.nn.kernels.operations import aten
from isornn.nn.kernels.planning import schedule_of
from isornn.nn.kernels.schedule import Row, Schedule, Statement, rows_of
from isornn.nn.kernels.torch_steps import called, part_of, value_of, written


@functools.cache
def carries_affinely(cell: Cell) -> bool:
    """Whether every state is affine in its own old value and depends on no other, and nothing is multiplied.

    >>> from isornn.cells import TLSTM, TMR
    >>> carries_affinely(TLSTM()), carries_affinely(TMR())
    (True, False)
    """
    schedule = schedule_of(cell)
    if schedule.forward_products:
        return False
    parts = {"drive": len(schedule.layout.driven), "saved": schedule.saved}
    blank = torch.empty(1, 1, 1, device="meta")  # only operations count, not numbers
    arrays = {name: blank[:, :, None].expand(1, 1, count, 1) for name, count in parts.items()}
    arrays |= {f"unit.{place}": blank for place in range(len(schedule.program.units))}
    arrays |= {f"initial.{name}": blank for name in cell.states} | {"x": blank}
    try:
        for name in cell.states:
            _affine(schedule, name, arrays)
    except _NotAffine:
        return False
    return True


def run_by_scan(schedule: Schedule, direction: str, arrays: dict[str, Tensor]) -> None:
    """A pass over the sequence, written to the arrays."""
    (_forward if direction == "forward" else _backward)(schedule, arrays)


def _forward(schedule: Schedule, arrays: dict[str, Tensor]) -> None:
    ((stage,), states) = schedule.forward, schedule.program.cell.states
    for name in states:
        new, carried = arrays[f"new.{name}"], _affine(schedule, name, arrays)
        slope, rest = (part.expand_as(new).contiguous() for part in (carried.slope, carried.rest))
        new.copy_(scan_on_device(slope, rest, arrays[f"initial.{name}"]))
    steps, batch, width = arrays[f"new.{states[0]}"].shape
    arrays["saved"] = arrays["saved"].new_empty(steps, batch, schedule.saved, width)  # of all steps, kept or not
    _AllSteps(arrays).run(_needed(stage.statements, known=[Row(f"new.{name}") for name in states]))


def _backward(schedule: Schedule, arrays: dict[str, Tensor]) -> None:
    """``k_t = A_t k_(t+1) + E_t`` for the gradient k_t of a state before step t.

    The statements are linear in gradients: of those of the states after the step alone they make A, without them E.
    """
    ((stage,), states) = schedule.backward, schedule.program.cell.states
    whole = arrays[f"new.{states[0]}"]
    carried = [Row(f"carried.{name}") for name in states]
    to_old = _needed(stage.statements, targets=carried)
    one, zero = whole.new_ones(()).expand_as(whole), whole.new_zeros(()).expand_as(whole)
    direct = {Row(name): zero for name in arrays if name.startswith("direct.")}
    slopes = _AllSteps(arrays, direct | dict.fromkeys(carried, one)).values_of(to_old)
    rests = _AllSteps(arrays, dict.fromkeys(carried, zero)).values_of(to_old)
    of_later: dict[Row, Tensor] = {}
    for row in carried:
        slope, rest = (torch.as_tensor(found[row]).to(whole).expand_as(whole).contiguous() for found in (slopes, rests))
        nothing = torch.zeros_like(whole[0])
        total = scan_on_device(slope, rest, nothing, reverse=True)
        of_later[row] = torch.cat([total[1:], nothing[None]])
        arrays[row.array].copy_(total[0])
    others = {one.target for one in stage.statements if not one.target.array.startswith(("scratch", "carried"))}
    _AllSteps(arrays, of_later).run(_needed(stage.statements, targets=others))


class _AllSteps:
    """Runs statements on whole sequences.

    Args:
        arrays: what is read and, but for gradients that are carried and scratch, written to.
        given: rows that are not those of the arrays.
    """

    def __init__(self, arrays: Mapping[str, Tensor], given: Mapping[Row, Any] | None = None) -> None:
        self.arrays, self.values = arrays, dict(given or {})

    def values_of(self, statements: Iterable[Statement]) -> dict[Row, Any]:
        """What they compute, written nowhere."""
        for statement in statements:
            self.values[statement.target] = value_of(statement.value, self.row)
        return self.values

    def run(self, statements: Iterable[Statement]) -> None:
        """Write what they compute."""
        for statement in statements:
            target = statement.target
            value = value_of(statement.value, self.row)
            if target.array.startswith(("scratch", "carried")):
                self.values[target] = value
            elif target.array.startswith("dunit"):
                self.arrays[target.array].add_(value.sum(0))
            else:
                written(part_of(self.arrays[target.array], target), value)

    def row(self, row: Row) -> Any:
        """A row of all steps, (T, B, N), (1, B, N) or (N,)."""
        if row not in self.values:
            kind, _, name = row.array.partition(".")
            if kind == "old":  # kept, since what follows it may be written over
                old = torch.cat([self.arrays[f"initial.{name}"][None], self.arrays[f"new.{name}"][:-1]])
                self.values[row] = old
                return old
            return part_of(self.arrays[row.array], row)
        return self.values[row]


def _needed(
    statements: Sequence[Statement], *, targets: Iterable[Row] | None = None, known: Iterable[Row] = ()
) -> list[Statement]:
    """The statements that it takes to write the targets, or everything but what is known."""
    wanted = {s.target for s in statements if not s.target.array.startswith("scratch")}
    wanted = (wanted if targets is None else set(targets)) - set(known)
    found = []
    for statement in reversed(statements):
        if statement.target in wanted:
            found.append(statement)
            wanted -= {statement.target} if not statement.adds else set()
            wanted |= rows_of(statement.value) - set(known)
    return found[::-1]


# -- affine in one state ----------------------------------------------------------------------------------------------


class _NotAffine(ValueError):
    """A state is not affine in its old value."""


@dataclass(frozen=True)
class _Affine:
    """``slope state + rest``, of one state."""

    state: str
    slope: Any
    rest: Any


def _affine(schedule: Schedule, state: str, arrays: Mapping[str, Tensor]) -> _Affine:
    """A state's new values by its old ones, for all steps.

    Raises:
        _NotAffine: they are not affine in these, or depend on another state.
    """
    (stage,) = schedule.forward
    like = arrays[f"initial.{state}"]
    found: dict[Row, Any] = {}

    def row(of: Row) -> Any:
        if of in found:
            return found[of]
        kind, _, name = of.array.partition(".")
        if kind == "old":
            return _Affine(name, like.new_ones(()), like.new_zeros(()))
        return part_of(arrays[of.array], of)

    target = Row(f"new.{state}")
    for statement in _needed(stage.statements, targets=[target]):
        found[statement.target] = value_of(statement.value, row, _applied)
    new = found[target]
    if not isinstance(new, _Affine):
        new = _Affine(state, like.new_zeros(()), torch.as_tensor(new).to(like))
    if new.state != state:
        raise _NotAffine(state)
    return new


_JOINTLY_LINEAR = {aten.add.Tensor, aten.sub.Tensor, aten.neg.default}


def _applied(function: Any, *args: Any) -> Any:
    """The operation of values of which some are affine in a state."""
    affine = [value for value in args if isinstance(value, _Affine)]
    if not affine:
        return called(function, *args)
    states, first = {value.state for value in affine}, affine[0]
    if len(states) > 1:
        raise _NotAffine(function)

    def parts(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        slopes = [v.slope if isinstance(v, _Affine) else torch.zeros_like(first.slope) for v in values]
        return slopes, [v.rest if isinstance(v, _Affine) else v for v in values]

    if function in _JOINTLY_LINEAR:
        slopes, rests = parts(args)
        return _Affine(first.state, called(function, *slopes), called(function, *rests))
    if function is aten.where.self and not isinstance(args[0], _Affine):
        slopes, rests = parts(args[1:])
        return _Affine(first.state, called(function, args[0], *slopes), called(function, args[0], *rests))
    if len(affine) == 1 and (function is aten.mul.Tensor or (function is aten.div.Tensor and args[0] is first)):
        slope, rest = ([part if v is first else v for v in args] for part in (first.slope, first.rest))
        return _Affine(first.state, called(function, *slope), called(function, *rest))
    raise _NotAffine(function)
