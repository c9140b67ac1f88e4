"""The bias at which a gate of any cell has a given value: the inverse of the gate's function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from isornn.cells.activations import hard_sigmoid
from isornn.cells.bias_laws import BiasLaw
from isornn.cells.cell import Cell, spread_parameters
from isornn.cells.errors import SpecError
from isornn.cells.graph_values import at_start
from isornn.cells.roles import RetainedState, roles_of
from isornn.cells.trace import graph_of

FARTHEST = 60.0  # of biases that are searched: there a logistic gate is shut to 1e-26
SHUT = 1e-9  # 1 - A at which a state counts as kept for good
_ENTRIES, _ROUNDS = 4801, 12  # of the table of an inverse, and of the search between two of its entries

Opening = Callable[[Tensor], Tensor]


def bias_of(cell: Cell, gate: str, law: BiasLaw, v: Tensor) -> Tensor:
    """The bias of ``gate`` in the unit whose uniform variate is ``v``.

    The law gives the odds r. A gate that retains gets the bias b at which the state keeps ``A(b) = r / (1 + r)`` of
    itself, if ``law.sign`` is the sign with which it retains, else ``1 / (1 + r)``: ``sign ln r`` for a logistic f,
    with sign -1 for a logistic gate that retains by 1 - f. For any other gate, ``A`` is its own value. An empirical law
    gives the bias itself.

    Raises:
        SpecError: A does not take the value.

    >>> from isornn.cells import LSTM
    >>> law, half = BiasLaw("timescale", 1.0, 9.0), torch.tensor([0.5], dtype=torch.float64)
    >>> bias_of(LSTM(), "f", law, half).sigmoid(), bias_of(LSTM("hard_sigmoid"), "f", law, half)
    (tensor([0.8333], dtype=torch.float64), tensor([1.6667], dtype=torch.float64))
    """
    odds = law.quantile(v)
    return odds if law.kind == "empirical" or law.kind.startswith("hard_") else _inverse(cell, gate)(odds)


def set_by(state: RetainedState) -> tuple[str, ...]:
    """The gates whose biases set how long a state is retained: those that alone can, or else all of them together.

    The other gates' biases are 0.

    >>> from isornn.cells import LSTM
    >>> set_by(roles_of(LSTM()).retained[0])
    ('f',)
    """
    gates = [gate for gate, sign in state.retention.items() if sign]
    ends = torch.tensor([-FARTHEST, FARTHEST], dtype=torch.float64)
    for chosen in (*((gate,) for gate in gates), tuple(gates)):
        if chosen:
            low, high = _coefficient(state, chosen, ends)
            if low <= 0.5 and high >= 1 - SHUT:
                return chosen
    return ()


def refusal(cell: Cell) -> str | None:
    """Why no biases set how long the states of ``cell`` are retained, or ``None``.

    >>> from isornn.cells import GRU, Vanilla
    >>> refusal(GRU()), refusal(Vanilla())
    (None, 'vanilla has none')
    >>> from isornn.cells.linear import LRU
    >>> refusal(LRU())
    'lru has none; a new layer has its start already, by the law of nu_log, gamma_log, theta_log: leave it as it is'
    """
    reason = _unset(cell)
    return None if reason is None else reason + own_start(cell)


def own_start(cell: Cell) -> str:
    """The advice for a cell that no rule starts: its new states depend on numbers whose start is a law of their own.

    >>> from isornn.cells import Vanilla
    >>> own_start(Vanilla())
    ''
    """
    graph = graph_of(cell)
    used = {leaf.name for new in graph.update.values() for leaf in graph.depends_on(new) if leaf.kind == "parameter"}
    laws = ", ".join(name for name in spread_parameters(cell) if name in used)
    return f"; a new layer has its start already, by the law of {laws}: leave it as it is" if laws else ""


def _unset(cell: Cell) -> str | None:
    roles = roles_of(cell)
    if roles.unknown is not None:
        return f"what {cell.name} retains is not known, as its update cannot be traced ({roles.unknown})"
    if not roles.gated:
        return f"{cell.name} has none"
    for state in roles.gated:
        if not set_by(state):
            return (
                f"no bias of {', '.join(state.retention)} takes what {cell.name}'s {state.state} keeps in a step from "
                f"1/2 to 1, rising or falling throughout{_found(state)}"
            )
    signs = {(gate, state.retention[gate]) for state in roles.gated for gate in set_by(state)}
    for gate, sign in signs:
        if (gate, -sign) in signs:
            return f"{cell.name}'s gate {gate} retains one state by what it forgets another"
    return None


def _found(state: RetainedState) -> str:
    """From where to where the biases of all gates that retain ``state`` take what it keeps, at most; and how far it
    sees where that is not all: the mean square of a change is 1/e after T steps that each keep A of it, A^2T = 1/e."""
    gates = tuple(gate for gate, sign in state.retention.items() if sign)
    if not gates:
        return ""
    ends = torch.tensor([-FARTHEST, FARTHEST], dtype=torch.float64)
    low, high = _coefficient(state, gates, ends).tolist()
    limit = ""
    if 0.5 < high < 1 - SHUT:
        limit = f", so that {state.state} sees at most {-0.5 / math.log(high):.3g} steps, whatever the biases"
    return f" (here it is from {round(low, 6):.6g} to {high:.6g}{limit})"


def retention_signs(cell: Cell) -> dict[str, int]:
    """By gate whose bias sets how long a state is retained: the sign with which it retains.

    >>> from isornn.cells import GRU
    >>> retention_signs(GRU())
    {'z': 1}
    """
    return {gate: state.retention[gate] for state in roles_of(cell).gated for gate in set_by(state)}


def write_signs(cell: Cell) -> dict[str, int]:
    """By write gate of a state that it does not retain too: the sign of a bias that lets content in.

    >>> from isornn.cells import GRU, LSTM
    >>> write_signs(LSTM()), write_signs(GRU())
    ({'i': 1}, {})
    """
    roles = roles_of(cell)
    own = {gate for state in roles.gated for gate in state.own_write} - set(roles.retention)
    return {gate: 1 if squash.rises else -1 for gate, squash in roles.gates.items() if gate in own}


def modulating_signs(cell: Cell) -> dict[str, int]:
    """By gate that modulates how far a state is retained, but not where the gates that set it are open or shut: the
    sign with which it retains.

    >>> from isornn.cells import LSTM
    >>> from isornn.cells.refine import URLSTM
    >>> modulating_signs(LSTM()), modulating_signs(URLSTM())  # the refine gate
    ({}, {'r': 1})
    """
    ends, moved = torch.tensor([-FARTHEST, FARTHEST], dtype=torch.float64), torch.tensor([-5.0, 5.0]).double()[:, None]
    found: dict[str, int] = {}
    for state in roles_of(cell).gated:
        chosen = {gate: state.retention[gate] * ends for gate in set_by(state)}
        for gate, sign in state.retention.items():
            if chosen and sign and gate not in chosen:
                kept = state.coefficient(at_start(cell, chosen | {gate: moved}))
                found |= {gate: sign} if torch.allclose(kept[0], kept[1], rtol=0, atol=SHUT) else {}
    return found


@functools.cache
def _inverse(cell: Cell, gate: str) -> Opening:
    """By log odds of how far the gate is open, its bias; a gate that is logistic or hard has one in closed form."""
    opening = _opening(cell, gate)
    u = torch.linspace(-30, 30, 241, dtype=torch.float64)
    value = opening(u)
    if torch.allclose(value, u.sigmoid(), rtol=1e-12, atol=1e-14):
        return lambda odds: odds
    if torch.allclose(value, hard_sigmoid(u), rtol=1e-12, atol=1e-14):
        return lambda odds: 5 * odds.sigmoid() - 2.5
    return _searched(cell, gate, opening)


def _opening(cell: Cell, gate: str) -> Opening:
    """How far the gate is open, rising with its pre-activation: A, or 1 - A where it retains by that."""
    roles = roles_of(cell)
    for state in roles.gated:
        if gate in (chosen := set_by(state)):
            sign = state.retention[gate]

            def opened(u: Tensor, state: RetainedState = state, sign: int = sign) -> Tensor:
                kept = _coefficient(state, chosen, sign * u)
                return kept if sign > 0 else 1 - kept

            return opened
    if gate in roles.gates:
        squash = roles.gates[gate]
        return squash if squash.rises else lambda u: 1 - squash(u)
    return torch.sigmoid


def _coefficient(state: RetainedState, gates: tuple[str, ...], u: Tensor) -> Tensor:
    """A where these gates' pre-activations are u times the sign with which each retains."""
    return state.coefficient(at_start(state.cell, {gate: state.retention[gate] * u for gate in gates}))


