"""Random matrices and biases of finite width by the law of a :class:`Gate`.

All are drawn in float64 on the generator's device, so that a seed gives the same start in every precision.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from isornn.cells import BiasLaw, Cell, Gate, Spec
from isornn.cells.openings import bias_of
from isornn.nn.gate_tensors import FeatureMap, RecurrentLayer

Generator = torch.Generator | None
Entries = Literal["normal", "uniform"]


def normal(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Standard normal entries."""
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=_device(generator))


def uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Entries uniform on the open interval (0, 1): a bias law may be infinite at an end."""
    draw = torch.rand(shape, generator=generator, dtype=torch.float64, device=_device(generator))
    return draw.clamp_min(2.0**-54)


def dense(shape: tuple[int, ...], variance: float, generator: Generator, entries: Entries = "normal") -> Tensor:
    """A matrix (..., N, P) with independent entries of variance ``variance / P``, ``"normal"`` or ``"uniform"``.

    >>> w = dense((400, 50), 2.0, torch.Generator().manual_seed(0))
    >>> round(50 * float(w.var()), 1)
    2.0
    """
    scale = math.sqrt(variance / shape[-1])
    if entries == "uniform":
        return math.sqrt(3.0) * scale * (2.0 * uniform(shape, generator) - 1.0)
    return scale * normal(shape, generator)


def haar(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """A matrix (..., N, P) with orthonormal columns (rows, if N < P), Haar distributed.

    Source: Mezzadri 2007 (the signs of R's diagonal make QR's Q uniform).

    >>> q = haar((4, 4), torch.Generator().manual_seed(0))
    >>> torch.allclose(q @ q.T, torch.eye(4, dtype=torch.float64))
    True
    """
    *steps, rows, columns = shape
    tall = normal((*steps, max(rows, columns), min(rows, columns)), generator)
    q, r = torch.linalg.qr(tall)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return q if rows >= columns else q.transpose(-2, -1)


def recurrent(shape: tuple[int, ...], gate: Gate, generator: Generator, entries: Entries = "normal") -> Tensor:
    """A recurrent matrix (..., N, P) of ``gate``'s ensemble, times sqrt(weight_var).

    ``"gaussian"``: entries of variance weight_var/P. ``"orthogonal"``: ``W W^T = weight_var I``. A margin m:
    ``sqrt(weight_var) Q diag(s) R^T``, Q and R Haar, s uniform in [1-m, 1+m]. ``"identity"``: ``sqrt(weight_var) I``.
    Where P < N the columns are orthogonal instead, scaled so that the mean square entry stays weight_var/P.

    Raises:
        ValueError: ``"identity"`` where P is not N.

    >>> recurrent((2, 2), Gate(weight_var=4.0, ensemble="identity"), None)
    tensor([[2., 0.],
            [0., 2.]], dtype=torch.float64)
    """
    *steps, rows, columns = shape
    if gate.ensemble == "gaussian":
        return dense(shape, float(gate.weight_var), generator, entries)
    scale = math.sqrt(float(gate.weight_var) * rows / min(rows, columns))
    if gate.ensemble == "identity":
        if rows != columns:
            raise ValueError(f"a {rows} x {columns} matrix is no identity")
        return (scale * torch.eye(rows, dtype=torch.float64, device=_device(generator))).expand(shape)
    if gate.ensemble == "orthogonal":
        return scale * haar(shape, generator)
    left = haar((*steps, rows, min(rows, columns)), generator)
    right = haar((*steps, columns, min(rows, columns)), generator)
    singular = 1.0 + float(gate.ensemble) * (2.0 * uniform((*steps, 1, min(rows, columns)), generator) - 1.0)
    return scale * (left * singular) @ right.transpose(-2, -1)


def biases(shape: tuple[int, ...], spec: Spec, generator: Generator) -> dict[str, Tensor]:
    """Every gate's biases (..., N): normal, plus the gate's law at the unit's variate, which all gates share.

    The uniform gate's law has no finite end, so N units draw their variate on (1/N, 1 - 1/N), as Gu et al. 2020 do.

    >>> from isornn.cells import LSTM
    >>> law = BiasLaw("chrono", 1.0, 99.0)
    >>> mirror = BiasLaw("chrono", 1.0, 99.0, sign=-1)
    >>> drawn = biases((5,), Spec(LSTM(), {"f": Gate(bias_law=law), "i": Gate(bias_law=mirror)}), None)
    >>> torch.equal(drawn["f"], -drawn["i"])
    True
    """
    shared = uniform(shape, generator)
    return {
        name: float(gate.bias_mean)
        + math.sqrt(float(gate.bias_var)) * normal(shape, generator)
        + (0.0 if gate.bias_law is None else _law(spec.cell, name, gate.bias_law, shared))
        for name, gate in spec.gates.items()
    }


def redraw(
    layer: RecurrentLayer,
    spec: Spec,
    generator: Generator,
    input_entries: Entries = "normal",
    recurrent_entries: Entries = "normal",
) -> None:
    """Draw all of ``layer``'s tensors in place; call it under ``no_grad``.

    ``spec`` is of the layer's cell and asks for no bias that the layer lacks. Entries are "normal" or "uniform", the
    recurrent ones where the ensemble is Gaussian. A projection ``weight_hr`` gets orthonormal rows, or Glorot's
    uniform entries where the recurrent ones are uniform.
    """
    for name, gate in spec.gates.items():
        tensors = layer.gates[name]
        if tensors.recurrent is not None:
            tensors.recurrent.copy_(recurrent(tensors.recurrent.shape, gate, generator, recurrent_entries))
        for weight, variance in ((tensors.input, gate.input_var), (tensors.previous_input, gate.previous_input_var)):
            if weight is not None:
                weight.copy_(dense(weight.shape, float(variance), generator, input_entries))
    _redraw_biases(layer, spec, generator)
    if layer.projection is not None:
        rows, columns = shape = layer.projection.shape
        glorot = 2.0 * columns / (rows + columns)
        uniform_entries = recurrent_entries == "uniform"
        layer.projection.copy_(
            dense(shape, glorot, generator, "uniform") if uniform_entries else haar(shape, generator)
        )


def redraw_features(features: FeatureMap, variance: float, means: Tensor, generator: Generator) -> None:
    """Draw ``W ~ N(0, variance / D)`` in place and set ``b = -W mu`` by the input's means (D,), under ``no_grad``."""
    weight = dense(features.weight.shape, variance, generator)
    features.weight.copy_(weight)
    if features.bias is not None:
        features.bias.copy_(-weight @ means.to(weight))


def _redraw_biases(layer: RecurrentLayer, spec: Spec, generator: Generator) -> None:
    """The whole bias into each gate's first tensor, 0 into the other, which torch adds."""
    shape = next((tensors.biases[0].shape for tensors in layer.gates.values() if tensors.biases), None)
    if shape is None:
        return
    drawn = biases(shape, spec, generator)
    for name, tensors in layer.gates.items():
        for position, bias in enumerate(tensors.biases):
            bias.copy_(drawn[name] if position == 0 else torch.zeros_like(bias))


def _law(cell: Cell, gate: str, law: BiasLaw, variate: Tensor) -> Tensor:
    if law.kind == "uniform_gate":
        end = min(1.0 / variate.shape[-1], 0.5)
        variate = end + (1.0 - 2.0 * end) * variate
    return bias_of(cell, gate, law, variate)


def _device(generator: Generator) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device
