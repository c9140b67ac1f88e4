"""A slow state's ``s' = A s + B``, or that of several together, as sums of products over groups of gates that no
function mixes.

Pre-activations are independent given the population's moments. So a mean of products of A and B is a sum of products of
means over one group each: for the GRU one over u_z and one over u_r, u_nx and u_nh, in place of one over all four.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isornn.cells import Cell, Values
from isornn.cells.graph import INPUT
from isornn.cells.polynomial import Polynomial, Term
from isornn.cells.structure import structure_of

Group = tuple[str, ...]  # of gates; "" is the input that is read pointwise
Means = dict[tuple[str, int, int], Tensor]


@dataclass(frozen=True)
class Products:
    """Terms of an update, and the groups of what they depend on: means of the terms and of products of two."""

    terms: tuple[Term, ...]
    groups: tuple[Group, ...]

    def moments(self, means: Sequence[Means]) -> list[Tensor]:
        """What the law of the states needs, from ``means_over`` every group."""
        raise NotImplementedError

    def means_over(self, group: Group, u: Values, x: Tensor | None, mean: Callable[[Tensor], Tensor]) -> Means:
        """Means of one group's part of each term, and of products of two: of one copy (over both), and of a pair.

        Args:
            u, x: pre-activations and input, ``(copies, ...)``.
            mean: over the draws, which are among their further axes; it leaves the copies.
        """
        inputs = {} if x is None else {INPUT: x}
        parts = ((k, _part(term, group)) for k, term in enumerate(self.terms))
        values = {k: part.at(vars(u), inputs) for k, part in parts if part is not None}
        found: Means = {}
        for s, left in values.items():
            found["one", s, s] = mean(left).mean(0)
            for t, right in values.items():
                if s <= t:
                    found["own", s, t] = found["own", t, s] = mean(left * right).mean(0)
                found["pair", s, t] = mean(left[:1] * right[1:])[0] if len(left) == 2 else found["own", s, t]
        return found

    def mean(
        self, means: Sequence[Means], kind: str, left: Iterable[int], right: Iterable[int] | None = None
    ) -> Tensor:
        """Of the sum of the terms ``left``, or of its product with that of the terms ``right``."""
        total = torch.zeros((), dtype=torch.float64)
        for s, t in [(s, s) for s in left] if right is None else [(s, t) for s in left for t in right]:
            first, second = self.terms[s].coefficient, self.terms[t].coefficient
            coefficient: Any = first if right is None else first * second
            total = total + coefficient * math.prod(_of_product(group, kind, s, t) for group in means)
        return total


@dataclass(frozen=True)
class Line(Products):
    """``s' = A s + B``: the terms of A, and after them those of B."""

    first_of_b: int

    @staticmethod
    def of(cell: Cell, name: str) -> Line:
        """The line of the state ``name``, of whose update neither A nor B depends on a state.

        >>> from isornn.cells import GRU
        >>> Line.of(GRU(), "h").groups
        (('r', 'nx', 'nh'), ('z',))
        """
        update = structure_of(cell).update[name]
        a, b = update.part(name, 1).terms, update.part(name, 0).terms
        return Line((*a, *b), _groups(cell, (*a, *b)), len(a))

    def kept(self) -> Line:
        """``s' = A s`` alone."""
        a = self.terms[: self.first_of_b]
        used = frozenset[str]().union(*map(_names, a))
        return Line(a, tuple(group for group in self.groups if used.intersection(group)), len(a))

    def moments(self, means: Sequence[Means]) -> list[Tensor]:
        """A, B, B^2, AB, A^2 of one copy, A_a A_b, A_a B_b (symmetrised), B_a B_b."""
        a, b = range(self.first_of_b), range(self.first_of_b, len(self.terms))
        one, own, pair = (functools.partial(self.mean, means, kind) for kind in ("one", "own", "pair"))
        across = (pair(a, b) + pair(b, a)) / 2
        return [one(a), one(b), own(b, b), own(a, b), own(a, a), pair(a, a), across, pair(b, b)]


@dataclass(frozen=True)
class LinearSystem(Products):
    """``s' = A s + B`` of several states together: A a matrix and B a vector, of given terms each.

    Args:
        entries: by row, the places of the terms of A's entries and, last, of B's.
    """

    entries: tuple[tuple[range, ...], ...]

    @staticmethod
    def of(cell: Cell, names: Sequence[str]) -> LinearSystem:
        """Of the states ``names``, of whose updates neither A nor B depends on any state.

        >>> from isornn.cells import GRU
        >>> LinearSystem.of(GRU(), ["h"]).entries
        ((range(0, 1), range(1, 2)),)
        """
        terms: list[Term] = []
        rows = []
        for update in (structure_of(cell).update[name] for name in names):
            row = []
            for some in (*(update.part(source, 1) for source in names), _free_of(update, names)):
                row.append(range(len(terms), len(terms) + len(some.terms)))
                terms += some.terms
            rows.append(tuple(row))
        return LinearSystem(tuple(terms), _groups(cell, terms), tuple(rows))

    def moments(self, means: Sequence[Means]) -> list[Tensor]:
        """By pair of rows (i, j) and of places (k, l) in them, ``E e_ik e_jl`` of one copy, then of a pair; then
        ``E e_ik``: e is A with B as a last column."""
        flat = [(i, place) for i, row in enumerate(self.entries) for place in row]
        both = [
            self.mean(means, kind, left, right) for kind in ("own", "pair") for _, left in flat for _, right in flat
        ]
        return [*both, *(self.mean(means, "one", place) for _, place in flat)]


def _free_of(update: Polynomial, names: Sequence[str]) -> Polynomial:
    """The part without any of the states ``names``."""
    for name in names:
        update = update.part(name, 0)
    return update


def _of_product(means: Means, kind: str, s: int, t: int) -> Tensor | float:
    """Of two terms' parts in a group; a term that has none there has 1."""
    if (kind, s, t) in means:
        return means[kind, s, t]
    return means.get(("one", s, s), 1.0) * means.get(("one", t, t), 1.0)


def _names(term: Term) -> frozenset[str]:
    """The gates that a term depends on, and "" where it depends on the input."""
    return term.gates | ({""} if INPUT in term.variables else set())


def _part(term: Term, group: Group) -> Term | None:
    """The factors of a term that depend on this group; ``None`` where none does."""
    factors = {gate: functions for gate, functions in term.factors.items() if gate in group}
    powers = {name: power for name, power in term.powers.items() if "" in group}
    opaque = tuple(o for o in term.opaque if o.gates.intersection(group) or (o.variables and "" in group))
    return Term(1.0, factors, powers, opaque) if factors or powers or opaque else None


def _groups(cell: Cell, terms: Sequence[Term]) -> tuple[Group, ...]:
    """What the terms depend on, in groups that share no function, in the cell's order."""
    mixed = [o.gates | ({""} if o.variables else set()) for term in terms for o in term.opaque]
    groups: list[frozenset[str]] = []
    for together in [*mixed, *(frozenset({name}) for term in terms for name in _names(term))]:
        meeting = [group for group in groups if group & together]
        groups = [group for group in groups if not group & together] + [together.union(*meeting)]
    order = [*cell.gates, ""]
    return tuple(sorted((tuple(sorted(group, key=order.index)) for group in groups), key=lambda g: order.index(g[0])))
