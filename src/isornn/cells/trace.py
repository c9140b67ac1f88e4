"""A cell's ``read``, ``update`` and ``output`` as one expression graph, which answers what the cell *is*.

The methods are called once with torch.fx's symbols in place of tensors. Whatever asks about the structure of a cell
(its polynomial form, its typing, its gates' roles, its kernels) interprets this graph; nothing else calls the methods
to learn about them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isornn.cells.cell import Cell, Values
from isornn.cells.definition import CellError, check_definition

INPUT = "x"

Node = fx.Node


@dataclass(frozen=True)
class Leaf:
    """A free variable of the graph.

    Args:
        kind: ``"state"``, ``"gate"`` (a pre-activation), ``"parameter"``, ``"input"``, or ``"new state"`` (what
            ``output`` is given).
        name: as the cell has it.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class CellGraph:
    """What a cell's methods return, as expressions in states, pre-activations, parameters and input.

    Args:
        cell: the cell.
        leaves: by node, the free variable that it is.
        nodes: all nodes in the order of computation, leaves included.
        reads: by gate that reads a state, what its recurrent matrix multiplies.
        update: by state, its new value.
        output: the output, in terms of *new* states.
        untraced: by method (``"read"``, ``"update"``, ``"output"``), why it could not be traced; what it would return
            is absent above.
    """

    cell: Cell
    leaves: Mapping[Node, Leaf]
    nodes: tuple[Node, ...]
    reads: Mapping[str, Any]
    update: Mapping[str, Any]
    output: Any
    untraced: Mapping[str, str]

    @functools.cached_property
    def plain_reads(self) -> tuple[str, ...]:
        """The gates whose matrix multiplies the first state itself: one product serves them all.

        >>> from isornn.cells import ChoGRU
        >>> graph_of(ChoGRU()).plain_reads
        ('r', 'z')
        """
        first = Leaf("state", self.cell.states[0])
        return tuple(gate for gate, value in self.reads.items() if self.leaves.get(value) == first)

    @property
    def gated_reads(self) -> tuple[str, ...]:
        """The gates whose matrix multiplies anything else."""
        plain = self.plain_reads
        return tuple(gate for gate, what in self.cell.gates.items() if what.state and gate not in plain)

    @property
    def output_is_first_state(self) -> bool:
        """Whether the layer's output is the first state itself."""
        return self.leaves.get(self.output) == Leaf("new state", self.cell.states[0])

    def interpret(
        self,
        leaf: Callable[[Leaf], Any],
        apply: Callable[[str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any],
        wanted: Iterable[Any] | None = None,
        given: Mapping[Node, Any] | None = None,
    ) -> Callable[[Any], Any]:
        """Evaluate the graph in any domain: tensors, polynomials, types.

        Args:
            leaf: the value of a free variable.
            apply: ``apply(name, function, args, kwargs)``, the value of an operation; ``name`` is torch's own ("mul",
                "sigmoid"), whether it was spelled as an operator, a function or a method.
            wanted: evaluate only what these need; all if not given.
            given: values of nodes that are not to be evaluated.

        Returns:
            The value of a node, or of a number, which is its own.

        >>> from isornn.cells import LSTM
        >>> graph = graph_of(LSTM())
        >>> spelled = graph.interpret(lambda leaf: leaf.name, lambda name, f, args, _: f"{name}({', '.join(args)})")
        >>> spelled(graph.update["c"])
        'add(mul(sigmoid(f), c), mul(sigmoid(i), tanh(g)))'
        """
        values: dict[Node, Any] = dict(given or {})

        def value_of(node: Any) -> Any:
            return values[node] if isinstance(node, Node) else node

        needed = None if wanted is None else self._needed(wanted)
        for node in self.nodes:
            if node in values or (needed is not None and node not in needed):
                continue
            if node in self.leaves:
                values[node] = leaf(self.leaves[node])
            else:
                args = fx.node.map_arg(node.args, lambda n: values[n])
                kwargs = fx.node.map_arg(node.kwargs, lambda n: values[n])
                values[node] = apply(name_of(node), function_of(node), args, kwargs)
        return value_of

    def depends_on(self, value: Any) -> frozenset[Leaf]:
        """The free variables in the expression of ``value``.

        >>> from isornn.cells import ChoGRU
        >>> graph = graph_of(ChoGRU())
        >>> sorted(leaf.name for leaf in graph.depends_on(graph.reads["n"]))
        ['h', 'r']
        """
        return frozenset(self.leaves[node] for node in self._needed([value]) if node in self.leaves)

    def method_of(self, node: Node) -> str:
        """The method that computes ``node``: ``"read"``, ``"update"`` or ``"output"``."""
        results = {"read": self.reads.values(), "update": self.update.values(), "output": (self.output,)}
        return next((method for method, values in results.items() if node in self._needed(values)), "update")

    def _needed(self, wanted: Iterable[Any]) -> set[Node]:
        found: set[Node] = set()
        fresh = [node for node in wanted if isinstance(node, Node)]
        while fresh:
            node = fresh.pop()
            if node not in found:
                found.add(node)
                fresh += node.all_input_nodes
        return found


def evaluate(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The operation itself: `CellGraph.interpret` with tensors."""
    return function(*args, **kwargs)


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
    with torch.device("cpu"):  # the check has values, which a default device, "meta" above all, may not have
        return _Tracing(cell).graph()


def name_of(node: Node) -> str:
    """The operation's name in torch: operators, functions and methods of one operation share it.

    >>> import operator
    >>> [name_of(fx.Graph().call_function(spelled, (2.0, 3.0))) for spelled in (operator.mul, torch.mul)]
    ['mul', 'mul']
    """
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return _SYNONYMS.get(name.strip("_"), name.strip("_"))


_SYNONYMS = {
    **{
        "truediv": "div",
        "divide": "div",
        "true_divide": "div",
        "multiply": "mul",
        "subtract": "sub",
        "negative": "neg",
    },
    **{"clip": "clamp", "special_expit": "sigmoid", "expit": "sigmoid", "arctan": "atan", "arcsinh": "asinh"},
    **{"logsigmoid": "log_sigmoid"},
}


def function_of(node: Node) -> Callable[..., Any]:
    """The operation as a function of tensors."""
    if node.op == "call_method":
        return getattr(Tensor, str(node.target))
    assert callable(node.target)
    return node.target


def values_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of an operation, those in lists too.

    >>> values_in(([1.0, 2.0], -1), {"dim": 0})
    [1.0, 2.0, -1, 0]
    """
    found: list[Any] = []
    fx.node.map_aggregate((args, dict(kwargs)), found.append)
    return found


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
        with torch.random.fork_rng(devices=[]):  # of methods that draw random numbers
            found = _without_random_numbers(found)
            if self.cell.pointwise:
                _check_pointwise(found)
            return _without_what_differs(found)

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
        except (fx.proxy.TraceError, TypeError, NotImplementedError, RuntimeError, ValueError) as error:
            self.untraced[method] = str(error).partition("\n")[0]
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
            return {name: _node(found[name]) for name in self.cell.states}
        return _node(found)


def _node(value: Any) -> Any:
    return value.node if isinstance(value, fx.Proxy) else value


def _missing(error: AttributeError) -> str:
    return f"it asks for {error.name!r}, which is no state, gate or parameter that it can read there"


def check_returned(cell: Cell, new: Any) -> None:
    """Whether ``update`` returned every state, and nothing else.

    Raises:
        CellError: it did not.
    """
    if not isinstance(new, Mapping):
        raise CellError(f"{cell.name}.update: it returns {type(new).__name__}; a dictionary of new states is needed")
    for name in cell.states:
        if name not in new:
            raise CellError(f"{cell.name}.update: the state {name!r} is not returned; it returns {', '.join(new)}")
    for name in new:
        if name not in cell.states:
            raise CellError(f"{cell.name}.update: it returns {name!r}; its states are {', '.join(cell.states)}")


def _check_pointwise(graph: CellGraph) -> None:
    """Evaluate the graph on two sequences of seven units, and on parts of them: these must come out the same. So must
    what the methods return that could not be traced.

    Raises:
        CellError: an operation mixes units or sequences; names the first that does.
    """
    drawn = _drawn(graph, _UNITS)
    checked = functools.partial(_evaluate, graph.cell.name)
    needed = graph._needed([*graph.reads.values(), *graph.update.values(), graph.output])
    whole = graph.interpret(drawn.__getitem__, checked, needed)
    own = {method: _returned(graph.cell, method, drawn) for method in graph.untraced}
    for what, part in _PARTS:
        values = {leaf: value[part] for leaf, value in drawn.items()}
        alone = graph.interpret(values.__getitem__, checked, needed)
        mixing = [
            f"{graph.method_of(node)}: {name_of(node)}"
            for node in graph.nodes
            if node in needed and not _same(whole(node), alone(node), part)
        ]
        mixing += [f"{method}: it" for method, found in own.items() if _mixes(graph.cell, method, found, values, part)]
        if mixing:
            raise CellError(
                f"{graph.cell.name}.{mixing[0]} acts on several {what} together; a cell is pointwise, unless it says "
                "pointwise = False, which leaves it without theory"
            )


def _mixes(cell: Cell, method: str, whole: Any, values: Mapping[Leaf, Tensor], part: tuple[slice, slice]) -> bool:
    """Whether a method returns something else for a part of the units; no, if it does so at every call."""
    alone, again = (_returned(cell, method, values) for _ in range(2))
    if (
        whole is None
        or alone is None
        or again is None
        or not all(map(_same, alone, again, [(_ALL, _ALL)] * len(again)))
    ):
        return False
    return not all(_same(of_all, of_part, part) for of_all, of_part in zip(whole, alone, strict=True))


def _without_random_numbers(graph: CellGraph) -> CellGraph:
    """The graph, less those methods that draw random numbers by operations on their arguments: these are untraced."""
    drawn = _drawn(graph, _UNITS)
    checked = functools.partial(_evaluate, graph.cell.name)
    one, other = (graph.interpret(drawn.__getitem__, checked) for _ in range(2))
    random = next((node for node in graph.nodes if not _same(one(node), other(node), (_ALL, _ALL))), None)
    if random is None:
        return graph
    results = {"read": graph.reads.values(), "update": graph.update.values(), "output": (graph.output,)}
    reason = f"it draws random numbers, by {name_of(random)}"
    return _without(graph, {method: reason for method, values in results.items() if random in graph._needed(values)})


def _without(graph: CellGraph, untraced: Mapping[str, str]) -> CellGraph:
    return replace(
        graph,
        reads={} if "read" in untraced else graph.reads,
        update={} if "update" in untraced else graph.update,
        output=None if "output" in untraced else graph.output,
        untraced={**graph.untraced, **untraced},
    )


_UNITS = 7
_ALL = slice(None)
# A maximum, say, is in one of the parts only.
_PARTS = (
    *(("units", (_ALL, units)) for units in (slice(0, 3), slice(3, _UNITS))),
    *(("sequences", (sequence, _ALL)) for sequence in (slice(0, 1), slice(1, 2))),
)


def _drawn(graph: CellGraph, units: int) -> dict[Leaf, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {leaf: torch.rand(2, units, dtype=torch.float64, generator=generator) for leaf in graph.leaves.values()}


def _without_what_differs(graph: CellGraph) -> CellGraph:
    """The graph, less those methods that give other numbers or gradients than the cell itself: these are untraced.

    A trace does not see what is no operation of torch: numbers of `random`, a `torch.autograd.Function` with a
    derivative of its own, a branch on the type of a tensor.
    """
    with torch.inference_mode(False), torch.enable_grad():
        drawn = _drawn(graph, _UNITS + 1)  # also of cells that work on pairs of units
        known = {leaf: value.requires_grad_() for leaf, value in drawn.items()}
        value = graph.interpret(known.__getitem__, evaluate)
        traced = {
            "read": [value(node) for node in graph.reads.values()],
            "update": [value(node) for node in graph.update.values()],
            "output": [value(graph.output)],
        }
        differs = [
            method
            for method in traced.keys() - graph.untraced.keys()
            if not _alike(traced[method], _returned(graph.cell, method, known), list(known.values()))
        ]
    return _without(graph, dict.fromkeys(differs, _DIFFERS)) if differs else graph


_DIFFERS = (
    "its trace gives other numbers or gradients: it draws random numbers, has a derivative of its own "
    "(torch.autograd.Function) or asks for the type of a tensor"
)


def _returned(cell: Cell, method: str, known: Mapping[Leaf, Tensor]) -> list[Any] | None:
    """What the cell's method itself returns; ``None`` where it fails, as it will again where it is used."""
    of = {kind: {leaf.name: v for leaf, v in known.items() if leaf.kind == kind} for kind in {k.kind for k in known}}
    states, all_u = of["state"], {**of.get("parameter", {}), **of.get("gate", {})}
    try:
        if method == "update":
            x = known[Leaf("input", INPUT)] if cell.input_enters_pointwise else None
            new = cell.update(Values(**states), Values(**all_u), x)
            return [new[name] for name in cell.states]
        if method == "output":
            return [cell.output(Values(**of["new state"]), Values(**all_u))]
        reads = [gate for gate, what in cell.gates.items() if what.state]
        return [cell.read(gate, Values(**states), Values(**all_u)) for gate in reads]
    except Exception:
        return None


def _alike(traced: list[Any], own: list[Any] | None, leaves: list[Tensor]) -> bool:
    if own is None or not all(isinstance(value, Tensor | int | float) for value in (*traced, *own)):
        return True  # whoever asks for the values says what they have to be
    both = [[torch.as_tensor(value, dtype=torch.float64) for value in values] for values in (traced, own)]
    if not all(torch.allclose(a, b, equal_nan=True) for a, b in zip(*both, strict=True)):
        return False
    gradients = [_gradients(values, leaves) for values in both]
    return all(torch.allclose(a, b, equal_nan=True) for a, b in zip(*gradients, strict=True))


def _gradients(values: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Of a sum with a weight for each value."""
    total = sum(((place + 1) * value.sum() for place, value in enumerate(values)), torch.zeros(()))
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True))


def _evaluate(
    cell: str, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    try:
        return function(*args, **kwargs)
    except (RuntimeError, IndexError) as error:
        raise CellError(f"{cell}: {name} of values (batch, units) failed: {str(error).partition(chr(10))[0]}") from None


def _same(whole: Any, alone: Any, part: tuple[slice, slice]) -> bool:
    if not isinstance(whole, Tensor) or not isinstance(alone, Tensor):
        return True
    sequences, units = part
    own = whole[..., units] if whole.shape[-1:] == (_UNITS,) else whole
    own = own[..., sequences, :] if whole.shape[-2:] == (2, _UNITS) else own
    return own.shape == alone.shape and torch.allclose(own, alone, equal_nan=True)
