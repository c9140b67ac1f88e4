"""Strongly typed cells in two parts: learnware computes features without a state, firmware pools them over time.

All parameters are in the learnware, and the firmware acts on each unit separately. So the state is a sum of features
over the past with explicit weights.

Source: Balduzzi & Ghifary 2016, sections 3.2 to 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isornn.cells import Cell, Values, typing_of
from isornn.cells.roles import roles_of
from isornn.nn.rnn import RNN

Features = Mapping[str, Tensor]
State = Tensor | tuple[Tensor, ...]


def learn(layer: RNN, x: Tensor, previous: Tensor | None = None) -> dict[str, Tensor]:
    """The learnware: ``u_k = U_k x_t + V_k x_(t-1) + b_k`` for every gate k and all steps at once.

    The paper's f, z, o are ``sigma(u_f)``, ``u_z``, ``tanh(u_o)``; functions of one feature have no parameters, so
    they belong to the firmware, and every typed cell is split in the same way.

    Args:
        layer: of a strongly typed cell, with one layer and direction and weights that are the same at all steps.
        x: (T, B, D), or as the layer takes it: (B, T, D) with batch_first, (T, D) for one sequence.
        previous: x_0, (B, D) or (D,), for cells that read x_(t-1); by default as the layer's ``before`` says.

    Returns:
        By gate (T, B, N), or (T, N) for one sequence: time comes first. The cell's trained numbers per unit, (N,),
        are among the features, so that the firmware has none.

    Raises:
        ValueError: the cell is not strongly typed, or its input enters pointwise; several layers or
            directions, or untied weights.

    Source: Balduzzi & Ghifary 2016, eqs. 59, 61.

    >>> from isornn.nn import TLSTM
    >>> layer, x = TLSTM(3, 5), torch.ones(7, 2, 3)
    >>> out, state = firm(layer.cell, learn(layer, x))
    >>> torch.allclose(out, layer(x)[0], atol=1e-6)
    True
    """
    cell = layer.cell
    _check_typed(cell)
    if cell.input_enters_pointwise:
        raise ValueError(f"layer: the input of {cell.name} enters pointwise, so it is no learned feature")
    if layer.num_layers * (1 + layer.bidirectional) > 1 or layer.untied:
        raise ValueError(
            "layer: learnware is that of one layer and direction, with weights that are the same at all steps"
        )
    if layer.batch_first and x.dim() == 3:
        x = x.transpose(0, 1)
    before = _before(layer, x, previous)
    u = Values(**{name: getattr(layer, f"{name}_l0") for name in cell.parameters})
    nothing = Values(**{name: x.new_zeros(layer.hidden_size) for name in cell.states})
    for gate, reads in cell.gates.items():
        tensors = layer.gate_parameters(gate)
        # A typed cell's matrix may read other features, and nothing that depends on a state.
        read = cell.read(gate, nothing, u) if reads.state else None
        pairs = ((x, tensors.input), (before, tensors.previous_input), (read, tensors.recurrent))
        products = [value @ matrix.T for value, matrix in pairs if value is not None and matrix is not None]
        blank = x.new_zeros(*x.shape[:-1], layer.hidden_size)
        setattr(u, gate, sum((*products, *tensors.biases), start=blank))
    return vars(u)


def firm(cell: Cell, features: Features, state: State | None = None) -> tuple[Tensor, State]:
    """The firmware: the cell's update, unit by unit and without parameters, over all steps.

    Args:
        cell: a strongly typed one.
        features: what `learn` gives: by gate (T, ..., N); trained numbers per unit by name, (N,).
        state: before the first step, (..., N), a tuple of these where the cell has several; 0 if not given.

    Returns:
        The outputs, (T, ..., N), and the last state, in the form of ``state``.

    Raises:
        ValueError: the cell is not strongly typed; a feature is missing; there is no step.

    Source: Balduzzi & Ghifary 2016, eqs. 60, 62-64.

    >>> from isornn.cells import TGRU
    >>> f, z, o = torch.zeros(2, 1), torch.ones(2, 1), torch.full((2, 1), 20.0)
    >>> firm(TGRU(), {"f": f, "z": z, "o": o}, torch.tensor([2.0]))  # h = h/2 + 1, twice
    (tensor([[2.],
            [2.]]), tensor([2.]))
    """
    _check_typed(cell)
    features = _broadcast(cell, features)
    some = next(iter(features.values()))
    if len(some) == 0:
        raise ValueError(f"features: shape {tuple(some.shape)} is not allowed; they must have at least one step")
    states = _started(cell, state, some)
    kept = []
    for t in range(len(some)):
        states = Values(**cell.update(states, _at(features, t), None))
        kept.append(states)
    over_time = {name: torch.stack([getattr(s, name) for s in kept]) for name in cell.states}
    out: Tensor = cell.output(Values(**over_time), Values(**features))
    last = tuple(over_time[name][-1] for name in cell.states)
    return out, last if len(last) > 1 else last[0]


def pooling_weights(layer: RNN, x: Tensor, previous: Tensor | None = None) -> Tensor:
    """How much each step of a sequence counts in the state after its last: ``P_(x_1:t)(s)`` for s = 0, ..., t.

    The state is ``sum_s P(s) content_s``, where content_0 is the state before the sequence and

    ======== ============================ ================================= ====================
    cell     P(s)                         content_s                         output
    ======== ============================ ================================= ====================
    T-RNN    (1-f_s) f_(s+1) ... f_t      u_z of step s                     the state
    T-LSTM   (1-f_s) f_(s+1) ... f_t      u_z of step s                     tanh(u_o) * state
    T-GRU    f_(s+1) ... f_t              u_z tanh(u_o) of step s           the state
    ======== ============================ ================================= ====================

    and P(0) = f_1 ... f_t in all. So the first two are averages: their weights sum to 1, with h_0 counted. (Equation 47
    leaves h_0 out, and its weights fall short of 1 by P(0); equation 50 as printed has f_s for f_(s+1).) For a cell
    of one's own, the weights are of the first kind where one gate retains the state and writes to it (`Roles`), with
    content_s so that the step adds ``(1-f) content``; else of the second, with what the step adds as the content.

    Args:
        layer, x, previous: as for `learn`.

    Returns:
        (T+1, B, N), or (T+1, N) for one sequence.

    Raises:
        ValueError: as `learn`; the cell has several states or is not affine in its state.

    Source: Balduzzi & Ghifary 2016, theorem 1.

    >>> from isornn.nn import TRNN
    >>> weights = pooling_weights(TRNN(3, 5), torch.randn(7, 2, 3))
    >>> weights.shape, torch.allclose(weights.sum(0), torch.ones(2, 5))
    (torch.Size([8, 2, 5]), True)
    """
    return weights_over_steps(layer.cell, learn(layer, x, previous))


def weights_over_steps(cell: Cell, features: Features) -> Tensor:
    """`pooling_weights` from features alone.

    A cell with ``s_t = a_t s_(t-1) + b_t`` has the weights ``a_(s+1) ... a_t``, of shape (T+1, ..., N).

    Raises:
        ValueError: the cell is not strongly typed, has several states or is not affine in its state; a feature is
            missing.

    >>> from isornn.cells import TRNN
    >>> weights_over_steps(TRNN(), {"f": torch.zeros(3, 1), "z": torch.ones(3, 1)}).squeeze()
    tensor([0.1250, 0.1250, 0.2500, 0.5000])
    """
    _check_typed(cell)
    if len(cell.states) > 1 or not typing_of(cell).affine:
        raise ValueError(f"cell: {cell.name} is not allowed; steps have weights where one state enters affinely")
    features = _broadcast(cell, features)
    (name,) = cell.states

    def update(state: Tensor) -> Tensor:
        new: Tensor = cell.update(Values(**{name: state}), Values(**features), None)[name]
        return new

    blank = torch.zeros_like(next(iter(features.values())))
    kept: Tensor = torch.func.jvp(update, (blank,), (torch.ones_like(blank),))[1]
    one = torch.ones_like(kept[:1])
    after = torch.cat([kept.flip(0).cumprod(0).flip(0), one])  # a_(s+1) ... a_t at s = 0, ..., t
    coupled = any(state.coupled for state in roles_of(cell).retained)
    return after * torch.cat([one, 1 - kept]) if coupled else after


def symmetric_matrix(basis: Tensor, scale: Tensor) -> Tensor:
    """``P diag(d) P^T``: a recurrent matrix that keeps the type of what it multiplies, and so do its powers.

    With it the linear network ``h_t = V h_(t-1) + W x_t`` (`Vanilla` with the identity) adds all its terms
    ``P D^(t-s) P^T W x_s`` in one basis. It is a property of a layer's weight, and of every symmetric one, so there
    is no cell of its own.

    Args:
        basis: P, (..., N, N), orthogonal.
        scale: d, (..., N).

    Source: Balduzzi & Ghifary 2016, eqs. 12, 13.

    >>> symmetric_matrix(torch.tensor([[0.6, -0.8], [0.8, 0.6]]), torch.tensor([1.0, -1.0]))
    tensor([[-0.2800,  0.9600],
            [ 0.9600,  0.2800]])
    """
    return (basis * scale.unsqueeze(-2)) @ basis.mT


def _before(layer: RNN, x: Tensor, previous: Tensor | None) -> Tensor | None:
    """x_(t-1) at every step, where a gate reads it."""
    if not any(reads.previous_input for reads in layer.cell.gates.values()):
        if previous is not None:
            raise ValueError(f"previous: {layer.cell.name} reads no previous input")
        return None
    if previous is None:
        previous = x[0] if layer.before == "first" else torch.zeros_like(x[0])
    return torch.cat([previous.unsqueeze(0), x[:-1]])


def _check_typed(cell: Cell) -> None:
    typing = typing_of(cell)
    if typing.verdict != "strongly":
        raise ValueError(f"cell: learnware and firmware come apart in strongly typed cells only, and {typing}")


def _broadcast(cell: Cell, features: Features) -> dict[str, Tensor]:
    names = [*cell.gates, *cell.parameters]
    missing = [name for name in names if name not in features]
    if missing:
        raise ValueError(f"features: {', '.join(missing)} missing; {cell.name} has {', '.join(names)}")
    values = torch.broadcast_tensors(*(features[name] for name in names))
    return dict(zip(names, values, strict=True))


def _started(cell: Cell, state: State | None, feature: Tensor) -> Values:
    blank = torch.zeros_like(feature[0])
    if state is None:
        return Values(**dict.fromkeys(cell.states, blank))
    given = (state,) if isinstance(state, Tensor) else state
    if len(given) != len(cell.states):
        raise ValueError(f"state: {len(given)} tensors are not allowed; {cell.name} has {', '.join(cell.states)}")
    return Values(**{name: value.expand_as(blank) for name, value in zip(cell.states, given, strict=True)})


def _at(features: Features, t: int) -> Values:
    return Values(**{name: value[t] for name, value in features.items()})
