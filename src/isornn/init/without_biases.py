"""A start for layers without biases, whose place the mean of the input takes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from isornn.cells import Spec
from isornn.init.writing import check_settable
from isornn.nn import draws
from isornn.nn.gate_tensors import ModuleError, RecurrentLayer

_RIDGE = 1e-9  # of the features' mean square, so that a constant feature has a finite weight


def set_without_biases(
    layer: RecurrentLayer, x: Tensor, lengths: Tensor, spec: Spec, generator: torch.Generator | None
) -> None:
    """Let the mean of the input (T, B, D) take the biases' place.

    With w that minimises the variance of ``w x`` where its mean is 1, a gate that should have bias b gets
    ``U (I - mu w^T) + b w^T``: of mean b, where ``U x`` has none. What w x varies adds ``b^2 Var(w x)`` to the gate's
    variance, so a bias of size b is possible where that is at most 1: exactly for a feature that is constant, or
    features that have a constant sum. It is judged on sequences that w was not fitted to: of few rows some combination
    is constant by chance.

    Raises:
        ModuleError: the input has no such mean.
    """
    sequences = [x[:length, number].double().cpu() for number, length in enumerate(lengths.tolist())]
    strength = _strength(sequences)
    unbiased = {name: replace(law, bias_mean=0.0, bias_var=0.0, bias_law=None) for name, law in spec.gates.items()}
    plain = replace(spec, gates=unbiased)
    check_settable(layer, plain)
    wanted = draws.biases((layer.hidden,), spec, generator)
    largest = max(float(bias.abs().max()) for bias in wanted.values())
    rows = torch.cat(sequences)
    if not largest**2 <= strength or any(
        layer.gates[name].input is None and bias.any() for name, bias in wanted.items()
    ):
        raise ModuleError(
            f"{layer.where}: it has bias=False, and gates that need biases up to {largest:.1f}; the mean of its input "
            f"could take their place, but {_why_too_weak(rows, strength, largest)}"
        )
    means, w = rows.mean(0), _steadiest(rows)
    draws.redraw(layer, plain, generator)
    for name, tensors in layer.gates.items():
        if tensors.input is not None:
            offset = wanted[name].cpu() - tensors.input.double().cpu() @ means
            tensors.input.add_(torch.outer(offset, w).to(tensors.input))


def _why_too_weak(rows: Tensor, strength: float, largest: float) -> str:
    """Why the mean of the input cannot take the place of biases up to ``largest``, and what helps."""
    if not largest**2 <= _squared_mean_over_variance(rows, rows):
        return (
            f"no combination of its features has a mean above {strength**0.5:.2g} standard deviations; build it with "
            "bias=True"
        )
    return (
        "the combination of its features that is steadiest in one half of the batch's sequences has in the other half "
        f"a mean of {strength**0.5:.2g} standard deviations, as where symbols occur in one half only; give a larger "
        "batch, or build it with bias=True"
    )


def _strength(sequences: list[Tensor]) -> float:
    """Squared mean over the variance of ``w x``: w of every other sequence, x of the rest; of one sequence, by halves.

    0 where there are no two rows.
    """
    parts = sequences if len(sequences) > 1 else list(sequences[0].tensor_split(2))
    seen, unseen = torch.cat(parts[::2]), torch.cat(parts[1::2])
    return _squared_mean_over_variance(seen, unseen) if len(unseen) else 0.0


def _squared_mean_over_variance(fitted: Tensor, rows: Tensor) -> float:
    """Of ``w x`` over rows x (n, D), with w of the rows ``fitted``."""
    combined = rows @ _steadiest(fitted)
    return float((combined.mean().square() / combined.var(correction=0)).nan_to_num(0.0, posinf=math.inf))


def _steadiest(rows: Tensor) -> Tensor:
    """w (D,) that minimises the variance of ``w x`` where its mean is 1, of rows (n, D): ``C^-1 mu`` but for its scale.

    With fewer rows than features by ``(C + r)^-1 mu = (mu - M^T (M M^T + n r)^-1 M mu) / r`` with the deviations M.
    """
    means = rows.mean(0)
    moved = rows - means
    ridge = len(rows) * (_RIDGE * rows.square().mean() + torch.finfo(torch.float64).tiny)
    few = len(rows) < rows.shape[1]
    gram = moved @ moved.T if few else moved.T @ moved
    gram.diagonal().add_(ridge)
    w = means - moved.T @ torch.linalg.solve(gram, moved @ means) if few else torch.linalg.solve(gram, means)
    return w / (w @ means)
