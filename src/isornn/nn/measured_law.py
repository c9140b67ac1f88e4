"""The law that a layer's tensors look drawn from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isornn.cells import BiasLaw, Gate, ParameterLaw
from isornn.cells.laws import Ensemble
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer
from isornn.nn.layout import GateTensors

# W W^T = s^2 I and W = s I are recognised to this part of s^2 and s: half precision rounds to 4e-3.
_TOLERANCE = 1e-2
_PRECISIONS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that a module may have been in
_GRID, _RARE = 4096, 1e-6  # of a law's distribution function; the probability at which draws are no longer its own


def check_parameters_at_start(layer: RecurrentLayer) -> None:
    """Refuse a layer whose cell's own parameters are not those that the cell starts with.

    A number must be the start in all units, but for rounding. Values of a law are refused where their empirical
    distribution is so far from the law's that N draws would come as far with a probability below 1e-6, by
    ``P(sup |F_N - F| > d) <= 2 exp(-2 N d^2)``: small changes pass.

    Raises:
        ModuleError: names the parameter.

    Source: Massart 1990 (the constant of the Dvoretzky-Kiefer-Wolfowitz inequality).
    """
    for name, start in layer.cell.parameters.items():
        values = _double(layer.parameters[name]).flatten()
        if isinstance(start, ParameterLaw):
            grid = start.quantile((torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID).sort().values
            ranks = torch.arange(len(values), dtype=torch.float64)
            expected = torch.searchsorted(grid, values.sort().values) / _GRID
            distance = torch.maximum(expected - ranks / len(values), (ranks + 1) / len(values) - expected).max()
            at_start = bool(values.isfinite().all()) and 2 * math.exp(-2 * len(values) * float(distance) ** 2) > _RARE
            wanted = "drawn from its law"
        else:
            rounded = [torch.tensor(start, dtype=dtype).double() for dtype in _PRECISIONS]
            at_start = any(bool((values == value).all()) for value in rounded)
            wanted = f"{start:g}"
        if not at_start:
            low, high = float(values.min()), float(values.max())
            raise ModuleError(
                f"{layer.where}: parameter {name} of {layer.cell.name} starts {wanted}, and is now from {low:g} to "
                f"{high:g}; a spec has the start only, so measure the module with isornn.diagnose"
            )


def measured_gate(tensors: GateTensors, means: Tensor | None = None) -> Gate:
    """The law that a gate's tensors look drawn from, for input less its ``means`` (D,), whose effect counts as bias.

    ``weight_var = P mean(W_ij^2)``, ``input_var = D mean(U_ij^2)``, ``previous_input_var`` likewise; the mean over
    units of the biases' sum and, where it is not the same in all, the empirical law of what differs from the mean;
    "orthogonal" or "identity" where W is, to 1 %, else "gaussian".

    >>> gate = measured_gate(GateTensors(2 * torch.eye(3), None, None, (torch.tensor([0.0, 1.0, 5.0]), torch.zeros(3))))
    >>> gate.weight_var, gate.ensemble, gate.bias_mean, gate.bias_law.values
    (4.0, 'identity', 2.0, (-2.0, -1.0, 3.0))
    """
    total = sum((_double(bias) for bias in tensors.biases), torch.zeros((), dtype=torch.float64))
    if means is not None:
        read = (weight for weight in (tensors.input, tensors.previous_input) if weight is not None)
        total = sum((_double(weight) @ means.to(weight.device).double() for weight in read), total)
    # Equal biases would otherwise differ from their mean by rounding errors.
    constant = bool(total.max() == total.min())
    mean = float(total.max() if constant else total.mean())
    return Gate(
        weight_var=fan_in_variance(tensors.recurrent),
        input_var=fan_in_variance(tensors.input),
        previous_input_var=fan_in_variance(tensors.previous_input),
        bias_mean=mean,
        bias_law=None if constant else BiasLaw("empirical", values=tuple((total - mean).tolist())),
        ensemble=_ensemble(tensors.recurrent),
    )


def fan_in_variance(weight: Tensor | None) -> float:
    """``P mean(W_ij^2)`` of (M, P); 0 without a matrix."""
    return 0.0 if weight is None else weight.shape[-1] * float(_double(weight).square().mean())


def _ensemble(weight: Tensor | None) -> Ensemble:
    square = fan_in_variance(weight)
    # A 1 x 1 matrix is orthogonal whatever its law.
    if weight is None or weight.shape[-1] != weight.shape[-2] or weight.shape[-1] < 2 or not square > 0:
        return "gaussian"
    w, eye = _double(weight), torch.eye(weight.shape[-1], dtype=torch.float64)
    if bool(((w @ w.transpose(-2, -1) - square * eye).abs() > _TOLERANCE * square).any()):
        return "gaussian"
    is_identity = bool(((w - square**0.5 * eye).abs() <= _TOLERANCE * square**0.5).all())
    return "identity" if is_identity else "orthogonal"


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)
