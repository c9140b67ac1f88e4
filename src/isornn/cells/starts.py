"""Named initialisations ("starts") from the literature, as hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch

from isornn.cells.arguments import whole_number
from isornn.cells.bias_laws import BiasLaw
from isornn.cells.cell import Cell, ParameterLaw
from isornn.cells.errors import SpecError, suggested
from isornn.cells.laws import Gate, Input
from isornn.cells.lstm import LSTM, Peephole
from isornn.cells.openings import modulating_signs, refusal, retention_signs, write_signs
from isornn.cells.spec import Spec

TEXTBOOK = ("torch", "standard", "orthogonal", "glorot", "identity", "chrono", "uniform_gate")
IN_USE = ("stacked_orthogonal", "forget_bias_3", "forget_bias_3_to_6", "doubled_chrono")
"""What libraries in use do to LSTMs."""
STARTS = (*TEXTBOOK, *IN_USE)
TIMED = ("chrono", "doubled_chrono")
"""Those that need the number of steps to bridge."""
PRESETS = ("gilboa-lstm-critical", "gilboa-peephole-critical", "gilboa-standard", "gilboa-peephole-standard")

_UNIT_INPUT = Input()


def start(
    name: str,
    cell: Cell,
    hidden: int | None,
    inputs: int | None,
    length: float | None = None,
    input: Input = _UNIT_INPUT,
) -> Spec:
    """The hyper-parameters of the named start for ``cell`` with N ``hidden`` units and D ``inputs``.

    Convention: ``weight_var = N Var(W_ij)``, ``input_var = D Var(U_ij)``, and ``previous_input_var`` as the latter.

    ================== ====================== ============ =====================================================
    name               recurrent, per gate    input        biases
    ================== ====================== ============ =====================================================
    torch              uniform, 1/3           D/(3N)       variance 1/(3N) for each bias the pre-activation sums
    standard           orthogonal, 1          2D/(D+N)     0; retention gate 1, or -1 where it retains by 1 - f
    orthogonal         orthogonal, 1          2D/(D+N)     0
    glorot             Glorot, 1              2D/(D+N)     0
    identity           identity, 1            2D/(D+N)     0
    chrono             orthogonal, 1          2D/(D+N)     0; retention gate ln U(1, T-1), write gate its negative
    uniform_gate       orthogonal, 1          2D/(D+N)     0; sigma(retention gate's) ~ U(0, 1), write gate's mirrored
    stacked_orthogonal a block, 1/G           D/max(GN, D) 0
    forget_bias_3      as torch               as torch     as torch; retention gate 3, variance 1/(3N)
    forget_bias_3_to_6 as torch               as torch     as torch; retention gate U(3, 6)
    doubled_chrono     as torch               as torch     0; retention gate the sum of two of chrono's, write gate's
                                                           its negative
    ================== ====================== ============ =====================================================

    The retention gate is derived from the cell's update (`isornn.cells.roles.roles_of`): f of ``lstm``, ``peephole``
    and the typed cells, z of the GRUs, u of ``minimal``; ``vanilla`` has none, so its standard is its orthogonal. Only
    ``lstm`` and ``peephole`` have a separate write gate (i). A gate that retains by 1 - f has biases of the other sign;
    several retained states have a retention gate each. chrono and uniform_gate spread what the state keeps of itself,
    whatever function of the gate that is: ln U(1, T-1) is for a logistic gate. As in torch's modules, a pre-activation
    that reads the state and an input sums two biases, so its variance is 2/(3N); others have one, 1/(3N). uniform_gate
    also mirrors the law on a gate that only modulates the retention gate, as its authors do: r of ``ur_lstm`` and
    ``ur_gru``. Starts that spread biases over units draw them once (``biases = "fixed"``), and so do
    all starts of cells whose units start with different parameters (``lru``, ``rg_lru``); the others are "redrawn".

    The last four are what libraries in use do to LSTMs (retention gate f); for other cells the retention gate takes f's
    place. stacked_orthogonal draws one orthogonal matrix for all G gates that read the state, and one for those that
    read the input, so that no gate's own matrix is orthogonal; a spec has the blocks' variance, and takes their entries
    as independent. The two biases that chrono's sums are drawn independently in NeMo; here it is the law of N units
    at evenly spaced quantiles. xLSTM's forget biases are evenly spaced from 3 to 6 over heads; here they are drawn.

    Args:
        name: one of ``STARTS``.
        cell: the cell.
        hidden, inputs: N and D, at least 1.
        length: T, the number of steps to bridge; only chrono and doubled_chrono need it, T > 2.
        input: the input sequences' law, copied into the spec.

    Raises:
        SpecError: unknown name, sizes below 1, chrono or doubled_chrono without a length above 2, a start that spreads
            biases for a cell without a retention gate, or whose retention no bias sets.

    Sources: Glorot & Bengio 2010; Saxe et al. 2014 (orthogonal); Gers et al. 2000 and Jozefowicz et al. 2015 (forget
    bias); Le et al. 2015 (identity); Tallec & Ollivier 2018 (chrono); Gu et al. 2020 (uniform gate); CleanRL
    (ppo_atari_lstm.py: stacked_orthogonal); neuralhydrology (cudalstm.py: forget_bias_3, the value of its published
    configurations); Beck et al. 2024, xLSTM (mLSTM's forget gate: 3 to 6); NVIDIA NeMo (LSTMDropout with ``t_max``:
    doubled_chrono).

    >>> from isornn.cells import LSTM
    >>> start("standard", LSTM(), 128, 49).gates["f"].bias_mean
    1.0
    >>> start("chrono", LSTM(), 128, 49, length=200).gates["i"].bias_law
    BiasLaw(kind='chrono', low=1.0, high=199.0, sign=-1, values=())
    """
    hidden, inputs = whole_number("hidden", hidden), whole_number("inputs", inputs)
    if name in _ON_TORCHS:
        return _ON_TORCHS[name](_on(input, cell, _torch(cell, hidden, inputs)), hidden, length)
    if name == "stacked_orthogonal":
        return _on(input, cell, _stacked(cell, hidden, inputs))
    glorot = 2.0 * inputs / (inputs + hidden)
    if name == "glorot":
        return _on(input, cell, _textbook(cell, glorot, Gate(weight_var=1.0)))
    if name == "identity":
        return _on(input, cell, _textbook(cell, glorot, Gate(weight_var=1.0, ensemble="identity")))
    spec = _on(input, cell, _textbook(cell, glorot, Gate(weight_var=1.0, ensemble="orthogonal")))
    if name == "orthogonal":
        return spec
    if name == "standard":
        for gate, sign in retention_signs(cell).items():
            spec = spec.replace(f"{gate}.bias_mean", float(sign))
        return spec
    if name == "chrono":
        return _with_time_scales(name, spec, _chrono(length))
    if name == "uniform_gate":
        law = BiasLaw("uniform_gate")
        spec = _with_time_scales(name, spec, law)
        for gate, sign in modulating_signs(cell).items():
            spec = spec.replace(f"{gate}.bias_law", replace(law, sign=-sign))
        return spec
    raise SpecError("init", name, f"{suggested(name, STARTS)}starts are {', '.join(STARTS)}")


def preset(name: str, hidden: int = 1, inputs: int = 1, input: Input = _UNIT_INPUT) -> Spec:
    """The initialisations of Gilboa et al. 2019, D.4 (critical) and D.5 (standard), in this library's names.

    - ``gilboa-peephole-critical``: weight_var 1e-5 on i, f, g, o; bias_mean 5 on f; all else 0. The input matrices
      are 0, so the state carries nothing of the input until the first update.
    - ``gilboa-lstm-critical``: the unrolled CIFAR-10 model, hard-sigmoid gates; weight_var 1 on o and 1e-5 on i, f, g;
      input_var 1 on i and g; bias_mean 1 on f, which the paper found by a grid search.
    - ``gilboa-standard`` (LSTM) and ``gilboa-peephole-standard``: recurrent matrices orthogonal, weight_var 1; input
      matrices Glorot, input_var 2D/(D+N); bias_mean 1 on f.

    Convention: ``weight_var = N Var(W_ij)``, ``input_var = D Var(U_ij)``; biases are constant, "redrawn" each step.

    Args:
        name: one of ``PRESETS``.
        hidden, inputs: N and D, read by the standard ones only; D = N, as in the paper, unless given.
        input: the input sequences' law, copied into the spec.

    Raises:
        SpecError: unknown name, sizes below 1.

    >>> preset("gilboa-lstm-critical").cell
    LSTM(gate='hard_sigmoid')
    >>> preset("gilboa-peephole-critical").gates["f"].bias_mean
    5.0
    """
    if name == "gilboa-peephole-critical":
        weak = Gate(weight_var=1e-5)
        gates = {"i": weak, "f": replace(weak, bias_mean=5.0), "g": weak, "o": weak}
        return _on(input, Peephole(), gates)
    if name == "gilboa-lstm-critical":
        writes = Gate(weight_var=1e-5, input_var=1.0)
        gates = {"i": writes, "f": Gate(weight_var=1e-5, bias_mean=1.0), "g": writes, "o": Gate(weight_var=1.0)}
        return _on(input, LSTM(gate="hard_sigmoid"), gates)
    if name == "gilboa-standard":
        return start("standard", LSTM(), hidden, inputs, input=input)
    if name == "gilboa-peephole-standard":
        return start("standard", Peephole(), hidden, inputs, input=input)
    raise SpecError("preset", name, f"presets are {', '.join(PRESETS)}")


def _on(input: Input, cell: Cell, gates: Mapping[str, Gate]) -> Spec:
    """With biases drawn once where inputs are correlated over time, of which redrawn networks keep nothing, and where
    units keep parameters of their own, which differ."""
    units_differ = any(isinstance(value, ParameterLaw) for value in cell.parameters.values())
    return Spec(cell, gates, input, biases="fixed" if input.remembers or units_differ else "redrawn")


def _torch(cell: Cell, hidden: int, inputs: int) -> dict[str, Gate]:
    """Every entry uniform in +-1/sqrt(N), whose variance is 1/(3N)."""
    entry = 1.0 / (3.0 * hidden)
    return {
        name: Gate(
            weight_var=hidden * entry * reads.state,
            input_var=inputs * entry * reads.input,
            previous_input_var=inputs * entry * reads.previous_input,
            bias_var=(1 + (reads.state and (reads.input or reads.previous_input))) * entry,
        )
        for name, reads in cell.gates.items()
    }


def _textbook(cell: Cell, glorot: float, recurrent: Gate) -> dict[str, Gate]:
    """``recurrent`` wherever a gate reads the state, Glorot's variance wherever one reads an input, biases 0."""
    return {
        name: replace(
            recurrent if reads.state else Gate(),
            input_var=glorot * reads.input,
            previous_input_var=glorot * reads.previous_input,
        )
        for name, reads in cell.gates.items()
    }


def _stacked(cell: Cell, hidden: int, inputs: int) -> dict[str, Gate]:
    """Blocks of one orthogonal matrix (GN, N), and of one (GN, D), for the G gates that have such a matrix."""
    reads = cell.gates.values()
    recurrent = 1.0 / max(1, sum(gate.state for gate in reads))
    given, previous = (
        inputs / max(hidden * count, inputs)
        for count in (sum(gate.input for gate in reads), sum(gate.previous_input for gate in reads))
    )
    return {
        name: Gate(
            weight_var=recurrent * reads.state,
            input_var=given * reads.input,
            previous_input_var=previous * reads.previous_input,
        )
        for name, reads in cell.gates.items()
    }


def _forget_bias_3(spec: Spec, hidden: int, length: float | None) -> Spec:
    """One of the two biases that torch sums is 3, the other stays random."""
    for gate, sign in retention_signs(spec.cell).items():
        spec = spec.replace(f"{gate}.bias_mean", 3.0 * sign).replace(f"{gate}.bias_var", 1.0 / (3.0 * hidden))
    return spec


def _forget_bias_3_to_6(spec: Spec, hidden: int, length: float | None) -> Spec:
    law = BiasLaw("log_timescale", math.exp(3.0), math.exp(6.0))
    return _with_time_scales("forget_bias_3_to_6", _without_biases(spec, retention_signs(spec.cell)), law, {})


def _doubled_chrono(spec: Spec, hidden: int, length: float | None) -> Spec:
    one = _chrono(length).quantile((torch.arange(_QUANTILES, dtype=torch.float64) + 0.5) / _QUANTILES)
    sums = (one[:, None] + one).flatten().sort().values
    units = ((torch.arange(hidden, dtype=torch.float64) + 0.5) / hidden * len(sums)).long()
    law = BiasLaw("empirical", values=tuple(sums[units].tolist()))
    return _with_time_scales("doubled_chrono", _without_biases(spec, spec.gates), law)


_QUANTILES = 256
_ON_TORCHS: Mapping[str, Callable[[Spec, int, float | None], Spec]] = {
    "torch": lambda spec, hidden, length: spec,
    "forget_bias_3": _forget_bias_3,
    "forget_bias_3_to_6": _forget_bias_3_to_6,
    "doubled_chrono": _doubled_chrono,
}
"""What is done to torch's own start."""


def _without_biases(spec: Spec, gates: Iterable[str]) -> Spec:
    for gate in gates:
        spec = spec.replace(f"{gate}.bias_var", 0.0)
    return spec


def _with_time_scales(name: str, spec: Spec, law: BiasLaw, mirrored: Mapping[str, int] | None = None) -> Spec:
    """Spread the retention gates' biases by ``law`` and mirror it on write gates of their own, or on ``mirrored``."""
    reason = refusal(spec.cell)
    if reason is not None:
        raise SpecError("init", name, f"it spreads the bias of a retention gate, and {reason}")
    written = write_signs(spec.cell) if mirrored is None else mirrored
    signs = retention_signs(spec.cell) | {gate: -sign for gate, sign in written.items()}
    for gate, sign in signs.items():
        spec = spec.replace(f"{gate}.bias_law", replace(law, sign=sign))
    return spec.replace("biases", "fixed")


def _chrono(length: float | None) -> BiasLaw:
    """ln U(1, T-1), which is a law for T > 2 only."""
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not math.isfinite(length) or length <= 2:
        raise SpecError("length", length, "chrono needs the number of steps to bridge, above 2")
    return BiasLaw("chrono", 1.0, float(length) - 1.0)
