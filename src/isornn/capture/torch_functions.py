"""Calls of what computes a recurrent module: of torch's functions, as `torch.gru`, by the module whose weights they are
given, and of isornn's layers.

They are seen whatever the way that leads to them: a subclass's ``super().forward(x)``, or ``nn.GRU.forward(layer, x)``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from isornn.capture.calls import as_tuple, data_of
from isornn.nn.rnn import RNN

_OF_LAYERS = frozenset({torch.rnn_tanh, torch.rnn_relu, torch.lstm, torch.gru})
_OF_CELLS = frozenset({torch.rnn_tanh_cell, torch.rnn_relu_cell, torch.lstm_cell, torch.gru_cell})


@dataclass(frozen=True)
class FunctionCall:
    """A call of such a function, as one of the module.

    Args:
        module: whose weights it is given.
        inputs: packed, the longest sequence first, where torch's function is given batch sizes.
        state: the initial one; of a layer of torch that was given none, 0.
        lengths, previous: as isornn's layers have them.
    """

    module: nn.Module
    inputs: Tensor | PackedSequence
    state: Any
    lengths: Any = None
    previous: Any = None

    def as_module_returns(self, returned: Any) -> Any:
        """What the function returned, as the module's class does: an output and a state, of a cell the state alone."""
        if isinstance(self.module, nn.RNNCellBase | RNN):
            return returned
        output, *state = returned
        if isinstance(self.inputs, PackedSequence):
            output = PackedSequence(output, self.inputs.batch_sizes)
        return output, state[0] if len(state) == 1 else tuple(state)

    def as_function_returns(self, result: Any) -> Any:
        """The inverse of `as_module_returns`."""
        if isinstance(self.module, nn.RNNCellBase | RNN):
            return result
        output, state = result
        return (data_of(output), *as_tuple(state))


Record = Callable[[FunctionCall, Callable[[], Any]], Any]


@contextmanager
def seen_calls(modules: Collection[nn.Module], record: Record) -> Iterator[None]:
    """Within the block ``record`` takes the place of what computes these modules.

    Args:
        modules: those whose calls are to be seen.
        record: gets the call and what makes it, and returns what it returned.
    """
    with ExitStack() as layers:
        for module in modules:
            if isinstance(module, RNN):
                layers.enter_context(replaced(module, "_over_time", _SeenLayer(module, record)))
        with SeenFunctions(modules, record):
            yield


@contextmanager
def replaced(module: nn.Module, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Within the block ``method`` takes the place of the module's own of that name."""
    held = module.__dict__
    before = {name: held[name]} if name in held else {}
    held[name] = method
    try:
        yield
    finally:
        held.pop(name, None)
        held.update(before)


class Replacement:
    """What takes a module's method's place for a time; copies and pickles of the module have their own."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        own: Callable[..., Any] = copy.deepcopy(self._own, memo)
        return own

    def __reduce__(self) -> Any:
        return self._own.__reduce__()


class _SeenLayer(Replacement):
    """What computes a layer of isornn, as long as its calls are seen."""

    def __init__(self, module: RNN, record: Record) -> None:
        super().__init__(module._over_time)
        self._module, self._record = module, record

    def __call__(self, *given: Any) -> Any:
        return self._record(FunctionCall(self._module, *given), lambda: self._own(*given))


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
