"""The definition of a recurrent cell by one step: states, pre-activations, and one pointwise update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor


class Values:
    """Values by name, `s.h`, `u.f`: tensors in a layer, symbols where the theory reads the structure.

    >>> s = Values(h=1.0, c=2.0)
    >>> s.h + s.c
    3.0
    """

    # Not types.SimpleNamespace, which torch.compile cannot trace.
    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class Reads:
    """What one pre-activation ``u_k = W_k r + U_k x_t + V_k x_(t-1) + b_k`` reads.

    Args:
        state: whether there is a recurrent matrix ``W_k``.
        input: whether there is an input matrix ``U_k``.
        previous_input: whether there is a matrix ``V_k`` on the previous input.

    What ``W_k`` multiplies is the cell's first state unless the cell's ``read`` says otherwise.

    Raises:
        TypeError: anything but True or False.

    >>> Reads("input")
    Traceback (most recent call last):
    ...
    TypeError: Reads.state: 'input' is not allowed; it must be True or False, as in Reads(state=False, input=True)
    """

    state: bool = True
    input: bool = True
    previous_input: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool):
                example = "Reads(state=False, input=True)"
                raise TypeError(
                    f"Reads.{field.name}: {value!r} is not allowed; it must be True or False, as in {example}"
                )


@dataclass(frozen=True)
class ParameterLaw:
    """The initial value of a trained parameter that differs from unit to unit: ``quantile(v)``, v uniform on (0, 1).

    Args:
        quantile: the number of the unit whose variate is v, plain torch operations.
        variate: laws that name the same variate share it unit by unit, as a normalisation that depends on a modulus.

    >>> ParameterLaw(lambda v: 0.9 + 0.1 * v, variate="decay").quantile(torch.tensor(0.5))
    tensor(0.9500)
    """

    quantile: Callable[[Tensor], Tensor]
    variate: str


@dataclass(frozen=True)
class Cell(ABC):
    """One step of a recurrent network, defined once and pointwise.

    A subclass is a frozen dataclass whose fields are the cell's options; cells are equal where their options are, in
    type too: ``1``, ``1.0`` and ``True`` make three cells. It states its ``name``, its
    ``states`` (the first is what recurrent matrices read), its ``gates`` (what each pre-activation
    reads) and ``update``; where a recurrent matrix reads a gated state it also states ``read``. The torch
    layer, the theory and the simulation are derived from these.

    The update is plain torch operations on values of one unit: no sums over units, none in place, any dtype. Its
    argument ``x`` is ``None`` unless the cell has ``input_enters_pointwise = True``: then it is the input itself, one
    value per unit, which a layer whose input has another size first maps to its N units by a matrix of its own.

    A cell with trained parameters of its own, one per unit, names them in ``parameters`` with their initial values. It
    reads them from ``u``, as it does pre-activations: ``parameters = {"scale": 1.0}`` is ``u.scale``, (N,) in a layer,
    the same at every step, and the initial value in the theory. Where units start differently the value is a
    `ParameterLaw`, from which layers, simulation and theory draw once per unit.

    What the pre-activations are for is derived from the update (`isornn.cells.roles.roles_of`). Three names override
    it: ``remember``, the gate whose bias initialisers set to retain the state, ``write``, the write gate, and
    ``candidates``, the gates that make the candidate.

    Example: the minimal gated unit, ten lines.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from isornn.cells import Cell, Reads
    >>> @dataclass(frozen=True)
    ... class MGU(Cell):
    ...     name = "mgu"
    ...     gates = {"f": Reads(), "n": Reads()}
    ...     def read(self, gate, s, u):
    ...         return torch.sigmoid(u.f) * s.h if gate == "n" else s.h
    ...     def update(self, s, u, x):
    ...         f = torch.sigmoid(u.f)
    ...         return {"h": (1 - f) * s.h + f * torch.tanh(u.n)}
    >>> MGU().states
    ('h',)
    """

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]] = ("h",)
    gates: ClassVar[Mapping[str, Reads]]
    remember: ClassVar[str | None] = None
    write: ClassVar[str | None] = None
    candidates: ClassVar[tuple[str, ...] | None] = None
    equations: ClassVar[tuple[str, ...]] = ()
    input_enters_pointwise: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Graphs, kernels and theory are kept by cell. A dataclass's own comparison takes 1 for True and sees no
        # attributes but fields; it is not written where a class has one.
        if "__eq__" not in cls.__dict__:
            cls.__eq__, cls.__hash__ = Cell.__eq__, Cell.__hash__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Cell) or _options(self) != _options(other):
            return False
        own, others = undeclared_attributes(self), undeclared_attributes(other)
        return own == others and all(getattr(self, name) == getattr(other, name) for name in own)

    def __hash__(self) -> int:
        return hash(_options(self))

    @property
    def parameters(self) -> Mapping[str, float | ParameterLaw]:
        """Trained numbers per unit: start by name, a name no gate has. A class attribute where it is fixed."""
        return {}

    @property
    def pointwise(self) -> bool:
        """Whether the update acts on each unit separately, as the theory requires. May be a class attribute."""
        return True

    @abstractmethod
    def update(self, s: Values, u: Values, x: Any) -> dict[str, Any]:
        """New states by name, from states ``s``, pre-activations ``u`` and (if it enters pointwise) input ``x``."""

    def read(self, gate: str, s: Values, u: Values) -> Any:
        """What the recurrent matrix of ``gate`` multiplies: the first state unless overridden.

        A gated state may use pre-activations that ``gates`` lists before ``gate``.
        """
        return getattr(s, self.states[0])

    def output(self, s: Values, u: Values) -> Any:
        """The cell's output from its new states ``s`` and this step's pre-activations ``u``: the first state."""
        return getattr(s, self.states[0])


def undeclared_attributes(cell: Cell) -> tuple[str, ...]:
    """The attributes of an instance that are no fields of its dataclass, but for cached properties."""
    declared = _option_names(type(cell))
    return tuple(
        name
        for name in vars(cell)
        if name not in declared and not isinstance(getattr(type(cell), name, None), cached_property)
    )


def _options(cell: Cell) -> tuple[Any, ...]:
    kind = type(cell)
    return kind, *[_with_types(getattr(cell, name)) for name in _option_names(kind)]


@cache
def _option_names(kind: type[Cell]) -> tuple[str, ...]:
    return tuple(option.name for option in fields(kind))


def _with_types(value: Any) -> Any:
    return type(value), tuple(map(_with_types, value)) if isinstance(value, tuple) else value


def initial_parameters(cell: Cell) -> dict[str, Tensor]:
    """The initial values of a cell's parameters as float64 scalars, where all units start alike.

    Raises:
        ParametersSpread: a parameter's initial value is a `ParameterLaw`, so units have different values.

    >>> from isornn.cells import GersLSTM
    >>> initial_parameters(GersLSTM())["peep_i"]
    tensor(0., dtype=torch.float64)
    """
    for name in spread_parameters(cell):
        raise ParametersSpread(f"{cell.name}: units start with different {name}, so it has no single value")
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in cell.parameters.items()}


class ParametersSpread(ValueError):
    """A single value was requested of a parameter that differs from unit to unit.

    >>> from isornn.cells.linear import LRU
    >>> initial_parameters(LRU())
    Traceback (most recent call last):
    ...
    isornn.cells.cell.ParametersSpread: lru: units start with different nu_log, so it has no single value
    """


def spread_parameters(cell: Cell) -> dict[str, ParameterLaw]:
    """The parameters whose start differs from unit to unit.

    >>> from isornn.cells.linear import LRU
    >>> sorted(spread_parameters(LRU()))
    ['gamma_log', 'nu_log', 'theta_log']
    """
    return {name: start for name, start in cell.parameters.items() if isinstance(start, ParameterLaw)}


def drawn_parameters(cell: Cell, units: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """A start of a cell's parameters, each (units,) in float64 on the generator's device.

    >>> from isornn.cells import GersLSTM
    >>> drawn_parameters(GersLSTM(), 2)["peep_f"]
    tensor([0., 0.], dtype=torch.float64)
    """
    device = torch.device("cpu") if generator is None else generator.device
    names = {law.variate: None for law in spread_parameters(cell).values()}
    # torch.rand may return 0, where a quantile may be infinite
    variates = {
        name: torch.rand(units, dtype=torch.float64, device=device, generator=generator).clamp(min=2.0**-54)
        for name in names
    }
    return {
        name: start.quantile(variates[start.variate])
        if isinstance(start, ParameterLaw)
        else torch.full((units,), start, dtype=torch.float64, device=device)
        for name, start in cell.parameters.items()
    }
