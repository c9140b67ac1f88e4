"""Moments of the squared singular values of the untied state-to-state Jacobian, from a stationary population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells.trace import Leaf, graph_of
from isornn.theory.errors import TheoryMissing
from isornn.theory.matrix_law import fourth_cumulant
from isornn.theory.population.probing import Derivatives, linearise, linearise_read
from isornn.theory.population.replicates import jackknife, pooled
from isornn.theory.population.units import Field, Laws, Units, draw_gates


@dataclass(frozen=True)
class JacobianMoments:
    """``m1 = (1/NM) E tr J J^T``, ``m2 = (1/NM) E tr (J J^T)^2``, ``variance = m2 - m1^2``, batch-shaped; M states."""

    first: Tensor
    second: Tensor
    variance: Tensor
    stderr: dict[str, Tensor]


class JacobianSums:
    """Expectations over units that the moments need, gathered over several steps.

    For states s of a unit, A = d s'/d s pointwise (column 0: the state that recurrent matrices read), V = sum_k
    weight_var_k D_k D_k^T with D_k = d s'/d u_k, and x the part of V from a gate n that reads g h with its own random
    matrices inside. Wick's theorem, and the fourth cumulants of matrices that are not Gaussian, give

        M m1 = E tr AA^T + E tr V
        M m2 = E tr (AA^T)^2 + 2 E tr AA^T V + 2 E|a_0|^2 E tr V + E tr V^2 + (E tr V)^2
               + sum_k k_4(W_k) (E tr V_k)^2,

    where for a gated read the x-x part (E x)^2 of the last term is weight_var_n^2 E[D_n^2]^2 b2 with
    b2 = E g^4 + 2 E g^2 w + 2 E g^2 E w + E w^2 + (E w)^2 + sum_j k_4(W_j) (E w_j)^2, g = d r/d h,
    w = sum_j w_j, w_j = weight_var_j (d r/d u_j)^2.

    Raises:
        TheoryMissing: more than one gated read, one in a cell of several states, or one whose inner pre-activation
            acts in the update too.
    """

    def __init__(self, laws: Laws) -> None:
        self.laws = laws
        cumulants = {gate: fourth_cumulant(laws.ensemble[gate]) for gate in laws.weighted}
        self._cumulants = {gate: cumulant for gate, cumulant in cumulants.items() if cumulant != 0}
        self.gated = self._gated_read()
        self._sums: list[dict[str, Tensor]] = []

    def _gated_read(self) -> str | None:
        laws, cell = self.laws, self.laws.cell
        graph, gated = graph_of(cell), laws.gated
        if not gated:
            return None
        if {"read", "update"} & graph.untraced.keys():
            raise TheoryMissing(f"{cell.name}: Jacobian moments of a gated read need a cell that can be traced")
        if len(gated) > 1:
            raise TheoryMissing(f"{cell.name}: Jacobian moments allow one gated read, found {', '.join(gated)}")
        if len(cell.states) > 1:
            raise TheoryMissing(
                f"{cell.name}: Jacobian moments of a gated read allow one state, found {', '.join(cell.states)}"
            )
        inside = graph.depends_on(graph.reads[gated[0]]) & graph.depends_on(graph.update[cell.states[0]])
        for gate in laws.weighted:
            if Leaf("gate", gate) in inside:
                raise TheoryMissing(
                    f"{cell.name}: what {gated[0]} reads is gated by u_{gate}, which also acts in the update; "
                    "Jacobian moments need it to act through the read alone"
                )
        return gated[0]

    def add(self, units: Units, held: Field, uniform: Tensor) -> None:
        """Gather one step of a one-copy population."""
        laws, cell = self.laws, self.laws.cell
        with torch.no_grad():
            u, x = draw_gates(laws, units, held, uniform)
        _, slopes, push = linearise(cell, units.states, u, x, laws.weighted)
        plain = [gate for gate in laws.weighted if gate != self.gated]
        with torch.no_grad():
            carry = _matrix(cell.states, cell.states, slopes, units)
            births = self._births(plain, push, units)
            sums = _block_sums(units, carry, births)
            for gate in self._cumulants.keys() - {self.gated}:
                sums[f"v {gate}"] = units.mean(torch.einsum("ii...->...", self._births([gate], push, units)))
        if self.gated is not None:
            by_state, by_gate = linearise_read(cell, self.gated, units.states, u)
            with torch.no_grad():
                sums |= self._gated_sums(units, carry, births, push, by_state, by_gate)
        self._sums.append({name: value[..., 0] for name, value in sums.items()})

    def _births(self, gates: list[str], push: Derivatives, units: Units) -> Tensor:
        states = self.laws.cell.states
        total = torch.zeros(len(states), len(states), *_shape(units), dtype=torch.float64)
        for gate in gates:
            column = _matrix(states, (gate,), push, units)[:, 0]
            total = total + self.laws.weight[gate] * column[:, None] * column[None, :]
        return total

    def _gated_sums(
        self,
        units: Units,
        carry: Tensor,
        births: Tensor,
        push: Derivatives,
        by_state: Mapping[str, Tensor],
        by_gate: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Expectations with y = weight_var_n D_n^2, the gated gate's variance per unit of b1."""
        name, zero = self.laws.cell.states[0], torch.zeros(_shape(units), dtype=torch.float64)
        assert self.gated is not None
        slope = push.get((name, self.gated))
        y = zero if slope is None else self.laws.weight[self.gated] * slope[0].square()
        g2 = by_state[name][0].square() if name in by_state else zero
        own = {
            gate: self.laws.weight[gate] * by_gate[gate][0].square() for gate in self.laws.weighted if gate in by_gate
        }
        w = sum(own.values(), zero)
        a2, v = carry[0, 0].square(), births[0, 0]
        products = {"g2": g2, "w": w, "g4": g2 * g2, "g2w": g2 * w, "w2": w * w, "y": y, "a2y": a2 * y, "vy": v * y}
        products |= {"y2": y * y} | {f"w {gate}": value for gate, value in own.items()}
        return {key: units.mean(value) for key, value in products.items()}

    def moments(self, shape: torch.Size) -> JacobianMoments:
        """m1, m2 and the variance of squared singular values, with standard errors from replicates."""
        e = {name: pooled(torch.stack([sums[name] for sums in self._sums]).mean(0)) for name in self._sums[0]}
        states = len(self.laws.cell.states)
        m1 = e["a"] + e["v"]
        m2 = e["aa"] + 2 * e["av"] + 2 * e["a0"] * e["v"] + e["vv"] + e["v"].square()
        for gate, cumulant in self._cumulants.items():
            if gate != self.gated:
                m2 = m2 + cumulant * e[f"v {gate}"].square()
        if self.gated is not None:
            b1 = e["g2"] + e["w"]
            b2 = e["g4"] + 2 * e["g2w"] + 2 * e["g2"] * e["w"] + e["w2"] + e["w"].square()
            for gate, cumulant in self._cumulants.items():
                if f"w {gate}" in e:
                    b2 = b2 + cumulant * e[f"w {gate}"].square()
            x = b1 * e["y"]
            m1 = m1 + x
            m2 = m2 + 2 * b1 * e["a2y"] + 2 * e["a0"] * x + 2 * b1 * e["vy"] + 2 * e["v"] * x
            m2 = m2 + b1.square() * e["y2"] + e["y"].square() * b2
            m2 = m2 + self._cumulants.get(self.gated, 0.0) * x.square()
        m1, m2 = m1 / states, m2 / states
        both = {"first": jackknife(m1), "second": jackknife(m2), "variance": jackknife(m2 - m1.square())}
        values = {name: value.reshape(shape) for name, (value, _) in both.items()}
        return JacobianMoments(**values, stderr={name: error.reshape(shape) for name, (_, error) in both.items()})


def _shape(units: Units) -> torch.Size:
    return next(iter(units.states.values())).shape[1:]


def _matrix(rows: tuple[str, ...], columns: tuple[str, ...], slopes: Derivatives, units: Units) -> Tensor:
    """``(rows, columns, G, R, n)`` of one copy, zeros filled in."""
    zero = torch.zeros(_shape(units), dtype=torch.float64)

    def entry(row: str, column: str) -> Tensor:
        return slopes[row, column][0] if (row, column) in slopes else zero

    return torch.stack([torch.stack([entry(row, column) for column in columns]) for row in rows])


def _block_sums(units: Units, carry: Tensor, births: Tensor) -> dict[str, Tensor]:
    gram = torch.einsum("ik...,jk...->ij...", carry, carry)
    products = {
        "a": torch.einsum("ii...->...", gram),
        "v": torch.einsum("ii...->...", births),
        "aa": torch.einsum("ij...,ij...->...", gram, gram),
        "av": torch.einsum("ij...,ij...->...", gram, births),
        "vv": torch.einsum("ij...,ij...->...", births, births),
        "a0": carry[:, 0].square().sum(0),
    }
    return {name: units.mean(value) for name, value in products.items()}
