"""The expression graph of a cell, `CellGraph`, by calling its methods once with torch.fx's symbols in place of tensors.

Whatever asks about the structure of a cell (its polynomial form, its typing, its gates' roles, its kernels) interprets
this graph; nothing else calls the methods to learn about them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isornn.cells.cell import Cell, Values
from isornn.cells.definition import check_definition
from isornn.cells.errors import CellError, brief
from isornn.cells.graph import INPUT, CellGraph, Leaf, Node, values_in
from isornn.cells.graph_checks import checked


@functools.cache
def graph_of(cell: Cell) -> CellGraph:
    """The cell's graph; cells that are equal share one.

    A method that cannot be traced is left out with the reason; the others are traced all the same. It has a branch that
    depends on values, draws random numbers, or reads a tensor from outside, which may change and may want a gradient.

    Raises:
        CellError: the cell has a mistake: as `check_definition`; a name that does not exist, a state that is not
            returned, an operation that changes a tensor in place, the input in the update of a cell that does not
            declare it, an operation over several units in a cell that is declared pointwise.

    >>> from isornn.cells import GRU
    >>> graph_of(GRU()).plain_reads, graph_of(GRU()).output_is_first_state
    (('r', 'z', 'nh'), True)
    """
    check_definition(cell)
    # The check has values, which a default device, "meta" above all, and fake tensors do not have.
    with torch.device("cpu"), unset_fake_temporarily():
        return _Tracing(cell).graph()


class _Refused(Exception):
    """What a cell's methods may not do; the message says what."""


def _in_place(operation: str) -> _Refused:
    reason = "changes a tensor in place, and gradients need the old one; use an operation that returns a new tensor"
    return _Refused(f"{operation} {reason}")


class _Symbol(fx.Proxy):
    """A symbol that refuses ``a += b``, which changes a tensor in place; fx.Proxy would compute ``a = a + b``."""

    def _refuse(self, other: Any) -> Any:
        raise _in_place("an assignment such as += or *=")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = _refuse
    __iand__ = __ior__ = __ixor__ = __imatmul__ = __ilshift__ = __irshift__ = _refuse


