"""Which gates each stacked parameter of a cell's layer holds, and where; torch's own layout for torch's own cells."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from isornn.cells import GRU, LSTM, Cell, CellError, Vanilla
from isornn.cells.graph import CellGraph, Node
from isornn.cells.trace import graph_of


@dataclass(frozen=True)
class GateTensors:
    """One gate's tensors, as views into a module's parameters: writing to them under ``no_grad`` writes to it.

    Shapes: ``recurrent`` (N, P), P = N unless the module projects its state; ``input`` and ``previous_input`` (N, D);
    each of ``biases`` (N,). ``None``, or no biases, where the module has no such tensor. The pre-activation adds all
    ``biases``.

    >>> from isornn.nn.gate_tensors import recurrent_layers
    >>> forget = recurrent_layers(torch.nn.LSTM(3, 8))[0].gates["f"]
    >>> forget.recurrent.shape, len(forget.biases)
    (torch.Size([8, 8]), 2)
    """

    recurrent: Tensor | None
    input: Tensor | None
    previous_input: Tensor | None
    biases: tuple[Tensor, ...]


MODES: Mapping[Cell, str] = {LSTM(): "LSTM", GRU(): "GRU", Vanilla("tanh"): "RNN_TANH", Vanilla("relu"): "RNN_RELU"}
"""torch's names of the cells that it has."""


