"""Initialise a torch module from hyper-parameters, and estimate hyper-parameters from a module's tensors.

Every function that ends in ``_`` sets, in place and without recording gradients, all recurrent layers of a module:
``torch.nn.RNN``, ``LSTM`` and ``GRU`` (each layer, direction and gate on its own), their ``...Cell`` forms, the layers
of `isornn.nn`, and any module that contains such. Everything else in the module is left alone.

- Convention: ``weight_var = N Var(W_ij)``, ``input_var = D Var(U_ij)`` with D of the layer itself.
- torch's two biases add: the whole bias goes to ``bias_ih`` and ``bias_hh`` is 0. The GRU's candidate keeps the two
  apart: nx is in ``bias_ih``, nh in ``bias_hh``.
- Values are drawn in float64 from ``generator`` (torch's global one if ``None``) and rounded to the module's dtype.
- Nothing is written unless every layer can be set, and every number fits the module's dtype.
- ``proj_size`` of an LSTM: the recurrent matrices are (N, P) and read P values, so the convention is per fan-in,
  ``weight_var = P Var(W_ij)``; orthogonal means orthogonal columns. ``weight_hr`` gets orthonormal rows.
"""

from __future__ import annotations

from isornn.init.data import LayerStart
from isornn.init.estimate import spec_of
from isornn.init.flossing import Flossed, gradient_flossing_
from isornn.init.in_use import doubled_chrono_, forget_bias_3_, forget_bias_3_to_6_, stacked_orthogonal_
from isornn.init.input_warnings import StandardisedInput, UnnormalisedInput
from isornn.init.starts import (
    apply_,
    chrono_,
    critical_,
    glorot_,
    identity_,
    isometric_,
    orthogonal_,
    standard_,
    uniform_gate_,
)
from isornn.nn.gate_tensors import ModuleError

__all__ = [
    "Flossed",
    "LayerStart",
    "ModuleError",
    "StandardisedInput",
    "UnnormalisedInput",
    "apply_",
    "chrono_",
    "critical_",
    "doubled_chrono_",
    "forget_bias_3_",
    "forget_bias_3_to_6_",
    "glorot_",
    "gradient_flossing_",
    "identity_",
    "isometric_",
    "orthogonal_",
    "spec_of",
    "stacked_orthogonal_",
    "standard_",
    "uniform_gate_",
]
