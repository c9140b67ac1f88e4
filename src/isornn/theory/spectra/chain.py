"""Jacobians of following steps, unit by unit, and their product as one block that is linear in the random matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isornn.theory.spectra.dyson import Blocks

_FEW = 1e-9


class Source(NamedTuple):
    """Random matrices that multiply one column: the Gaussian ones together, any other by itself.

    Args:
        column: which.
        gate: whose matrix; "" for the Gaussian ones.
        margin: as in `isornn.theory.matrix_law`; ``None`` for the Gaussian ones.
    """

    column: int
    gate: str = ""
    margin: float | None = None

    def shifted(self, columns: int) -> Source:
        """The same with all columns moved."""
        return self._replace(column=self.column + columns)


@dataclass(frozen=True)
class Step:
    """What the Jacobian of one step does at sampled units; rows and columns as in `isornn.theory.spectra.dyson`.

    Args:
        states: M, the first M rows and columns of B.
        mean: A~ ``(B, B, n)``.
        births: V_k ``(B, B, n)`` by source k.
        weight: share of each unit ``(n,)``, summing to 1.
    """

    states: int
    mean: Tensor
    births: Mapping[Source, Tensor]
    weight: Tensor

    def taken(self, index: Tensor, weight: Tensor) -> Step:
        """The units ``index`` with new weights."""
        births = {source: v[..., index] for source, v in self.births.items()}
        return Step(self.states, self.mean[..., index], births, weight / float(weight.sum()))

    @property
    def carried(self) -> Tensor:
        """A ``(M, M, n)``: from old states to new ones of the same unit."""
        return self.mean[: self.states, : self.states]

    def pushed(self, covariance: Tensor) -> tuple[Tensor, dict[Source, float]]:
        """Covariances (M, M, n) of the old states' tangents in each unit to those of the new ones; and the mean square
        of what each random matrix multiplies."""
        states, inner = self.states, self.mean[:, : self.states]
        new = torch.einsum("sin,ijn,rjn->srn", inner, covariance, inner)
        powers: dict[Source, float] = {}
        for source, v in sorted(self.births.items()):
            q = source.column
            # a gated read may only read what comes before it
            square = covariance[q, q] if q < states else new[q, q]
            powers[source] = float((self.weight * square).sum())
            new = new + powers[source] * v
        return new[:states, :states], powers

    def pulled(self, response: Tensor) -> tuple[Tensor, dict[Source, float]]:
        """The adjoint: quadratic forms (M, M, n) on the new states to those on the old ones; and the mean trace of what
        each source makes of it."""
        states = self.states
        whole = torch.zeros_like(self.mean)
        whole[:states, :states] = response
        traces: dict[Source, float] = {}
        for source, v in sorted(self.births.items(), reverse=True):
            traces[source] = float((self.weight * torch.einsum("srn,srn->n", whole, v)).sum())
            if source.column >= states:
                whole[source.column, source.column] += traces[source]
        inner = self.mean[:, :states]
        old = torch.einsum("sin,srn,rjn->ijn", inner, whole, inner)
        for source, trace in traces.items():
            if source.column < states:
                old[source.column, source.column] += trace
        return old, traces


def joined(parts: Sequence[Step]) -> Step:
    """All units of several populations of one kind, without sources that are zero in all."""
    births = {source: torch.cat([part.births[source] for part in parts], -1) for source in parts[0].births}
    kept = {source: v for source, v in births.items() if bool((v != 0).any())}
    mean = torch.cat([part.mean for part in parts], -1)
    return Step(parts[0].states, mean, kept, torch.cat([part.weight for part in parts]) / len(parts))


def row_energy(path: Sequence[Step]) -> Tensor:
    """Expected squared norm of each unit's rows of the product J_k ... J_1, (n,): its mean over units is M m1.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> row_energy([Step(1, one, {Source(0): 2 * one}, one.reshape(1))] * 2)  # (1 + 2)^2
    tensor([9.], dtype=torch.float64)
    """
    covariance = _identity(path[0])
    for step in path:
        covariance, _ = step.pushed(covariance)
    return torch.einsum("ssn->n", covariance)


def carried(path: Sequence[Step]) -> Tensor:
    """Largest squared singular value of each unit's own A_k ... A_1, (n,): no support ends below it.

    >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
    >>> carried([Step(1, 2 * one, {Source(0): one}, one.reshape(1))] * 3)
    tensor([64.], dtype=torch.float64)
    """
    whole = product(path)
    if len(whole) == 1:
        return whole[0, 0].square()
    return torch.linalg.svdvals(whole.movedim(-1, 0))[:, 0].square()


def product(path: Sequence[Step]) -> Tensor:
    """A_k ... A_1 of each unit ``(M, M, n)``."""
    whole = path[0].carried
    for step in path[1:]:
        whole = torch.einsum("sin,irn->srn", step.carried, whole)
    return whole


def with_few(path: Sequence[Step], few: Sequence[Step]) -> list[Step]:
    """The path's units and some others that weigh next to nothing."""
    if few[0].births.keys() != path[0].births.keys():
        return list(path)
    weight = torch.cat([path[0].weight, _FEW * few[0].weight])
    both = [joined([step, other]) for step, other in zip(path, few, strict=True)]
    return [step.taken(torch.arange(len(weight)), weight) for step in both]


