"""The papers' approximate theory of the LSTM, to redraw their figures; `analyze` does not use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import LSTM, Spec, Values
from isornn.cells.arguments import seeded
from isornn.cells.polynomial import GateFunction
from isornn.cells.spec import check_spec
from isornn.modes import usual_modes
from isornn.theory.population.engine import Population
from isornn.theory.population.units import Laws
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import TheoryMissing


@dataclass(frozen=True)
class ApproximateLSTM:
    """Gilboa et al. 2019's A.3.3: chi at C = 1, which by their Lemma 1 is also m1, and the variance m2 - m1^2.

    >>> from isornn.cells import Gate
    >>> found = lstm_approximation(Spec(LSTM(), {name: Gate(weight_var=1.0, input_var=0.5) for name in "ifgo"}))
    >>> found.chi.number() < 1, found.variance.number() > 0
    (True, True)
    """

    chi: Quantity
    variance: Quantity


@usual_modes()
def lstm_approximation(spec: Spec, *, generator: torch.Generator | None = None) -> ApproximateLSTM:
    """chi and the variance of the squared singular values as Gilboa et al. 2019 approximate them for the LSTM.

    They write the LSTM as one state h with c = atanh(h / sigma(u_o)) and take sigma(u_o) and tanh'(c) to be the same
    at successive steps, so that ``a_0 = sigma(u_f)^2`` and the rows of J are Gaussian with variance

      v = weight_var_o sigma'(u_o)^2 tanh(c)^2 + sigma(u_o)^2 tanh'(c)^2 [ weight_var_f c^2 sigma'(u_f)^2
          + weight_var_i sigma'(u_i)^2 tanh(u_g)^2 + weight_var_g sigma(u_i)^2 tanh'(u_g)^2 ]

    chi = m1 = E a_0 + E v; the variance is that of such a J (the corrected eq. 15). c is drawn from its stationary
    law, the pre-activations independently of it.

    Args:
        spec: an LSTM with biases redrawn; a batch is allowed.
        generator: source of randomness, seeded with 0 by default.

    Raises:
        SpecError: no spec.
        TheoryMissing: another cell, or biases fixed.

    >>> from isornn.cells import Gate
    >>> gates = {k: Gate(weight_var=1.0, input_var=0.5) for k in "igo"}
    >>> gates["f"] = Gate(weight_var=1.0, input_var=0.5, bias_mean=1.0)
    >>> round(lstm_approximation(Spec(LSTM(), gates)).chi.number(), 2)  # the exact rate is 0.563
    0.57
    """
    check_spec(spec)
    if not isinstance(spec.cell, LSTM) or spec.biases != "redrawn":
        raise TheoryMissing("the papers' approximation is for an LSTM with biases redrawn at each step")
    population = Population(spec, generator=seeded(generator))
    stationary = population.settle("identical")
    units, u, _ = next(population.snapshots(stationary, 1))
    a, v = _squares(population.laws, spec.cell.sigma, units.states["c"][0], u)
    missing = {"the population did not settle": ~stationary.converged}

    def quantity(statistic: Callable[[Tensor, Tensor], Tensor]) -> Quantity:
        """Over all units, with the error over replicates, of which units have the axes (G, R, n)."""
        error = statistic(a, v).std(-1) / a.shape[1] ** 0.5
        value = statistic(a.flatten(1), v.flatten(1))
        return Quantity.of(value.reshape(spec.batch_shape), error.reshape(spec.batch_shape), missing)

    return ApproximateLSTM(chi=quantity(lambda a, v: (a + v).mean(-1)), variance=quantity(_variance))


def _squares(laws: Laws, sigma: Callable[[Tensor], Tensor], c: Tensor, u: Values) -> tuple[Tensor, Tensor]:
    """a_0 and the row variance v."""
    i, f, g, o = (getattr(u, gate)[0] for gate in "ifgo")
    slope = GateFunction("gate", sigma).derivative.call
    inside = (
        laws.weight["f"] * (c * slope(f)) ** 2
        + laws.weight["i"] * (slope(i) * torch.tanh(g)) ** 2
        + laws.weight["g"] * (sigma(i) * (1 - torch.tanh(g) ** 2)) ** 2
    )
    v = laws.weight["o"] * (slope(o) * torch.tanh(c)) ** 2 + (sigma(o) * (1 - torch.tanh(c) ** 2)) ** 2 * inside
    return sigma(f) ** 2, v


def _variance(a: Tensor, v: Tensor) -> Tensor:
    """m2 - m1^2 of a matrix diag(sqrt a) + Gaussian rows of variance v."""
    mean_a, mean_v = a.mean(-1), v.mean(-1)
    return (a + v).var(-1, correction=0) + 2 * mean_a * mean_v + mean_v**2
