"""Recurrent matrices ``W = U diag(s) V^T`` whose singular values stay within a margin of 1, in any module.

Source: Vorontsov, Trabelsi, Kadoury & Pal 2017, section 3.1. `isornn.optim.GeodesicSGD` trains the factors.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isornn.nn import draws
from isornn.nn.composed_once import compose_once
from isornn.nn.gate_tensors import kind_of
from isornn.nn.spectral_matrix import SpectralMatrix, are_orthogonal, retract_

Start = Literal["orthogonal", "glorot", "identity"]
Module = TypeVar("Module", bound=nn.Module)

_PRECISIONS = (torch.float32, torch.float64)


def parametrize_spectral_(
    module: Module,
    name: str,
    margin: float | None = 0.1,
    *,
    start: Start | None = "orthogonal",
    generator: torch.Generator | None = None,
) -> Module:
    """Factorise one of a module's matrices, `SpectralMatrix`, in place.

    For `torch.nn.RNN`, `LSTM` and `GRU`, the layers of `isornn.nn`, and any module with a matrix that is square or a
    stack of square blocks, as the gates of ``weight_hh_l0`` are; each block has its own factors. torch's and our
    recurrent layers compose W once for a whole sequence. (A torch ``...Cell`` is one step: step it within
    `torch.nn.utils.parametrize.cached`.) Make the optimiser afterwards: the parameters are new.

    The parameters are ``module.parametrizations.<name>.original0``, 1, 2. state_dict, copies and assignment
    (``module.weight_hh_l0 = W``) work as `torch.nn.utils.parametrize` has them; a state dict brings its margin with
    it. torch does not pickle parametrised modules.

    Any optimiser may train them: W keeps its margin whatever the values of U and V (`SpectralMatrix`), under
    `torch.optim.Adam` as under `isornn.optim.GeodesicSGD`, and averaged as by `torch.optim.swa_utils.AveragedModel`.

    Args:
        module: the module that owns the matrix.
        name: the parameter's name.
        margin: m, or ``None`` for no bound.
        start: W_k is at first Haar orthogonal, Glorot normal (variance 1/N) or the identity. ``None``: what it is
            now. Singular values outside the margin move to its end, with a warning: most of a Glorot or a
            torch start's do.
        generator: source of the draws.

    Returns:
        The module.

    Raises:
        ValueError: no such parameter; its shape or precision; the margin; the start.

    Source: Vorontsov et al. 2017, section 3.1.

    >>> lstm = parametrize_spectral_(nn.LSTM(3, 8), "weight_hh_l0", margin=0.1)
    >>> lstm.parametrizations.weight_hh_l0.original1.shape
    torch.Size([4, 8])
    >>> torch.allclose(singular_values(lstm, "weight_hh_l0"), torch.ones(4, 8))
    True
    """
    parametrization = SpectralMatrix(margin)
    matrix = _checked_matrix(module, name)
    if start is not None:
        _set(matrix, start, generator)
    parametrize.register_parametrization(module, name, parametrization)
    if isinstance(module, nn.RNNBase):
        compose_once(module)
    return module


def set_margin_(
    module: Module, name: str, margin: float | None, *, optimizer: torch.optim.Optimizer | None = None
) -> Module:
    """Change the margin of a factorised matrix and keep W.

    Singular values beyond a narrower margin move to it, with a warning, as `SpectralMatrix.right_inverse` says.

    Args:
        module, name: as in `parametrize_spectral_`.
        margin: the new m, or ``None``.
        optimizer: the `GeodesicSGD` that trains the matrix: it divides the spectrum's rate by the margin.

    Returns:
        The module.

    Raises:
        ValueError: the matrix is not factorised; the margin; the optimiser has no group of this spectrum alone.

    >>> rnn = parametrize_spectral_(nn.RNN(3, 8), "weight_hh_l0", margin=0.1)
    >>> set_margin_(rnn, "weight_hh_l0", 0.5).parametrizations.weight_hh_l0[0]
    SpectralMatrix(margin=0.5)
    """
    matrix, (_, p, _) = factors(module, name)
    group = None if optimizer is None else _group_of(p, optimizer)
    matrix.change_margin_(p, margin)
    if group is not None:
        group["margin"] = matrix.margin
    return module


def is_spectral(module: nn.Module, name: str) -> bool:
    """Whether ``parametrize_spectral_(module, name)`` was called.

    >>> is_spectral(nn.RNN(3, 8), "weight_hh_l0")
    False
    """
    return parametrize.is_parametrized(module, name) and isinstance(_list(module, name)[0], SpectralMatrix)


def factors(module: nn.Module, name: str) -> tuple[SpectralMatrix, tuple[Tensor, Tensor, Tensor]]:
    """The parametrisation of a factorised matrix, and its parameters U, p and V.

    Raises:
        ValueError: the matrix is not factorised.

    >>> rnn = parametrize_spectral_(nn.RNN(2, 4), "weight_hh_l0", margin=0.1)
    >>> _, (u, p, v) = factors(rnn, "weight_hh_l0")
    >>> u.shape, p.shape, v.shape
    (torch.Size([4, 4]), torch.Size([4]), torch.Size([4, 4]))
    """
    if not is_spectral(module, name):
        raise ValueError(f"name: {name!r} is not allowed; parametrize_spectral_ has not factorised it")
    known = _list(module, name)
    matrix = known[0]
    assert isinstance(matrix, SpectralMatrix)
    return matrix, (known.original0, known.original1, known.original2)


def singular_values(module: nn.Module, name: str) -> Tensor:
    """Singular values of each N x N block of a matrix, (K, N), (N,) for one block; differentiable.

    For a factorised matrix s, in the order of the factors and, where m > 1, with signs; for any other by a
    decomposition, from the largest to the smallest.

    Raises:
        ValueError: no such matrix, or its shape.

    >>> rnn = nn.RNN(3, 2)
    >>> rnn.weight_hh_l0.data = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    >>> singular_values(rnn, "weight_hh_l0").tolist()
    [2.0, 1.0]
    """
    if is_spectral(module, name):
        matrix, (_, p, _) = factors(module, name)
        return matrix.spectrum(p)
    values: Tensor = torch.linalg.svdvals(blocks(module, name))
    return values


def blocks(module: nn.Module, name: str) -> Tensor:
    """A matrix' N x N blocks, (K, N, N), (N, N) for one.

    Raises:
        ValueError: no such matrix, or its shape.

    >>> blocks(nn.LSTM(2, 4), "weight_hh_l0").shape
    torch.Size([4, 4, 4])
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"name: {name!r} is not allowed; {kind_of(module)} has no such tensor")
    _check_shape(module, name, weight)
    return weight.unflatten(0, (-1, weight.shape[1])).squeeze(0)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """The parameters of a model as `GeodesicSGD` wants them: all bases, each spectrum with its margin, the rest.

    Only parameters that require a gradient; empty groups are left out. Bases that another optimiser has moved off the
    manifold are projected back onto it, which does not change W.

    >>> from isornn.nn import SpectralRNN
    >>> model = SpectralRNN(3, 8, num_layers=2)
    >>> [group["kind"] for group in groups(model)]
    ['bases', 'spectrum', 'spectrum', 'rest']
    """
    bases: list[Tensor] = []
    spectra: list[dict[str, Any]] = []
    for module in model.modules():
        known: Any = module.parametrizations if parametrize.is_parametrized(module) else ()
        for name in known:
            if is_spectral(module, name):
                matrix, (left, p, right) = factors(module, name)
                if not are_orthogonal((left, right)):
                    retract_((left, right))
                bases += [left, right]
                spectra.append({"params": [p], "kind": "spectrum", "margin": matrix.margin})
    taken = {id(parameter) for parameter in (*bases, *(group["params"][0] for group in spectra))}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    found = [{"params": bases, "kind": "bases"}, *spectra, {"params": rest, "kind": "rest"}]
    for group in found:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return [group for group in found if group["params"]]