def chained(path: Sequence[Step]) -> Blocks:
    """The product J_k ... J_1 of a path's steps, the first step's Jacobian first in ``path``."""
    forward, backward = _ends(path)
    mean, roots = _linearised(path)
    rows, columns = list(range(len(mean))), list(range(len(mean)))
    states, size = path[0].states, path[0].mean.shape[0]
    multiplied = sorted({source.column for source in roots})
    for q in range(states, len(mean)):
        if q not in multiplied:
            # what no random matrix multiplies is known from its own unit and is put in where it is used
            row = q if q % size >= states else q - size
            mean, roots = _without(mean, roots, row, q)
            rows.remove(row)
            columns.remove(q)
    # gated reads before states, so that the outputs come last
    order = sorted(rows, key=lambda row: (row // size, row % size < states, row))
    born = sorted(roots)
    owned = [(place, root) for place, source in enumerate(born) for root in roots[source]]
    owned += [(len(born) + multiplied.index(q) if q in multiplied else -1, mean[:, q]) for q in columns]
    owned = [(owner, vector) for owner, vector in owned if bool((vector != 0).any())]
    factors = torch.stack([vector[order] for _, vector in owned]).permute(2, 0, 1).contiguous()
    return Blocks(
        states=states,
        starts=torch.tensor([1.0 if q < states else 0.0 for q in multiplied], dtype=torch.float64),
        columns=torch.tensor([multiplied.index(source.column) for source in born]),
        margins=tuple(source.margin for source in born),
        factors=factors,
        owners=torch.tensor([owner for owner, _ in owned]),
        weight=path[0].weight,
        energy=row_energy(path),
        floor=float(carried(path).max()),
        forward=torch.tensor([forward[source] for source in born], dtype=torch.float64),
        backward=torch.tensor([backward[source] for source in born], dtype=torch.float64),
    )


def _identity(step: Step) -> Tensor:
    one = torch.eye(step.states, dtype=torch.float64)
    return one[..., None].expand(-1, -1, step.mean.shape[-1])


def _ends(path: Sequence[Step]) -> tuple[dict[Source, float], dict[Source, float]]:
    """Powers that go into each source, and what comes of it: e and d far from the spectrum."""
    size = path[0].mean.shape[0]
    forward: dict[Source, float] = {}
    backward: dict[Source, float] = {}
    covariance = response = _identity(path[0])
    for t, step in enumerate(path):
        covariance, found = step.pushed(covariance)
        forward |= {source.shifted(t * size): power for source, power in found.items()}
    for t, step in reversed(list(enumerate(path))):
        response, found = step.pulled(response)
        backward |= {source.shifted(t * size): trace for source, trace in found.items()}
    return forward, backward


def _linearised(path: Sequence[Step]) -> tuple[Tensor, dict[Source, list[Tensor]]]:
    """A~ ``(K, K, n)`` of all steps, and by source the vectors (K, n) whose squares add up to V."""
    size, units = path[0].mean.shape[0], path[0].mean.shape[-1]
    mean = torch.zeros(len(path) * size, len(path) * size, units, dtype=torch.float64)
    roots: dict[Source, list[Tensor]] = {}
    for t, step in enumerate(path):
        own = slice(t * size, (t + 1) * size)
        mean[own, own] = step.mean
        if t + 1 < len(path):
            for s in range(step.states):
                mean[t * size + s, (t + 1) * size + s] = -1.0
        for source, v in step.births.items():
            vectors = torch.zeros(size, len(mean), units, dtype=torch.float64)
            vectors[:, own] = _roots(v)
            roots[source.shifted(t * size)] = list(vectors)
    return mean, roots


def _roots(v: Tensor) -> Tensor:
    """Vectors (B, B, n), the first index theirs, whose squares add up to the covariances v (B, B, n)."""
    left, found = v.clone(), []
    whole = torch.einsum("ssn->n", v)
    for s in range(len(v)):
        there = left[s, s] > 1e-14 * whole
        pivot = torch.where(there, left[s, s], 1.0)
        found.append(torch.where(there, left[s] / pivot.sqrt(), 0.0))
        left = left - found[-1][:, None] * found[-1][None]
    return torch.stack(found)


def _without(
    mean: Tensor, roots: Mapping[Source, list[Tensor]], row: int, column: int
) -> tuple[Tensor, dict[Source, list[Tensor]]]:
    """With the unknown of ``column`` replaced by what ``row``, where it stands as -1, says it is."""
    use = mean[:, column].clone()
    use[row] = 0.0
    changed = mean + use[:, None] * mean[row][None]
    changed[row] = 0.0
    new = {}
    for source, vectors in roots.items():
        new[source] = [vector + use * vector[row] for vector in vectors]
        for vector in new[source]:
            vector[row] = 0.0
    return changed, new
