"""What one step of a recurrent cell is: states, pre-activations, and one pointwise update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor


class Values:
    """Values by name, `s.h`, `u.f`: tensors in a layer, symbols where the theory reads the structure."""

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
    """

    state: bool = True
    input: bool = True
    previous_input: bool = False


@dataclass(frozen=True)
class Cell(ABC):
    """One step of a recurrent network, defined once and pointwise.

    A subclass is a frozen dataclass whose fields are the cell's options. It states its ``name``, its
    ``states`` (the first is what recurrent matrices read), its ``gates`` (what each pre-activation
    reads) and ``update``; where a recurrent matrix reads a gated state it also states ``read``. The torch
    layer, the theory and the simulation are readings of these.

    The update is plain torch operations on values of one unit: no sums over units, any dtype.

    A cell with trained numbers of its own, one per unit, names them in ``parameters`` with their initial values. It
    finds them in ``u`` beside the pre-activations: ``parameters = {"scale": 1.0}`` is ``u.scale``, (N,) in a layer,
    the same at every step, and the initial value in the theory.

    What the pre-activations are for is derived from the update (`isornn.cells.roles.roles_of`). Three names override
    it: ``remember``, the gate that starts set so that the state is retained, ``write``, which lets new content in, and
    ``candidates``, which make the content.

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

    @property
    def parameters(self) -> Mapping[str, float]:
        """Trained numbers per unit: initial value by name, a name no gate has. A class attribute where it is fixed."""
        return {}

    @property
    def pointwise(self) -> bool:
        """Whether the update acts on each unit for itself, as the theory needs. A class attribute where it is fixed."""
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


def initial_parameters(cell: Cell) -> dict[str, Tensor]:
    """The initial values of a cell's parameters as float64 scalars, which is what the theory takes them to be.

    >>> from isornn.cells import LSTM
    >>> initial_parameters(LSTM())
    {}
    """
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in cell.parameters.items()}
