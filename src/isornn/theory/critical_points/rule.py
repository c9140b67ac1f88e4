"""The rule that leaves one or two numbers of a spec open: the time scales of its units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from isornn.cells import BiasLaw, Cell, Gate, Input, Spec, SpecError
from isornn.cells.openings import bias_of, own_start, refusal, retention_signs, write_signs
from isornn.cells.roles import Roles, roles_of, silences
from isornn.theory.critical_points.records import Biases, TimeScales

WEAK = 1e-5  # recurrent weight variance of gates that need no recurrence (Gilboa et al. 2019, D.4)
SEEN = 1.0  # variance that gates which see the input receive from it
# What candidates receive over octaves: most of tanh's range (E tanh^2 = .64), in which sizes are still told apart.
SEEN_TO_LEARN = 4.0
SHORTEST = 1.0  # time scale of the fastest units, as chrono's
FAINT = 0.3  # pre-activation variance, times sqrt(T), of a cell that has no gates

Family = Callable[[float, float], Spec]


def family_of(
    cell: Cell,
    input: Input,
    biases: Biases,
    fixed: Mapping[str, Any],
    length: float,
    time_scales: TimeScales = "uniform",
) -> Family:
    """Specs by their time scales (low, high); a cell without remember gate has one number, its weight variance.

    Several retained states have the same law of time scales, each by its own gate.

    Raises:
        SpecError: neither a bias nor a matrix on its state sets how long the cell retains; a fixed field is what does.
    """
    roles = roles_of(cell)
    if roles.gated and (reason := refusal(cell)) is not None:
        raise SpecError("cell", cell.name, reason)
    template = Spec(cell, {name: _gate(roles, cell, name, input, length) for name in cell.gates}, input, biases)
    if time_scales == "octaves" and scales_are_free(cell, biases):
        seen = SEEN_TO_LEARN / (float(input.variance) or 1.0)
        template = _with(template, {f"{gate}.input_var": seen for gate in roles.candidates if cell.gates[gate].input})
    for path, value in fixed.items():
        template = template.replace(path, value)
    keep, write = retention_signs(cell), write_signs(cell)
    if not keep:
        free = [f"{gate}.weight_var" for gate, reads in cell.gates.items() if reads.state]
        if not free:
            reason = "it has neither a remember gate nor a matrix on its state, so no start sets how far it sees"
            raise SpecError("cell", cell.name, reason + own_start(cell))
        _refuse(fixed, free)
        return lambda low, high: _with(template, dict.fromkeys(free, high))
    field = "bias_mean" if biases == "redrawn" else "bias_law"
    _refuse(fixed, [f"{gate}.{field}" for gate in keep])
    if biases == "redrawn":
        return lambda low, high: _with(template, {f"{gate}.bias_mean": bias_for(cell, gate, high) for gate in keep})
    signs = keep | {gate: -sign for gate, sign in write.items() if f"{gate}.bias_law" not in fixed}
    kind = "timescale" if time_scales == "uniform" else "capped_timescale"

    def spread(low: float, high: float) -> Spec:
        return _with(template, {f"{gate}.bias_law": BiasLaw(kind, low, high, sign) for gate, sign in signs.items()})

    return spread


def scales_are_free(cell: Cell, biases: Biases) -> bool:
    """Whether units can have time scales of their own."""
    return bool(roles_of(cell).gated) and biases == "fixed"


def bias_for(cell: Cell, gate: str, time_scale: float) -> float:
    """The bias at which the state that ``gate`` retains has this time scale."""
    law = BiasLaw("timescale", time_scale, time_scale, retention_signs(cell)[gate])
    return float(bias_of(cell, gate, law, torch.tensor(0.5, dtype=torch.float64)))


def _gate(roles: Roles, cell: Cell, name: str, input: Input, length: float) -> Gate:
    """The rule for one gate, before its bias is set."""
    reads = cell.gates[name]
    variance = float(input.variance) or 1.0
    if not roles.gated:
        faint = FAINT / length**1.5 / variance
        return Gate(input_var=faint * reads.input, ensemble="orthogonal" if reads.state else "gaussian")
    weight, seen, retains = WEAK, SEEN / variance, name in roles.retention
    if retains and name in roles.gates and roles.gates[name].kinks:
        weight, seen = min(WEAK, 0.01 / length**2), seen / length**2
    writes = name in (*roles.candidates, *roles.write)
    # Without an input, a gate tanh(u_o) would leave the output at tanh(0) = 0 (lstm_coupled), for good if no
    # recurrent matrix moves it (t_lstm).
    sees = writes or not (reads.state or retains) or silences(cell, name)
    output_only = len(cell.states) > 1 and name in roles.read_out and not writes
    return Gate(weight_var=(1.0 if output_only else weight) * reads.state, input_var=seen * (sees and reads.input))


def _with(spec: Spec, values: Mapping[str, Any]) -> Spec:
    for path, value in values.items():
        spec = spec.replace(path, value)
    return spec


def _refuse(fixed: Mapping[str, Any], free: list[str]) -> None:
    for path in free:
        if path in fixed:
            raise SpecError(path, fixed[path], "it is what sets the length, so it cannot be fixed")
