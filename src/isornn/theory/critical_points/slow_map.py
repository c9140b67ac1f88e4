"""The one-step map of a slow state: isometry where a cell of several states cannot show it in its whole Jacobian."""

from __future__ import annotations

import torch
from torch import Tensor

from isornn.theory.population.engine import Population, Stationary
from isornn.theory.population.jacobian import linearise
from isornn.theory.population.units import Units, draw_gates, variates
from isornn.theory.records import Quantity, jackknife, pooled

_STEPS = 8  # independent steps that the moments are averaged over


def slow_map_moments(
    population: Population, stationary: Stationary, state: str, generator: torch.Generator
) -> tuple[Quantity, Quantity]:
    """Mean and variance of the squared singular values of the map from ``state`` to itself over one step.

    The LSTM's block Jacobian has N zeros even at perfect memory, so its isometry is that of its slow state. The state c
    is changed, the h that is formed from it moves along, and the next c is read off:

        J = A + sum_k D_k W_k H,   A = dc'/dc,  D_k = dc'/du_k,  H = dh/dc = (dh'/dc) / (dc'/dc) of the step before.

    Given the units its entries are independent, so with v = sum_k weight_var_k D_k^2 Wick's theorem gives

        m1 = E A^2 + E v E H^2
        m2 = E A^4 + 2 E[A^2 v] E H^2 + 2 E[A^2 H^2] E v + (E v)^2 E H^4 + E v^2 (E H^2)^2.

    Changes that return through the older h, by a gate that reads it and only shapes the output, are left out.

    Args:
        population, stationary: of one spec or a batch, settled.
        state: a state that carries itself; the recurrent matrices read another that is formed from it.
        generator: randomness of the gates.

    Returns:
        m1 and m2 - m1^2, batch-shaped, standard errors from replicates.
    """
    laws = population.laws
    read = laws.cell.states[0]
    sums: list[dict[str, Tensor]] = []
    for units, u, x in population.snapshots(stationary, _STEPS):
        new, slopes, _ = linearise(laws.cell, units.states, u, x)
        along = torch.nan_to_num(slopes[read, state] / slopes[state, state], 0.0, 0.0, 0.0)[0]
        later = Units({name: value.detach() for name, value in new.items()}, units.offsets, units.weights)
        shape = next(iter(later.states.values())).shape[1:]
        uniform = torch.rand(variates(laws, 1), *shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            u, x = draw_gates(laws, later, stationary.field, uniform.clamp(1e-15, 1 - 1e-15))
        _, slopes, push = linearise(laws.cell, later.states, u, x, laws.weighted)
        a2, h2 = slopes[state, state][0].square(), along.square()
        zero = torch.zeros(shape, dtype=torch.float64)
        v = sum((laws.weight[k] * push[state, k][0].square() for k in laws.weighted if (state, k) in push), zero)
        products = {"a2": a2, "v": v, "h2": h2, "a4": a2 * a2, "a2v": a2 * v, "a2h2": a2 * h2, "h4": h2 * h2}
        sums.append({name: later.mean(value)[..., 0] for name, value in (products | {"v2": v * v}).items()})
    e = {name: pooled(torch.stack([part[name] for part in sums]).mean(0)) for name in sums[0]}
    m1 = e["a2"] + e["v"] * e["h2"]
    m2 = e["a4"] + 2 * e["a2v"] * e["h2"] + 2 * e["a2h2"] * e["v"]
    m2 = m2 + e["v"].square() * e["h4"] + e["v2"] * e["h2"].square()
    found = (jackknife(value) for value in (m1, m2 - m1.square()))
    shape = population.batch_shape
    first, variance = (Quantity(value.reshape(shape), error.reshape(shape)) for value, error in found)
    return first, variance
