"""Vanilla networks on given sequences: second moments of states that close on pairs, without sampling.

At infinite width ``u_a^t`` and ``u_b^s`` are jointly Gaussian with

    Cov(u_a^t, u_b^s) = weight_var K_ab(t-1, s-1) + input_var x_a^t . x_b^s / D + bias_var,
    K_ab(t, s) = E[phi(u_a^t) phi(u_b^s)],    K(0, s) = K(t, 0) = 0.

Source: Yang 2019 (Tensor Programs I), the simple recurrent network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from isornn.cells import Gate, Spec, Vanilla

# Order up to which Hermite series go, and the mass of a square that they may leave out, relative to the whole.
ORDER, TAIL = 512, 1e-12

PairMoments = Callable[[Tensor, Tensor, Tensor], Tensor]


class OutOfReach(ValueError):
    """The moments of pairs are not known to the precision that is promised."""


def output_moments(spec: Spec, gram: Tensor, mean_over_steps: bool) -> Tensor:
    """``E[o_a o_b]`` of the last states, or of their means over the steps, ``(S, S)``.

    Args:
        spec: of a vanilla network.
        gram: ``x_a^t . x_b^s / D``, ``(T, S, T, S)``.

    Raises:
        OutOfReach: another cell, a transition or bias law without such a recursion, or too steep a transition.
    """
    gate = spec.gates["h"] if isinstance(spec.cell, Vanilla) else None
    if gate is None or gate.bias_law is not None:
        raise OutOfReach(f"{spec.cell.name} does not close on pairs")
    moments = _pair_moments(str(getattr(spec.cell, "nonlinearity", "")), gate)
    steps, count = gram.shape[:2]
    variances: list[Tensor] = []
    total = gram.new_zeros(count, count)
    for lag in range(steps if mean_over_steps else 1):
        state = gram.new_zeros(count, count)
        for early in range(steps - lag):
            late = early + lag
            covariance = gate.recurrent_var * state + gate.input_var * gram[late, :, early] + gate.bias_var
            if lag == 0:
                variances.append(covariance.diagonal())
            state = moments(covariance, variances[late], variances[early])
            total = total + (state if lag == 0 else state + state.mT)
    return total / steps**2 if mean_over_steps else state


def _pair_moments(nonlinearity: str, gate: Gate) -> PairMoments:
    mean = torch.as_tensor(gate.bias_mean, dtype=torch.float64)
    if nonlinearity == "identity":
        return lambda covariance, left, right: covariance + mean.square()
    if nonlinearity == "relu" and not bool(mean) and not mean.requires_grad:
        return _relu
    if nonlinearity in _SMOOTH:
        phi = _SMOOTH[nonlinearity]
        return lambda covariance, left, right: _smooth(phi, mean, covariance, left, right)
    raise OutOfReach(f"vanilla with {nonlinearity} does not close on pairs")


_SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid}


def _relu(covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``s_a s_b (sqrt(1 - c^2) + (pi - arccos c) c) / (2 pi)``. Source: Cho & Saul 2009, eqs. 3-4, n = 1."""
    scale, c = _correlation(covariance, left, right)
    # At |c| = 1 the formula's value and slope exist, but not those of its parts.
    inner = c.abs() < 1 - 1e-14
    safe = torch.where(inner, c, 0.0)
    curved = ((1 - safe.square()).sqrt() + (math.pi - torch.arccos(safe)) * safe) / math.pi
    return scale * torch.where(inner, curved, c.clamp(min=0.0)) / 2


def _smooth(phi: Callable[[Tensor], Tensor], mean: Tensor, covariance: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Mehler's expansion ``sum_n F_n(left) F_n(right) c^n``, F_n the Hermite coefficients of phi."""
    _, c = _correlation(covariance, left, right)
    f, g = _hermite(phi, mean, torch.cat((left, right))).split(len(left))
    total = torch.zeros_like(c)
    for n in reversed(range(f.shape[-1])):
        total = total * c + f[:, None, n] * g[:, n]
    return total


def _correlation(covariance: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Product of the standard deviations, and the correlation; 0 where there is no variance."""
    scale = _root(left)[:, None] * _root(right)
    return scale, covariance / scale


def _root(x: Tensor) -> Tensor:
    """sqrt, floored at 1e-8 so that derivatives with respect to a variance of 0 are finite."""
    return (x + 1e-16 * (x < 1e-16)).sqrt()


def _hermite(phi: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Coefficients ``E[phi(mean + s z) he_n(z)]`` ``(S, order)``, as many as leave out less than ``TAIL``."""
    z, table = _table()
    values = phi(mean + _root(variance)[:, None] * z)
    coefficients = values @ table
    mass = coefficients.detach().square()
    whole = (values.detach().square() @ table[:, 0])[:, None]
    left_out = (whole - mass.cumsum(-1)).abs() / whole.clamp(min=1e-300)
    enough = (left_out <= TAIL).all(0)
    if not bool(enough.any()):
        raise OutOfReach(f"a transition with a variance of {float(variance.max()):.3g} is too steep for its series")
    return coefficients[:, : int(enough.to(torch.uint8).argmax()) + 1]


@cache
def _table() -> tuple[Tensor, Tensor]:
    """Nodes z, and ``weight_j he_n(z_j)`` with he_n the normalised Hermite polynomials, ``(nodes, ORDER)``."""
    z = torch.linspace(-12, 12, 1201, dtype=torch.float64)
    before, now, columns = torch.zeros_like(z), torch.ones_like(z), []
    for n in range(ORDER):
        columns.append(now)
        before, now = now, (z * now - math.sqrt(n) * before) / math.sqrt(n + 1)
    weight = torch.exp(-(z**2) / 2)
    return z, torch.stack(columns, -1) * (weight / weight.sum())[:, None]
