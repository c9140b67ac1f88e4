"""The Gaussian process that a wide random network is: the covariance of its outputs on given sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from isornn.cells import Cell, Gate, Input, Spec
from isornn.cells.arguments import seeded, whole_number
from isornn.modes import usual_modes
from isornn.theory.assumptions import check_assumptions
from isornn.theory.quantity import over_replicates
from isornn.theory.reasons import TOO_LARGE, TheoryMissing
from isornn.theory.tied.moments import OutOfReach, TooLarge, closed_output_moments, sampled_output_moments
from isornn.theory.tied.paths import TiedLaws

Readout = Literal["last", "mean"]
REPLICATES = 8
# Units of a replicate: at least as many as pre-activations of a gate, at least so many, and more for few sequences.
FEWEST_UNITS, BUDGET = 2048, 2**20
# Numbers a gate that are held at once.
TOGETHER = 2**22


@dataclass(frozen=True)
class KernelEstimate:
    """A kernel and what is uncertain about it.

    Args:
        value: ``(B, B2)``.
        stderr: standard error of each entry, over 8 independent replicates; 0 where the kernel is exact.

    >>> from isornn.cells import Vanilla
    >>> kernel_estimate(Vanilla(), torch.ones(1, 3, 2)).stderr.item()  # exact
    0.0
    """

    value: Tensor
    stderr: Tensor


@usual_modes()
def kernel(
    cell_or_spec: Cell | Spec,
    x: Tensor,
    x2: Tensor | None = None,
    *,
    readout: Readout = "last",
    units: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Covariance of the outputs of random tied networks of infinite width on real sequences: their NNGP kernel.

    A network with weights and biases drawn once by the spec, and a linear readout ``y = v . o`` with
    ``v_i ~ N(0, 1/N)``, is as N grows a Gaussian process over sequences with mean 0 and covariance

        K(a, b) = E[o_a o_b],

    the expectation over units, o the cell's output at the last step or its mean over the steps. Pre-activations are
    jointly Gaussian over all steps and sequences,

        Cov(u_k,a^t, u_k,b^s) = weight_var_k E[r_a^(t-1) r_b^(s-1)] + input_var_k x_a^t . x_b^s / D
                                + previous_input_var_k x_a^(t-1) . x_b^(s-1) / D + bias_var_k,

    r what ``W_k`` reads. States and the input before the first step are 0. Where the input enters pointwise
    (`Minimal`), it is Phi x with ``Phi_ij ~ N(0, 1/D)``.

    The vanilla network closes on pairs of sequences and is exact (identity, tanh and sigmoid to 1e-10, relu without a
    mean bias). Every other cell, and a transition too steep for its series, is sampled: paths of units, 8 times
    independently. Each of the 8 is in law a network of so many units whose matrices are integrated out, so its mean is
    off by a share of the order of 1/units, as a network's is, and its noise by 1/sqrt(units). An estimate is symmetric
    and positive semi-definite, as a Gram matrix. A call costs of the order of ``8 units (B T)^2`` operations a gate,
    and memory for ``units B T`` numbers a gate.

    Differentiable in every variance and mean bias that is a tensor with ``requires_grad``, and in x: with equal
    generators the estimate is one and the same function of them. A variance of exactly 0 takes no gradient.

    Blocks of a Gaussian process belong to one call: ``kernel(spec, torch.cat((train, test)))``, then cut. Two calls
    have errors of their own.

    Args:
        cell_or_spec: a spec, plain numbers, no batch, whose own input law and ``biases`` do not matter here. A bare
            cell stands for weight_var, input_var and previous_input_var 1 in whatever gate reads these, without
            biases: unlike the named starts that depends on no width.
        x: sequences ``(B, T, D)``.
        x2: sequences ``(B2, T, D)`` for the other side; x where not given.
        readout: ``"last"`` output or ``"mean"`` over the steps.
        units: sampled units in each replicate; by default at least 2048, at least B T, and 2^20 / (B T).
        generator: randomness; by default seeded with 0, so that equal calls agree.

    Returns:
        float64 on the CPU, ``(B, B2)``. `kernel_estimate` gives its standard error too.

    Raises:
        ValueError: x or x2 of another shape, not floating point, or not finite; a batch of specs; an unknown readout;
            fewer than 1 unit.
        TheoryMissing: an update that is not pointwise, an ``"identity"`` ensemble, or states that grow beyond double
            precision.

    Sources: Yang 2019 (Tensor Programs I); Lee et al. 2018 (deep networks as Gaussian processes).

    >>> from isornn.cells import GRU
    >>> x = torch.tensor([[[1.0], [0.0]], [[0.9], [0.1]], [[-1.0], [1.0]]])
    >>> k = kernel(GRU(), x, units=500)
    >>> bool(k[0, 1] > k[0, 2]), bool(torch.equal(k, k.T))
    (True, True)
    """
    return kernel_estimate(cell_or_spec, x, x2, readout=readout, units=units, generator=generator).value