def _set(matrix: Tensor, start: Start, generator: torch.Generator | None) -> None:
    size = matrix.shape[1]
    shape = (matrix.shape[0] // size, size, size)
    if start == "orthogonal":
        drawn = draws.haar(shape, generator)
    elif start == "glorot":
        drawn = draws.dense(shape, 1.0, generator)
    elif start == "identity":
        drawn = torch.eye(size, dtype=torch.float64).expand(shape)
    else:
        raise ValueError(f"start: {start!r} is not allowed; it must be one of {', '.join(get_args(Start))}, or None")
    with torch.no_grad():
        matrix.copy_(drawn.flatten(0, 1))


def _list(module: nn.Module, name: str) -> Any:
    known: Any = module.parametrizations
    return known[name]


def _group_of(p: Tensor, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if "margin" in group and len(group["params"]) == 1 and group["params"][0] is p:
            return group
    raise ValueError("optimizer: it has no group of this spectrum alone; make it with isornn.nn.spectral.groups")


def _checked_matrix(module: nn.Module, name: str) -> Tensor:
    if parametrize.is_parametrized(module, name):
        raise ValueError(f"name: {name!r} is not allowed; it is parametrised already")
    matrix = module._parameters.get(name)
    if matrix is None:
        allowed = ", ".join(key for key, _ in module.named_parameters(recurse=False))
        raise ValueError(f"name: {name!r} is not allowed; {kind_of(module)} has {allowed}")
    _check_shape(module, name, matrix)
    if matrix.dtype not in _PRECISIONS:
        raise ValueError(f"{name}: {matrix.dtype} is not allowed; it must be float32 or float64")
    return matrix


def _check_shape(module: nn.Module, name: str, matrix: Tensor) -> None:
    square = matrix.dim() == 2 and matrix.shape[0] % matrix.shape[1] == 0
    # An LSTM's matrix with proj_size may be cut into squares, but those are not its gates.
    hidden = getattr(module, "hidden_size", None)
    if not square or (hidden is not None and matrix.shape[1] != hidden):
        size = "N" if hidden is None else hidden
        raise ValueError(
            f"{name}: shape {tuple(matrix.shape)} is not allowed; it must be one or more {size} x {size} blocks"
        )