@dataclass(frozen=True)
class Layout:
    """Gates by stacked parameter, each in the order of ``cell.gates``.

    Args:
        stacks: by parameter: ``weight_ih`` has the gates that read the input, ``weight_ph`` the previous input,
            ``weight_hh`` and ``bias_hh`` the state, ``bias_ih`` all but those that read the state alone.
        plain: the gates whose matrix multiplies the first state itself.
        results: how many sequences a layer computes: the states, and the output where that is not the first of them.
        key: the cell as a text, which is what a torch operation can take: its class by name, as pickles have it, and
            its options.
        mode: torch's name of the cell, where it has it with this layout.
    """

    stacks: Mapping[str, tuple[str, ...]]
    plain: tuple[str, ...]
    results: int
    key: str
    mode: str | None

    @staticmethod
    @functools.cache
    def of(cell: Cell) -> Layout:
        """The layout of a cell.

        Raises:
            CellError: the cell has a mistake; none of its gates reads the input, so that a layer of it would ignore
                its argument; a parameter of it has the name of one of the layer's.

        >>> from isornn.cells import GRU
        >>> layout = Layout.of(GRU())
        >>> layout.stacks["weight_hh"], layout.stacks["bias_ih"]
        (('r', 'z', 'nh'), ('r', 'z', 'nx'))
        """
        gates = cell.gates.items()
        stacks = {
            "weight_ih": tuple(name for name, reads in gates if reads.input),
            "weight_hh": tuple(name for name, reads in gates if reads.state),
            "weight_ph": tuple(name for name, reads in gates if reads.previous_input),
            "bias_ih": tuple(name for name, reads in gates if reads.input or reads.previous_input or not reads.state),
            "bias_hh": tuple(name for name, reads in gates if reads.state),
        }
        graph = graph_of(cell)
        if not stacks["weight_ih"] and not stacks["weight_ph"]:
            raise CellError(f"{cell.name}.gates: none reads the input or the previous one, as a gate of a layer has to")
        for name in cell.parameters:
            if name in stacks or name in _OTHER_PARAMETERS:
                raise CellError(f"{cell.name}.parameters: {name!r} is not allowed; the layer has one of this name")
        _check_computed(graph)
        results = len(cell.states) + (not graph.output_is_first_state)
        return Layout(stacks, graph.plain_reads, results, _key_of(cell), MODES.get(cell))

    @property
    def driven(self) -> tuple[str, ...]:
        """The gates that read anything but the state, or nothing: what is known of them before the recurrence."""
        return self.stacks["bias_ih"]

    @property
    def undriven(self) -> tuple[str, ...]:
        """The gates that read the state alone, as the GRU's nh."""
        return tuple(name for name in self.stacks["weight_hh"] if name not in self.driven)

    def rows(self, parameter: str, gate: str, hidden: int) -> slice | None:
        """The rows of ``gate`` in ``parameter`` with ``hidden`` units; ``None`` where it has none."""
        if gate not in self.stacks[parameter]:
            return None
        start = self.stacks[parameter].index(gate) * hidden
        return slice(start, start + hidden)

    def matrix(self, weight_ih: Tensor | None, weight_ph: Tensor | None, hidden: int) -> Tensor:
        """(..., K N, D) or (..., K N, 2 D): what multiplies x_t, or x_t and x_(t-1) in one, for the K driven gates."""
        if weight_ph is None:
            assert weight_ih is not None  # a gate reads the one or the other
            return self._with_zeros("weight_ih", weight_ih, hidden)
        previous = self._with_zeros("weight_ph", weight_ph, hidden)
        now = torch.zeros_like(previous) if weight_ih is None else self._with_zeros("weight_ih", weight_ih, hidden)
        return torch.cat([now, previous], -1)

    def _with_zeros(self, parameter: str, weight: Tensor, hidden: int) -> Tensor:
        if self.stacks[parameter] == self.driven:
            return weight
        blank = weight.new_zeros(*weight.shape[:-2], hidden, weight.shape[-1])
        parts = [self.rows(parameter, gate, hidden) for gate in self.driven]
        return torch.cat([blank if rows is None else weight[..., rows, :] for rows in parts], -2)

    def biases(
        self, bias_ih: Tensor | None, bias_hh: Tensor | None, hidden: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """(..., K N) of the K driven gates, both biases in one, and (..., J N) of the J others."""
        if bias_hh is None:
            return bias_ih, None
        if self.stacks["bias_hh"] == self.driven:
            return _sum(bias_ih, bias_hh), None
        own = dict(zip(self.stacks["bias_hh"], bias_hh.split(hidden, -1), strict=True))
        offset = torch.cat([own[gate] for gate in self.undriven], -1) if self.undriven else None
        blank = torch.zeros_like(bias_hh[..., :hidden])
        return _sum(bias_ih, torch.cat([own.get(gate, blank) for gate in self.driven], -1)), offset


def _sum(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first + second


def _check_computed(graph: CellGraph) -> None:
    """Refuse constants in place of tensors of units, which the theory alone can use."""
    reading = [gate for gate, what in graph.cell.gates.items() if what.state]
    results = {
        "update": {f"the new state {name!r}": value for name, value in graph.update.items()},
        "read": {f"what it returns for {gate!r}": graph.reads.get(gate) for gate in reading},
        "output": {"what it returns": graph.output},
    }
    for method in results.keys() - graph.untraced.keys():
        for what, value in results[method].items():
            if not isinstance(value, Node):
                raise CellError(
                    f"{graph.cell.name}.{method}: {what} is {value!r}; a layer needs it to be computed from states or "
                    "pre-activations, with a value for each unit"
                )


_OTHER_PARAMETERS = ("weight_hr", "weight_phi", "bias_phi")  # of a layer, not stacked by gate

_NO_JSON = "no value of JSON"
_CELLS: dict[str, Cell] = {}  # by key, as an operation is given a text


def _key_of(cell: Cell) -> str:
    kind = type(cell)
    options = {option.name: getattr(cell, option.name) for option in fields(cell) if option.init}
    name = {"module": kind.__module__, "name": kind.__qualname__, "options": options}
    for version in itertools.count():  # a class may be defined again under its name, as in a notebook
        key = json.dumps(
            name | ({"version": version} if version else {}), default=lambda value: {_NO_JSON: repr(value)}
        )
        if _CELLS.setdefault(key, cell) == cell:
            return key
    raise AssertionError


def cell_of(key: str) -> Cell:
    """The cell whose `Layout.key` this is; exported programs hold it, which may come from strangers.

    Raises:
        CellError: it is no cell, one of a module outside isornn that is not imported, as only its user imports it, or
            one with an option that a text cannot hold and of which this process has made no layer.

    >>> from isornn.cells import GRU
    >>> cell_of(Layout.of(GRU()).key)
    GRU(gate='sigmoid')
    >>> cell_of('{"module": "os", "name": "system", "options": {"command": "ls"}}')
    Traceback (most recent call last):
    ...
    isornn.cells.errors.CellError: os.system: it is no cell
    """
    if key in _CELLS:
        return _CELLS[key]
    found = json.loads(key)
    module, name = found["module"], found["name"]
    if module.partition(".")[0] == "isornn":
        import_module(module)
    elif module not in sys.modules:
        raise CellError(f"{module}.{name}: import {module} before a program that has this cell")
    kind = attrgetter(name)(sys.modules[module])
    if not (isinstance(kind, type) and issubclass(kind, Cell)):
        raise CellError(f"{module}.{name}: it is no cell")
    for option, value in found["options"].items():
        if isinstance(value, dict):
            reason = f"a program does not hold its option {option}, {value.get(_NO_JSON)}"
            raise CellError(f"{module}.{name}: {reason}; make a layer of the cell before the program is used")
    return kind(**{option: _hashable(value) for option, value in found["options"].items()})


def _hashable(value: Any) -> Any:
    """Tuples for what JSON has as lists."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
