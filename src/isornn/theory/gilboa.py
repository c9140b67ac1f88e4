"""The papers' approximate theory of the LSTM, to redraw their figures; `analyze` does not use it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isornn.cells import LSTM, Spec
from isornn.cells.arguments import seeded
from isornn.cells.polynomial import GateFunction
from isornn.modes import usual_modes
from isornn.theory.inputs import centred
from isornn.theory.population.engine import Population
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import TheoryMissing

BATCHES = 16


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
        TheoryMissing: another cell, or biases fixed.

    >>> from isornn.cells import Gate
    >>> gates = {k: Gate(weight_var=1.0, input_var=0.5) for k in "igo"}
    >>> gates["f"] = Gate(weight_var=1.0, input_var=0.5, bias_mean=1.0)
    >>> round(lstm_approximation(Spec(LSTM(), gates)).chi.number(), 2)  # the exact rate is 0.563
    0.57
    """
    if not isinstance(spec.cell, LSTM) or spec.biases != "redrawn":
        raise TheoryMissing("the papers' approximation is for an LSTM with biases redrawn at each step")
    spec = centred(spec)
    generator = seeded(generator)
    population = Population(spec, generator=generator)
    stationary = population.settle("identical")
    c = population.state_samples(stationary, "c")
    second = stationary.moments.second_moment[..., None]
    u = {gate: _draw(spec, gate, second, c, generator) for gate in spec.gates}
    a, v = _squares(spec, c, u)
    batches = [torch.stack(x.split(x.shape[-1] // BATCHES, -1), -2) for x in (a, v)]
    chi, variance = (a + v).mean(-1), _variance(a, v)
    missing = {"the population did not settle": ~stationary.converged}
    return ApproximateLSTM(
        chi=Quantity.of(chi, _error((batches[0] + batches[1]).mean(-1)), missing),
        variance=Quantity.of(variance, _error(_variance(*batches)), missing),
    )


def _draw(spec: Spec, gate: str, second: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    law = spec.gates[gate]
    weight, drive, bias, mean = (
        torch.as_tensor(x, dtype=torch.float64)[..., None]
        for x in (law.recurrent_var, torch.as_tensor(law.input_var) * spec.input.variance, law.bias_var, law.bias_mean)
    )
    return mean + (weight * second + drive + bias).sqrt() * torch.randn(
        like.shape, generator=generator, dtype=like.dtype
    )


def _squares(spec: Spec, c: Tensor, u: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """a_0 and the row variance v."""
    assert isinstance(spec.cell, LSTM)  # checked by `lstm_approximation`
    sigma = spec.cell.sigma

    def slope(gate: str) -> Tensor:
        return GateFunction(gate, sigma).derivative.call(u[gate])

    def weight(gate: str) -> Tensor:
        return torch.as_tensor(spec.gates[gate].recurrent_var, dtype=torch.float64)[..., None]

    inside = (
        weight("f") * (c * slope("f")) ** 2
        + weight("i") * (slope("i") * torch.tanh(u["g"])) ** 2
        + weight("g") * (sigma(u["i"]) * (1 - torch.tanh(u["g"]) ** 2)) ** 2
    )
    v = weight("o") * (slope("o") * torch.tanh(c)) ** 2 + (sigma(u["o"]) * (1 - torch.tanh(c) ** 2)) ** 2 * inside
    return sigma(u["f"]) ** 2, v


def _variance(a: Tensor, v: Tensor) -> Tensor:
    """m2 - m1^2 of a matrix diag(sqrt a) + Gaussian rows of variance v."""
    mean_a, mean_v = a.mean(-1), v.mean(-1)
    return (a + v).var(-1, correction=0) + 2 * mean_a * mean_v + mean_v**2


def _error(batches: Tensor) -> Tensor:
    return batches.std(-1) / batches.shape[-1] ** 0.5
