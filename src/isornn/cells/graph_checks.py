"""A graph tried against the cell that it is of: on random numbers, by its methods themselves."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isornn.cells.cell import Cell, Values
from isornn.cells.errors import CellError
from isornn.cells.graph import INPUT, CellGraph, Leaf, evaluate, name_of, needed


def checked(graph: CellGraph) -> CellGraph:
    """The graph, less the methods that it does not describe; these are ``untraced``, with the reason.

    Raises:
        CellError: an operation over several units or sequences in a cell that is declared pointwise; a method that is
            for single numbers, as by `math.tanh`, or that fails by a TypeError.
    """
    with torch.random.fork_rng(devices=[]):  # of methods that draw random numbers
        _check_takes_tensors(graph)
        graph = _without_random_numbers(graph)
        if graph.cell.pointwise:
            _check_pointwise(graph)
        return _without_what_differs(graph)


def needs_two_axes(graph: CellGraph) -> str | None:
    """The first method that fails on values with more axes than (batch, units), as by an einsum that names two."""
    drawn = _drawn(graph, _UNITS + 1)
    with torch.random.fork_rng(devices=[]):
        for method in ("read", "update", "output"):
            more = {leaf: value[None, :, None] for leaf, value in drawn.items()}
            if _returned(graph.cell, method, drawn) is not None and _returned(graph.cell, method, more) is None:
                return method
    return None


def _check_takes_tensors(graph: CellGraph) -> None:
    """Refuse what could not be traced and does not take tensors of several numbers."""
    drawn = _drawn(graph, _UNITS + 1)
    for method in graph.untraced:
        try:
            _called(graph.cell, method, drawn)
        except CellError:  # which says what is wrong
            raise
        except Exception as error:
            failed = f"{graph.cell.name}.{method}: {str(error).partition(chr(10))[0]}"
            if any(reason in str(error) for reason in _OF_SINGLE_NUMBERS):
                raise CellError(
                    f"{failed}; it is given tensors of all units of all sequences, for which there are torch.tanh, "
                    "torch.where and the like"
                ) from None
            if isinstance(error, TypeError):  # another call would do no better
                raise CellError(failed) from error


# What torch says, of math.tanh, float and int; and of if, and, or, max.
_OF_SINGLE_NUMBERS = ("only one element tensors", "more than one value is ambiguous")


def _check_pointwise(graph: CellGraph) -> None:
    """Evaluate the graph on two sequences of seven units, and on parts of them: these must come out the same. So must
    what the methods return that could not be traced.

    Raises:
        CellError: an operation mixes units or sequences; names the first that does.
    """
    drawn = _drawn(graph, _UNITS)
    checked = functools.partial(_evaluate, graph.cell.name)
    results = needed([*graph.reads.values(), *graph.update.values(), graph.output])
    whole = graph.interpret(drawn.__getitem__, checked, results)
    own = {method: _returned(graph.cell, method, drawn) for method in graph.untraced}
    for what, part in _PARTS:
        values = {leaf: value[part] for leaf, value in drawn.items()}
        alone = graph.interpret(values.__getitem__, checked, results)
        mixing = [
            f"{graph.method_of(node)}: {name_of(node)}"
            for node in graph.nodes
            if node in results and not _same(whole(node), alone(node), part)
        ]
        mixing += [f"{method}: it" for method, found in own.items() if _mixes(graph.cell, method, found, values, part)]
        if mixing:
            raise CellError(
                f"{graph.cell.name}.{mixing[0]} acts on several {what} together; a cell is pointwise, unless it says "
                "pointwise = False, which leaves it without theory"
            )


def _mixes(cell: Cell, method: str, whole: Any, values: Mapping[Leaf, Tensor], part: tuple[slice, slice]) -> bool:
    """Whether a method returns something else for a part of the units; no, if it does so at every call."""
    alone, again = (_returned(cell, method, values) for _ in range(2))
    if (
        whole is None
        or alone is None
        or again is None
        or not all(map(_same, alone, again, [(_ALL, _ALL)] * len(again)))
    ):
        return False
    return not all(_same(of_all, of_part, part) for of_all, of_part in zip(whole, alone, strict=True))


def _without_random_numbers(graph: CellGraph) -> CellGraph:
    """The graph, less those methods that draw random numbers by operations on their arguments: these are untraced."""
    drawn = _drawn(graph, _UNITS)
    checked = functools.partial(_evaluate, graph.cell.name)
    one, other = (graph.interpret(drawn.__getitem__, checked) for _ in range(2))
    results = {"read": graph.reads.values(), "update": graph.update.values(), "output": (graph.output,)}
    untraced: dict[str, str] = {}
    for method, values in results.items():
        own = needed(values)
        random = (node for node in graph.nodes if node in own and not _same(one(node), other(node), (_ALL, _ALL)))
        if (first := next(random, None)) is not None:
            untraced[method] = f"it draws random numbers, by {name_of(first)}"
    return _without(graph, untraced) if untraced else graph


def _without(graph: CellGraph, untraced: Mapping[str, str]) -> CellGraph:
    return replace(
        graph,
        reads={} if "read" in untraced else graph.reads,
        update={} if "update" in untraced else graph.update,
        output=None if "output" in untraced else graph.output,
        untraced={**graph.untraced, **untraced},
    )


_UNITS = 7
_ALL = slice(None)
# A maximum, say, is in one of the parts only.
_PARTS = (
    *(("units", (_ALL, units)) for units in (slice(0, 3), slice(3, _UNITS))),
    *(("sequences", (sequence, _ALL)) for sequence in (slice(0, 1), slice(1, 2))),
)


def _drawn(graph: CellGraph, units: int) -> dict[Leaf, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {leaf: torch.rand(2, units, dtype=torch.float64, generator=generator) for leaf in graph.leaves.values()}


def _without_what_differs(graph: CellGraph) -> CellGraph:
    """The graph, less those methods that give other numbers or gradients than the cell itself: these are untraced.

    A trace does not see what is no operation of torch: numbers of `random`, a `torch.autograd.Function` with a
    derivative of its own, a branch on the type of a tensor.
    """
    with torch.inference_mode(False), torch.enable_grad():
        drawn = _drawn(graph, _UNITS + 1)  # also of cells that work on pairs of units
        known = {leaf: value.requires_grad_() for leaf, value in drawn.items()}
        value = graph.interpret(known.__getitem__, evaluate)
        traced = {
            "read": [value(node) for node in graph.reads.values()],
            "update": [value(node) for node in graph.update.values()],
            "output": [value(graph.output)],
        }
        differs = [
            method
            for method in traced.keys() - graph.untraced.keys()
            if not _alike(traced[method], _returned(graph.cell, method, known), list(known.values()))
        ]
    return _without(graph, dict.fromkeys(differs, _DIFFERS)) if differs else graph


_DIFFERS = (
    "its trace gives other numbers or gradients: it draws random numbers, has a derivative of its own "
    "(torch.autograd.Function) or asks for the type of a tensor"
)


def _returned(cell: Cell, method: str, known: Mapping[Leaf, Tensor]) -> list[Any] | None:
    """What the cell's method itself returns; ``None`` where it fails, as it will again where it is used."""
    try:
        return _called(cell, method, known)
    except Exception:
        return None