@usual_modes()
def kernel_estimate(
    cell_or_spec: Cell | Spec,
    x: Tensor,
    x2: Tensor | None = None,
    *,
    readout: Readout = "last",
    units: int | None = None,
    generator: torch.Generator | None = None,
) -> KernelEstimate:
    """`kernel` with the standard error of each entry.

    Args, raises, source: as `kernel`.

    >>> from isornn.cells import LSTM, Vanilla
    >>> x = torch.ones(1, 3, 2)
    >>> found = kernel_estimate(LSTM(), x, units=1000)
    >>> bool(found.stderr < 0.05 * found.value), kernel_estimate(Vanilla(), x).stderr.item()
    (True, 0.0)
    """
    spec, everything = _spec(cell_or_spec), _together(x, x2)
    if readout not in get_args(Readout):
        raise ValueError(f"readout: {readout!r} is not allowed; it must be 'last' or 'mean'")
    if units is not None:
        units = whole_number("units", units)
    sequences, steps, inputs = everything.shape
    count = units or max(FEWEST_UNITS, sequences * steps, BUDGET // (sequences * steps))
    tokens = everything.movedim(1, 0).reshape(-1, inputs)
    gram = (tokens @ tokens.T / inputs).reshape(steps, sequences, steps, sequences)
    generator = seeded(generator)
    found = _estimate(spec, gram, readout == "mean", count, generator)
    if not bool(torch.isfinite(found.value).all()):
        raise TheoryMissing(f"{spec.cell.name}: {TOO_LARGE}")
    rows = len(x)
    return found if x2 is None else KernelEstimate(found.value[:rows, rows:], found.stderr[:rows, rows:])


def _estimate(spec: Spec, gram: Tensor, mean: bool, units: int, generator: torch.Generator) -> KernelEstimate:
    """Exact where the cell allows it, else sampled."""
    laws = TiedLaws.of(spec)
    try:
        values = closed_output_moments(spec, gram, mean)[None]
    except OutOfReach:
        values = _sampled(laws, gram, mean, units, generator)
    value, error = over_replicates(values)
    return KernelEstimate((value + value.mT) / 2, error.detach())


def _sampled(laws: TiedLaws, gram: Tensor, mean: bool, units: int, generator: torch.Generator) -> Tensor:
    """Replicates ``(R, S, S)``, as many together as memory should hold."""
    together = min(max(1, TOGETHER // (units * math.prod(gram.shape[:2]))), REPLICATES)
    counts = [min(together, REPLICATES - begun) for begun in range(0, REPLICATES, together)]
    try:
        return torch.cat([sampled_output_moments(laws, gram, mean, units, count, generator) for count in counts])
    except TooLarge:
        raise TheoryMissing(f"{laws.units.cell.name}: {TOO_LARGE}") from None


def _spec(cell_or_spec: Cell | Spec) -> Spec:
    if isinstance(cell_or_spec, Cell):
        gates = {
            name: Gate(float(reads.state), float(reads.input), float(reads.previous_input))
            for name, reads in cell_or_spec.gates.items()
        }
        return Spec(cell_or_spec, gates)
    if not isinstance(cell_or_spec, Spec):
        raise ValueError(f"cell_or_spec: {cell_or_spec!r} is not allowed; it must be a Cell or a Spec")
    if cell_or_spec.batch_shape:
        shape = tuple(cell_or_spec.batch_shape)
        raise ValueError(f"cell_or_spec: a batch of shape {shape} is not allowed; one spec at a time")
    check_assumptions(cell_or_spec)
    return replace(cell_or_spec, input=Input(), biases="fixed")


def _together(x: Tensor, x2: Tensor | None) -> Tensor:
    """All sequences, those of x first."""
    first = _sequences("x", x)
    if x2 is None:
        return first
    second = _sequences("x2", x2)
    if second.shape[1:] != first.shape[1:]:
        raise ValueError(f"x2: shape {tuple(x2.shape)} is not allowed; steps and inputs are those of x")
    return torch.cat((first, second))


def _sequences(name: str, x: Tensor) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(f"{name}: {type(x).__name__} is not allowed; it must be a floating-point tensor (B, T, D)")
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"{name}: shape {tuple(x.shape)} is not allowed; it must be (B, T, D), each at least 1")
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name}: values that are not finite are not allowed")
    return x.to("cpu", torch.float64)
