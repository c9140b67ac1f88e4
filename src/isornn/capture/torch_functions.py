"""Calls of the torch functions that run a recurrent module, as `torch.gru`, by the module whose weights they are given.

They are seen whatever the way that leads to them: a subclass's ``super().forward(x)``, or ``nn.GRU.forward(layer, x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from isornn.capture.calls import States, as_tuple, data_of

_OF_LAYERS = frozenset({torch.rnn_tanh, torch.rnn_relu, torch.lstm, torch.gru})
_OF_CELLS = frozenset({torch.rnn_tanh_cell, torch.rnn_relu_cell, torch.lstm_cell, torch.gru_cell})


@dataclass(frozen=True)
class FunctionCall:
    """A call of such a function, as one of the module.

    Args:
        module: whose weights it is given.
        inputs: packed, the longest sequence first, where the function is given batch sizes.
        state: the initial one; of a layer that was given none, 0.
    """

    module: nn.Module
    inputs: Tensor | PackedSequence
    state: States

    def as_module_returns(self, returned: Any) -> Any:
        """What the function returned, as the module's class does: an output and a state, of a cell the state alone."""
        if isinstance(self.module, nn.RNNCellBase):
            return returned
        output, *state = returned
        if isinstance(self.inputs, PackedSequence):
            output = PackedSequence(output, self.inputs.batch_sizes)
        return output, state[0] if len(state) == 1 else tuple(state)

    def as_function_returns(self, result: Any) -> Any:
        """The inverse of `as_module_returns`."""
        if isinstance(self.module, nn.RNNCellBase):
            return result
        output, state = result
        return (data_of(output), *as_tuple(state))


Record = Callable[[FunctionCall, Callable[[], Any]], Any]


class SeenFunctions(TorchFunctionMode):
    """Within the block ``record`` takes the place of those calls that are given a module's own weights.

    Args:
        modules: whose weights are known.
        record: gets the call and what makes it, and returns what it returned.
    """

    def __init__(self, modules: Collection[nn.Module], record: Record) -> None:
        super().__init__()
        self._modules, self._record = modules, record

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        positional: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        call = None if named else self._call(function, positional)
        if call is None:
            return function(*positional, **named)
        return self._record(call, lambda: function(*positional))

    def _call(self, function: Callable[..., Any], given: Sequence[Any]) -> FunctionCall | None:
        if function in _OF_CELLS:
            inputs, state, weight_ih, weight_hh, *_ = given
            of_cell = (m for m in self._modules if _has_weights(m, weight_ih, weight_hh))
            cell = next(of_cell, None)
            return None if cell is None else FunctionCall(cell, inputs, as_tuple(state))
        if function not in _OF_LAYERS:
            return None
        packed = isinstance(given[3], list)
        inputs, state, weights = (PackedSequence(*given[:2]), *given[2:4]) if packed else given[:3]
        layer = next((m for m in self._modules if vars(m).get("_flat_weights") is weights), None)
        return None if layer is None else FunctionCall(layer, inputs, as_tuple(state))


def _has_weights(module: nn.Module, weight_ih: Tensor, weight_hh: Tensor) -> bool:
    own = module._parameters
    return own.get("weight_ih") is weight_ih and own.get("weight_hh") is weight_hh