def _called(cell: Cell, method: str, known: Mapping[Leaf, Tensor]) -> list[Any]:
    of = {kind: {leaf.name: v for leaf, v in known.items() if leaf.kind == kind} for kind in {k.kind for k in known}}
    states, all_u = of["state"], {**of.get("parameter", {}), **of.get("gate", {})}
    if method == "update":
        x = known[Leaf("input", INPUT)] if cell.input_enters_pointwise else None
        new = cell.update(Values(**states), Values(**all_u), x)
        return [new[name] for name in cell.states]
    if method == "output":
        return [cell.output(Values(**of["new state"]), Values(**all_u))]
    reads = [gate for gate, what in cell.gates.items() if what.state]
    return [cell.read(gate, Values(**states), Values(**all_u)) for gate in reads]


def _alike(traced: list[Any], own: list[Any] | None, leaves: list[Tensor]) -> bool:
    if own is None or not all(isinstance(value, Tensor | int | float) for value in (*traced, *own)):
        return True  # whoever asks for the values says what they have to be
    both = [[torch.as_tensor(value, dtype=torch.float64) for value in values] for values in (traced, own)]
    if not all(torch.allclose(a, b, equal_nan=True) for a, b in zip(*both, strict=True)):
        return False
    of_trace, of_own = (_gradients(values, leaves) for values in both)
    if of_trace is None or of_own is None:
        return of_trace is of_own
    return all(torch.allclose(a, b, equal_nan=True) for a, b in zip(of_trace, of_own, strict=True))


def _gradients(values: list[Tensor], leaves: list[Tensor]) -> list[Tensor] | None:
    """Of a sum with a weight for each value; ``None`` where an operation has no derivative."""
    total = sum(((place + 1) * value.sum() for place, value in enumerate(values)), torch.zeros(()))
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    try:
        return list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))
    except RuntimeError:
        return None


def _evaluate(
    cell: str, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except (RuntimeError, IndexError, TypeError) as error:
        raise CellError(f"{cell}: {name} of values (batch, units) failed: {str(error).partition(chr(10))[0]}") from None


def _same(whole: Any, alone: Any, part: tuple[slice, slice]) -> bool:
    if not isinstance(whole, Tensor) or not isinstance(alone, Tensor):
        return True
    sequences, units = part
    own = whole[..., units] if whole.shape[-1:] == (_UNITS,) else whole
    own = own[..., sequences, :] if whole.shape[-2:] == (2, _UNITS) else own
    return own.shape == alone.shape and torch.allclose(own, alone, equal_nan=True)
