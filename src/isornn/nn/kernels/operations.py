"""The ``aten`` operations that kernels are printed of, and how others are written with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def ONE() -> float:
    """A node of the number 1, as derivatives begin with."""
    return 1.0


def ZERO() -> float:
    """A node of the number 0."""
    return 0.0


COPIES = {aten.detach.default, aten.alias.default, aten.clone.default, aten.view.default, aten.expand.default}
CONVERSIONS = {aten._to_copy.default, aten.to.dtype}
FILLED = {aten.ones_like.default: ONE, aten.zeros_like.default: ZERO, aten.empty_like.default: ZERO}
REVERSED = {aten.rsub.Scalar, aten.rsub.Tensor}
AS_OTHERS = {
    aten.add.Scalar: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    **dict.fromkeys(REVERSED, aten.sub.Tensor),
    aten.mul.Scalar: aten.mul.Tensor,
    aten.div.Scalar: aten.div.Tensor,
    aten.where.Scalar: aten.where.self,
    aten.where.ScalarOther: aten.where.self,
    aten.where.ScalarSelf: aten.where.self,
    aten.sign.default: aten.sgn.default,
    aten.masked_fill.Tensor: aten.masked_fill.Scalar,
    aten.bitwise_and.Tensor: aten.logical_and.default,
    aten.bitwise_or.Tensor: aten.logical_or.default,
    aten.bitwise_xor.Tensor: aten.ne.Tensor,
    aten.__and__.Tensor: aten.logical_and.default,
    aten.__or__.Tensor: aten.logical_or.default,
    aten.__xor__.Tensor: aten.ne.Tensor,
    aten.bitwise_not.default: aten.logical_not.default,
}
CHEAP = {
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.neg.default, aten.abs.default),
    *(aten.relu.default, aten.maximum.default, aten.minimum.default, aten.clamp_min.default, aten.clamp_max.default),
    *(aten.where.self, aten.masked_fill.Scalar, aten.sgn.default, aten.sigmoid_backward.default),
    *(aten.tanh_backward.default, aten.threshold_backward.default, ONE, ZERO),
}
_LOGICAL = {aten.logical_and.default, aten.logical_or.default, aten.logical_not.default}
PREDICATES = {
    *_LOGICAL,
    *(aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.eq.Scalar, aten.ne.Scalar),
    *(aten.gt.Tensor, aten.ge.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.eq.Tensor, aten.ne.Tensor),
}
COSTLY = {
    *(aten.sigmoid.default, aten.tanh.default, aten.exp.default, aten.expm1.default, aten.log.default),
    *(aten.log1p.default, aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.div.Tensor),
    *(aten.sin.default, aten.cos.default, aten.erf.default),
}
VECTORISED = COSTLY - {aten.log.default, aten.sin.default, aten.cos.default, aten.erf.default}  # in compiled loops
PRINTABLE = CHEAP | PREDICATES | COSTLY


def is_condition(function: Any, place: int) -> bool:
    return function in _LOGICAL or (function, place) in ((aten.where.self, 0), (aten.masked_fill.Scalar, 1))


def named_arguments(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """An operation's arguments by name and in the order of its signature, with their defaults."""
    signature = function._schema.arguments
    given = dict(zip([argument.name for argument in signature], args, strict=False)) | dict(kwargs)
    return {argument.name: given.get(argument.name, argument.default_value) for argument in signature}


def composed(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An operation by others."""
    first = args[0]
    if function is aten.clamp.default:
        _, low, high = named_arguments(function, args, kwargs).values()
        bounded = first if low is None else aten.clamp_min(first, low)
        return bounded if high is None else aten.clamp_max(bounded, high)
    if function is aten.pow.Tensor_Scalar and args[1] in _POWERS:
        return _POWERS[args[1]](first)
    return decomposition_table[function](*args, **kwargs)


_POWERS: Mapping[float, Callable[[Tensor], Tensor]] = {
    0.5: torch.sqrt,
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    4: lambda x: (x * x) * (x * x),
    -1: torch.reciprocal,
    -2: lambda x: torch.reciprocal(x * x),
}