def _searched(cell: Cell, gate: str, opening: Opening) -> Opening:
    """The inverse of an opening that has none in closed form: a table, and regula falsi between two of its entries."""
    table = torch.linspace(-FARTHEST, FARTHEST, _ENTRIES, dtype=torch.float64)
    known = torch.logit(opening(table))
    least, most = float(known[0]), float(known[-1])

    def inverse(odds: Tensor) -> Tensor:
        wanted = odds.double().cpu()
        # Entirely open and shut are as far as a bias takes it.
        outside = ((wanted < least) | (wanted > most)) & (wanted.abs() < -math.log(SHUT))
        if bool(outside.any()):
            shares = [f"{1 / (1 + math.exp(-y)):.6g}" for y in (float(wanted[outside][0]), least, most)]
            reason = f"gate {gate} would have to be open to {shares[0]}, and goes from {shares[1]} to {shares[2]}"
            raise SpecError("cell", cell.name, reason)
        above = torch.searchsorted(known, wanted).clamp(1, _ENTRIES - 1)
        low, high, y_low, y_high = table[above - 1], table[above], known[above - 1], known[above]
        for _ in range(_ROUNDS):
            share = (wanted - y_low) / (y_high - y_low)
            bounded = torch.isfinite(y_low) & torch.isfinite(y_high) & (y_high > y_low)
            u = low + torch.where(bounded, share, 0.5).clamp(0, 1) * (high - low)
            y = torch.logit(opening(u))
            low, y_low = torch.where(y < wanted, u, low), torch.where(y < wanted, y, y_low)
            high, y_high = torch.where(y < wanted, high, u), torch.where(y < wanted, y_high, y)
        return u.to(odds)

    return inverse
