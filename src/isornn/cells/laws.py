"""The random law of a gate's pre-activation, and that of the input sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from isornn.cells.bias_laws import BiasLaw
from isornn.cells.errors import SpecError

Number = float | Tensor
Ensemble = Literal["gaussian", "orthogonal", "identity"] | float


@dataclass(frozen=True)
class Gate:
    """Random law of one pre-activation ``u = W r + U x_t + V x_(t-1) + b``.

    Variance convention: ``W_ij ~ N(0, weight_var / N)``, ``U_ij ~ N(0, input_var / D)``,
    ``V_ij ~ N(0, previous_input_var / D)``, ``b_i ~ N(bias_mean, bias_var)`` plus a draw of ``bias_law`` if there
    is one. Numbers may be tensors; they broadcast over leading axes and are analysed as a batch.

    Args:
        ensemble: of ``W / sqrt(weight_var)``: ``"gaussian"``, ``"orthogonal"`` (Haar), ``"identity"``, or a number m:
            singular values uniform in the margin [1-m, 1+m] between two Haar bases.

    >>> from isornn.cells import BiasLaw
    >>> forget = Gate(weight_var=1.0, input_var=1.0, bias_mean=1.0)
    >>> chrono = Gate(weight_var=1.0, bias_law=BiasLaw("chrono", 1.0, 499.0), ensemble="orthogonal")
    >>> forget.bias_mean, chrono.ensemble
    (1.0, 'orthogonal')
    """

    weight_var: Number = 0.0
    input_var: Number = 0.0
    previous_input_var: Number = 0.0
    bias_mean: Number = 0.0
    bias_var: Number = 0.0
    bias_law: BiasLaw | None = None
    ensemble: Ensemble = "gaussian"

    @property
    def recurrent_var(self) -> Number:
        """``N E[W_ij^2]``: weight_var, but for a margin m, whose singular values have mean square 1 + m^2/3."""
        if isinstance(self.ensemble, str):
            return self.weight_var
        return self.weight_var * (1 + self.ensemble**2 / 3)

    def __repr__(self) -> str:
        """The fields that are not their defaults; of an empirical law the number of its units.

        >>> Gate(weight_var=1.0, bias_law=BiasLaw("empirical", values=(0.5,) * 64))
        Gate(weight_var=1.0, bias_law=BiasLaw('empirical', 64 values))
        """
        return f"Gate({changed(self)})"


@dataclass(frozen=True)
class Input:
    """Input sequences a, b of D features: ``x_t = m + z_t``, a constant m and Gaussian fluctuations z.

    ``E[z_t^2] = variance``, ``E[z_a z_b] = variance * correlation``, ``E[z_t z_(t+k)] = variance * autocorrelation^k``
    (an AR(1) process), independent over features; ``mean^2`` is the mean of m^2 over the features. So at one step
    ``E[x^2] = variance + mean^2``, ``E[x_a x_b] = variance * correlation + mean^2``.

    Args:
        mean: root mean square over the features of their means, the same in both sequences.
        autocorrelation: of successive steps, from 0 to below 1. It matters where the input matrices are the same at
            every step: specs that have one say ``biases="fixed"``.

    >>> import torch
    >>> Input(variance=2.0, mean=1.0).second_moment
    3.0
    """

    variance: Number = 1.0
    correlation: Number = 1.0
    mean: Number = 0.0
    autocorrelation: Number = 0.0

    @property
    def second_moment(self) -> Number:
        """``E[x^2]``, which the variance of ``U x`` over units rests on.

        >>> Input(variance=3.0, mean=2.0).second_moment
        7.0
        """
        return self.variance + self.mean**2

    @property
    def remembers(self) -> bool:
        """Whether inputs of different steps are correlated, in any spec of a batch."""
        return bool((torch.as_tensor(self.autocorrelation, device="cpu") != 0).any())

    @property
    def is_centred(self) -> bool:
        """Whether the features have mean 0, in every spec of a batch."""
        return not bool((torch.as_tensor(self.mean, device="cpu") != 0).any())

    def __repr__(self) -> str:
        """The fields that are not their defaults.

        >>> Input(variance=2.0)
        Input(variance=2.0)
        """
        return f"Input({changed(self)})"

    @classmethod
    def of(cls, x: Tensor) -> Input:
        """The law with the mean and variance of a batch of inputs, features on the last axis.

        A tensor of one axis holds one feature. The variance is the mean over features of each one's own, so that
        ``second_moment`` is the mean square of all numbers.

        Raises:
            SpecError: no tensor of real numbers, none of them, or some that are not finite.

        >>> symbols = Input.of(torch.eye(10)[torch.arange(200) % 10])  # ten symbols, each in a tenth of the steps
        >>> round(symbols.mean, 6), round(symbols.variance, 6), round(symbols.second_moment, 6)
        (0.1, 0.09, 0.1)
        """
        if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_nested or x.is_complex():
            raise SpecError("input", x, "it must be a dense tensor of real numbers, features on the last axis")
        values = x.detach().double()
        mean_square = values.square().mean()
        if not mean_square.isfinite():
            raise SpecError("input", x, "it must have numbers, and all of them must be finite")
        features = values.flatten(0, -2) if values.dim() > 1 else values.reshape(-1, 1)
        squared_mean = min(float(features.mean(0).square().mean()), float(mean_square))
        return cls(float(mean_square) - squared_mean, mean=math.sqrt(squared_mean))


def changed(record: Gate | Input) -> str:
    """The fields of a record that are not their defaults, as keywords; empty where all are."""
    values = {f.name: (getattr(record, f.name), f.default) for f in fields(record)}
    return ", ".join(
        f"{name}={_short(value)}"
        for name, (value, default) in values.items()
        if isinstance(value, Tensor) or value != default
    )


def _short(value: object) -> str:
    if isinstance(value, BiasLaw) and value.values:
        return f"BiasLaw({value.kind!r}, {len(value.values)} values)"
    return repr(value)


INPUT_FIELDS = tuple(f.name for f in fields(Input))
GATE_NUMBERS = ("weight_var", "input_var", "previous_input_var", "bias_mean", "bias_var")
