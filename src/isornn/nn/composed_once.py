"""Torch's own recurrent layers with parametrised weights, computed once per pass."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from torch import Tensor, nn

# What torch's layer computes with at present, of which module.
_IN_USE: ContextVar[tuple[nn.Module, list[Tensor]] | None] = ContextVar("_IN_USE", default=None)


def compose_once(module: nn.RNNBase) -> None:
    """Torch's layers keep their weights in ``_flat_weights`` as well as in attributes, and compare the two.

    With parametrised weights they always differ: a pass would compute them four times, and leave tensors with a graph
    in the module, which cannot be copied. So the list is computed where it is read, once per pass.
    """
    kind: Any = type(module)  # parametrize has made it for this module and its copies
    if "_flat_weights" in vars(kind):
        return
    plain: Callable[..., Any] = kind.forward

    @wraps(plain)
    def forward(self: nn.RNNBase, *args: Any, **options: Any) -> Any:
        token = _IN_USE.set((self, _weights(self)))
        try:
            self.flatten_parameters()
            return plain(self, *args, **options)
        finally:
            _IN_USE.reset(token)

    def flat_weights(self: nn.RNNBase) -> list[Tensor]:
        used = _IN_USE.get()
        return used[1] if used is not None and used[0] is self else _weights(self)

    kind.forward = forward
    kind._flat_weights = property(flat_weights, lambda self, weights: None)
    kind._update_flat_weights = lambda self: None
    # What torch finds, and renews, once the parametrisations are removed.
    vars(module)["_flat_weights"] = [None] * len(module._flat_weights_names)


def _weights(module: nn.RNNBase) -> list[Tensor]:
    return [getattr(module, name) for name in module._flat_weights_names]