class _Constants(TorchDispatchMode):
    """Stops a trace at tensors whose value or gradient a graph would lose: all but those that the method makes."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise fx.proxy.TraceError(f"it draws random numbers, by {function}")
        if function is not torch.ops.aten.lift_fresh.default:  # which torch.tensor ends with
            for value in values_in(args, kwargs):
                self.check(value)
        found = function(*args, **kwargs)
        self.made += [value for value in tree_leaves(found) if isinstance(value, Tensor)]
        return found

    def check(self, value: Any) -> None:
        if isinstance(value, Tensor) and not any(value is made for made in self.made):
            raise fx.proxy.TraceError(
                f"it reads a tensor of shape {tuple(value.shape)} that is neither its argument nor made by it"
            )


class _Tracer(fx.proxy.GraphAppendingTracer):
    """Symbols for the results of operations.

    It refuses operations that change a tensor in place, and those on the input of a cell that does not declare it.
    What is computed under ``torch.no_grad`` is detached.
    """

    constants: _Constants
    undeclared: Node | None = None

    def proxy(self, node: Node) -> fx.Proxy:
        return _Symbol(node, self)

    def create_arg(self, value: Any) -> Any:
        self.constants.check(value)
        return super().create_arg(value)

    def create_proxy(self, kind: str, target: Any, *rest: Any, **options: Any) -> fx.Proxy:
        proxy = super().create_proxy(kind, target, *rest, **options)
        if torch.is_grad_enabled() or target is getattr:
            return proxy
        return super().create_proxy("call_method", "detach", (proxy,), {})

    def create_node(
        self,
        kind: str,
        target: fx.node.Target,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        spelled = target if isinstance(target, str) else getattr(target, "__name__", "")
        # operator.and_, or_ and not_ have an underscore for another reason
        operator = getattr(target, "__module__", None) == "_operator"
        in_place = spelled.endswith("_") and not spelled.endswith("__") and not operator
        if in_place or kwargs.get("inplace") or kwargs.get("out") is not None:
            raise _in_place(spelled)
        node = super().create_node(kind, target, args, kwargs, name, type_expr)
        self.check_declared(node)
        return node

    def check_declared(self, value: Any) -> None:
        """Refuse the undeclared input, and what is computed from it."""
        if isinstance(value, Node) and self.undeclared in (value, *value.all_input_nodes):
            raise _Refused(
                f"it uses the input {INPUT}, which is the layer's input unit by unit where the cell has the class "
                "attribute input_enters_pointwise = True, and otherwise None"
            )


class _Tracing:
    """One run of the cell's methods on symbols."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.fx_graph = fx.Graph()
        self.tracer = _Tracer(self.fx_graph)
        self.leaves: dict[Node, Leaf] = {}
        self.untraced: dict[str, str] = {}
        self.states = self._symbols("state", cell.states)
        self.new_states = self._symbols("new state", cell.states)
        self.gates = self._symbols("gate", cell.gates)
        self.parameters = self._symbols("parameter", cell.parameters)
        self.input = self._symbol(Leaf("input", INPUT))
        if not cell.input_enters_pointwise:
            self.tracer.undeclared = self.input.node

    def graph(self) -> CellGraph:
        reads = self._reads()
        update = self._update()
        output = self._traced("output", lambda: self.cell.output(Values(**self.new_states), self._all_u()))
        nodes = tuple(self.fx_graph.nodes)
        found = CellGraph(self.cell, self.leaves, nodes, reads, update, output, self.untraced)
        return checked(found)

    def _symbols(self, kind: str, names: Iterable[str]) -> dict[str, Any]:
        return {name: self._symbol(Leaf(kind, name)) for name in names}

    def _symbol(self, leaf: Leaf) -> fx.Proxy:
        node = self.fx_graph.placeholder(f"{leaf.kind}_{leaf.name}".replace(" ", "_"))
        self.leaves[node] = leaf
        return self.tracer.proxy(node)

    def _all_u(self) -> Values:
        return Values(**self.parameters, **self.gates)

    def _reads(self) -> dict[str, Any]:
        known = Values(**self.parameters)
        found = {}
        for gate, what in self.cell.gates.items():
            if what.state:
                value = self._traced("read", functools.partial(self.cell.read, gate, Values(**self.states), known))
                if value is not None:
                    found[gate] = value
            setattr(known, gate, self.gates[gate])
        return found

    def _update(self) -> dict[str, Any]:
        def call() -> Any:
            new = self.cell.update(Values(**self.states), self._all_u(), self.input)
            for value in new.values() if isinstance(new, Mapping) else ():
                self.tracer.check_declared(_node(value))
            return new

        new = self._traced("update", call)
        return {} if new is None else new

    def _traced(self, method: str, call: Callable[[], Any]) -> Any:
        """What ``call`` returns with nodes for symbols; ``None`` where it cannot be traced."""
        before = set(self.fx_graph.nodes)
        try:
            # What is off in these the method itself has switched off.
            with torch.inference_mode(False), torch.enable_grad(), _Constants() as self.tracer.constants:
                found = call()
        except CellError:  # a TypeError too
            raise
        except (fx.proxy.TraceError, TypeError, NotImplementedError, RuntimeError, ValueError) as error:
            self.untraced[method] = str(error).partition("\n")[0].replace(_Symbol.__name__, "a tensor")
            for node in reversed([node for node in self.fx_graph.nodes if node not in before]):
                self.fx_graph.erase_node(node)
            return None
        except AttributeError as error:
            raise CellError(f"{self.cell.name}.{method}: {_missing(error)}") from None
        except _Refused as error:
            raise CellError(f"{self.cell.name}.{method}: {error}") from None
        except Exception as error:
            raise CellError(f"{self.cell.name}.{method}: {type(error).__name__}: {error}") from error
        if method == "update":
            check_returned(self.cell, found)
            return {name: self._value(method, f"the new state {name!r}", found[name]) for name in self.cell.states}
        return self._value(method, "what it returns", found)

    def _value(self, method: str, what: str, value: Any) -> Any:
        if not isinstance(value, (fx.Proxy, Tensor, Real)):
            raise CellError(
                f"{self.cell.name}.{method}: {what} is {brief(value)}; a layer needs it to be computed from states or "
                "pre-activations, with a value for each unit"
            )
        return _node(value)


def _node(value: Any) -> Any:
    return value.node if isinstance(value, fx.Proxy) else value


def _missing(error: AttributeError) -> str:
    if not isinstance(error.obj, Values):
        return str(error)
    there = ", ".join(vars(error.obj)) or "none"
    return f"it asks for {error.name!r}, which is no state, gate or parameter that it can read there; there are {there}"


def _kind(value: Any) -> str:
    return "a tensor" if isinstance(value, fx.Proxy) else type(value).__name__


def check_returned(cell: Cell, new: Any) -> None:
    """Whether ``update`` returned every state, and nothing else.

    Raises:
        CellError: it did not.
    """
    if not isinstance(new, Mapping):
        raise CellError(f"{cell.name}.update: it returns {_kind(new)}; a dictionary of new states is needed")
    for name in cell.states:
        if name not in new:
            returned = ", ".join(new) or "no state"
            raise CellError(f"{cell.name}.update: the state {name!r} is not returned; it returns {returned}")
    for name in new:
        if name not in cell.states:
            raise CellError(f"{cell.name}.update: it returns {name!r}; its states are {', '.join(cell.states)}")
