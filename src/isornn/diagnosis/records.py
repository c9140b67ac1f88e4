"""What a diagnosis measured: one frozen record per measurement, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from isornn.cells import Input
from isornn.theory import Analysis, Quantity

_EVERY, _MOST = 128, 512


def single(value: float, stderr: float = 0.0, reasons: Mapping[str, bool] | None = None) -> Quantity:
    """One number as a `Quantity`.

    >>> single(2.0, 0.1).number(), single(0.0, reasons={"no step": True}).reason()
    (2.0, 'no step')
    """
    number, error = (torch.tensor(one, dtype=torch.float64) for one in (value, stderr))
    return Quantity.of(number, error, dict(reasons or {}))


def thinned(count: int) -> Tensor:
    """Indices from 0 to ``count - 1``: every one up to 128, then evenly in their logarithm, at most 512 in all.

    >>> len(thinned(100)), len(thinned(10_000)) <= 512, int(thinned(10_000)[-1])
    (100, True, 9999)
    """
    if count <= _EVERY:
        return torch.arange(count)
    rest = torch.logspace(math.log10(_EVERY), math.log10(count - 1), _MOST - _EVERY, dtype=torch.float64)
    return torch.cat([torch.arange(_EVERY), rest.round().long()]).unique()


def plain(value: Any) -> Any:
    """``value`` as strict JSON: numbers that are not finite become null, a `Quantity` an object with its error.

    >>> plain({"norms": torch.tensor([1.0, -torch.inf])})
    {'norms': [1.0, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Quantity):
        reason, error = value.reason(), value.error()
        known = None if error is None or math.isinf(error) else error
        found: dict[str, Any] = {"value": value.number(), "stderr": known}
        if reason is not None:
            found |= {"reason": reason, "infinite": bool(value.value.isinf())}
        return found
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value.to_json() if hasattr(value, "to_json") else repr(value)


class Record:
    """A dataclass whose JSON has its fields, and those of its properties that ``derived`` names.

    JSON has neither infinity nor NaN: ``nulls`` says by field what a null among its numbers is, where that is not NaN.
    """

    derived: ClassVar[tuple[str, ...]] = ()
    nulls: ClassVar[Mapping[str, float]] = {}

    def to_json(self) -> dict[str, Any]:
        """One JSON object without NaN or infinity; what does not exist is null."""
        names = [*self.derived, *(field.name for field in fields(self))]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}


def layer_name(module: str, kind: str, layer: int, direction: int) -> str:
    """Name of a layer and direction of a module; a model that is itself the module goes by its class.

    >>> layer_name("encoder.rnn", "LSTM", 1, 1), layer_name("", "GRUCell", 0, 0)
    ('encoder.rnn l1_reverse', 'GRUCell')
    """
    own = "" if kind.endswith("Cell") else f" l{layer}" + ("_reverse" if direction else "")
    return (module or kind) + own


@dataclass(frozen=True)
class LayerInfo(Record):
    """Which layer was measured, and on what.

    Args:
        module: dotted name of its module, as ``model.named_modules`` has it; empty where the model itself is it.
        kind: the module's class: ``"LSTM"``, ``"GRUCell"``.
        layer, direction: from 0; direction 1 is the reverse.
        cell, options: the cell by its name, one of the user's own by ``package.module:Class``, and those options of it
            that are not its defaults.
        inputs, hidden, projection: D, N, and P or ``None``.
        bias, batch_first, dropout: the module's options; ``batch_first`` is ``None`` for a cell stepped by hand.
        parametrised: whether a parametrisation computes its weights.
        dtype, device: of its weights.
        calls: how often the module was called in the run.
        chains: into how many separate sequences those calls joined; the longest is measured.
        sequences, steps: B and the largest length in it.
        mean_steps: mean length of its sequences.
        packed: whether sequences had lengths of their own.
        reads_data: whether it is the first layer of a module that ran before any other recurrent module of the model.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.info.name, layer.info.hidden, layer.info.steps
    ('LSTM l0', 8, 20)
    """

    derived = ("name",)

    module: str
    kind: str
    layer: int
    direction: int
    cell: str
    options: Mapping[str, Any]
    inputs: int
    hidden: int
    projection: int | None
    bias: bool
    batch_first: bool | None
    dropout: float
    parametrised: bool
    dtype: str
    device: str
    calls: int
    chains: int
    sequences: int
    steps: int
    mean_steps: float
    packed: bool
    reads_data: bool

    @property
    def name(self) -> str:
        """``encoder.rnn l1_reverse``."""
        return layer_name(self.module, self.kind, self.layer, self.direction)


@dataclass(frozen=True)
class ReplayCheck(Record):
    """How closely the float64 replay reproduces what the module returned.

    Args:
        residual: largest difference at any step, relative to the layer's largest value; where ``rounding`` allows more
            than the tolerance, divided by as much.
        tolerance: what is allowed: 1e-5 for float32, 1e-10 for float64, 1e-2 for float16, 5e-2 for bfloat16; or a
            thousand times what rounding has done until that step.
        rounding: distance of a second replay, in the module's own dtype, from the first: more than the tolerance in
            chaotic networks and behind gates that are almost closed. 0 where it was not needed.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.check.residual < layer.check.tolerance
    True
    """

    residual: float
    tolerance: float
    rounding: float


@dataclass(frozen=True)
class Use(Record):
    """What a model does with the results of a recurrent module; the same for all of its layers.

    Args:
        reached: whether the model's output depends on them, of the loss where a target is given; ``None`` where that is
            not known, as of frozen modules and of those that run without gradients.
        windows: into how many steps the states that are detached cut the measured sequence; one window where none is.
        restarts: how many calls began at state 0 although they read consecutive parts of one sequence; 0 where none.
        carried: whether a second run on the same batch starts from the state in which the first ended.
        attached: whether that state then still has the graph of the first run.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.use.reached, layer.use.windows
    (True, (20,))
    """

    reached: bool | None
    windows: tuple[int, ...]
    restarts: int
    carried: bool
    attached: bool


@dataclass(frozen=True)
class InputFacts(Record):
    """A layer's inputs over all sequences, steps and features; exact for this batch.

    Args:
        mean, std: of all values.
        second_moment: ``R = E[x^2]``.
        largest: largest absolute value.
        correlation: ``E[x_a x_b] / E[x^2]`` over pairs of different sequences at the same step, a shared mean counted
            in.
        correlation_in_time: ``E[x_t x_(t+1)] / E[x^2]`` within sequences, likewise.
        feature_means, feature_stds: (D,).
        padding: share of steps that only repeat a sequence's last one, exactly: what padding with a constant looks
            like. 0 where sequences have lengths of their own.
        leading_padding: the same of steps that are followed by their equals from the first step on.

    >>> from isornn.diagnosis import measure
    >>> facts = measure(torch.nn.GRU(2, 8), torch.ones(20, 4, 2)).layers[0].inputs
    >>> facts.mean, facts.std, facts.law.variance
    (1.0, 0.0, 0.0)
    """

    mean: float
    std: float
    second_moment: float
    largest: float
    correlation: Quantity
    correlation_in_time: Quantity
    feature_means: Tensor
    feature_stds: Tensor
    padding: float
    leading_padding: float

    @property
    def law(self) -> Input:
        """The law of the input less its ``feature_means``, for `isornn.init.spec_of` with these as ``means``.

        Correlation 1 where one sequence cannot show it; steps are taken to be independent.
        """
        variance = float(self.feature_stds.double().square().mean())
        known = self.correlation.number()
        if known is None or variance == 0:
            return Input(variance)
        shared = self.second_moment * known - float(self.feature_means.double().square().mean())
        # Rounding can carry a correlation of 1 beyond it.
        return Input(variance, max(-1.0, min(1.0, shared / variance)))


@dataclass(frozen=True)
class GateWeights(Record):
    """One gate's tensors.

    Args:
        weight_var: ``P mean(W_ij^2)``, the fan-in convention of `Gate`; input_var likewise with D. 0 without a matrix.
        singular_values: of the gate's recurrent matrix, from the largest; empty without one.
        bias_means, bias_vars: over units of each bias vector by itself: torch's ``bias_ih`` and ``bias_hh``, which add.
        bias_mean, bias_var: of their sum.

    >>> from isornn.diagnosis import measure
    >>> model = torch.nn.RNN(1, 8)
    >>> _ = torch.nn.init.eye_(model.weight_hh_l0)
    >>> gate = measure(model, torch.randn(20, 4, 1)).layers[0].weights.gates["h"]
    >>> gate.weight_var, gate.singular_values.tolist()
    (1.0, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """

    weight_var: float
    input_var: float
    singular_values: Tensor
    bias_means: tuple[float, ...]
    bias_vars: tuple[float, ...]
    bias_mean: float
    bias_var: float


@dataclass(frozen=True)
class DefaultDraw(Record):
    """Whether tensors look like torch's own initialisation, uniform in +-1/sqrt(N).

    Args:
        within: whether all entries are within the bounds.
        distance: Kolmogorov and Smirnov's, largest gap between the two distribution functions.
        p_value: how often a true draw is at least as far away.
        entries: how many there are.

    >>> DefaultDraw(within=True, distance=0.05, p_value=0.58, entries=256).likely
    True
    """

    derived = ("likely",)

    within: bool
    distance: float
    p_value: float
    entries: int

    @property
    def likely(self) -> bool:
        """Within the bounds, and not one of the 1 in 1000 draws that are farthest away."""
        return self.within and self.p_value > 1e-3


@dataclass(frozen=True)
class WeightFacts(Record):
    """A layer's weights.

    Args:
        gates: by the cell's gate names.
        stacked_singular_values: of all recurrent matrices stacked, (M N, P), as torch stores them; empty without any.
        recurrent_default, input_default, bias_default: whether these look like torch's default draw; ``None`` where
            the layer has no such tensor.
        gates_without_input: gates whose input matrix is 0 in all entries.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> sorted(layer.weights.gates), layer.weights.stacked_singular_values.shape
    (['f', 'g', 'i', 'o'], torch.Size([8]))
    """

    gates: Mapping[str, GateWeights]
    stacked_singular_values: Tensor
    recurrent_default: DefaultDraw | None
    input_default: DefaultDraw | None
    bias_default: DefaultDraw | None
    gates_without_input: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownStart(Record):
    """A start that a layer's tensors have, whether it is a fault or not.

    Args:
        name: as `isornn.init` has it, without its underscore (``"stacked_orthogonal"``); ``"forget_bias_3"``, and so
            for any number in place of the 3; or ``"other"``.
        law: of matrices and biases, as a clause.
        used: where it is used, as a clause; may be empty.

    >>> print(KnownStart("zero", "all weights 0", ""))
    zero: all weights 0
    """

    name: str
    law: str
    used: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.name}: {self.law}" + (f"; {self.used}" if self.used else "")


@dataclass(frozen=True)
class GateActivity(Record):
    """A gate's values over all units, steps and sequences of the batch, peepholes included; exact for this batch.

    Args:
        mean: of the values.
        closed, open: share of values below 0.01 and above 0.99: saturated. There the slope of the logistic function
            is below 4 % of its largest, so hardly any gradient reaches the gate's weights.
        pre_activation_mean, pre_activation_std: of u.
        unit_means: (N,), of the values over steps and sequences for each unit.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> 0 < layer.gates["f"].mean < 1, layer.gates["f"].unit_means.shape
    (True, torch.Size([8]))
    """

    derived = ("saturated",)

    mean: float
    closed: float
    open: float
    pre_activation_mean: float
    pre_activation_std: float
    unit_means: Tensor

    @property
    def saturated(self) -> float:
        """Share of values that are closed or open."""
        return self.closed + self.open


@dataclass(frozen=True)
class Memory(Record):
    """How long units retain a state by their gates alone: ``tau = -1 / ln A`` steps, ``s' = A s + B``, A its mean.

    Args:
        gate: the first gate that A depends on; ``None`` where no retained state is gated.
        length: the number of steps to bridge.
        time_constants: (N,), from A's mean over steps and sequences for each unit, infinite where that is 1; ``None``
            without a gate.
        under, near, beyond: share of units with tau below length / 2, up to 2 length, and above.
        state: the state's name.
        sign: +1 where A rises with the gate's pre-activation, -1 where it falls.
        others: the same for further retained states, each by its own gates.
        through_gates: ln of what a gradient keeps over ``length - 1`` steps back by the gates alone, as if no recurrent
            matrix passed any on: the root mean square over units and sequences of ``prod_t A_t``, exact for this batch,
            its error over sequences. Beyond the sequence's end at the mean rate of each unit. ``None`` without
            a gate.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.memory.state, layer.memory.gate, layer.memory.time_constants.shape
    ('c', 'f', torch.Size([8]))
    """

    nulls = {"time_constants": math.inf}

    gate: str | None
    length: int
    time_constants: Tensor | None
    under: Quantity
    near: Quantity
    beyond: Quantity
    state: str | None = None
    sign: int = 1
    others: tuple[Memory, ...] = ()
    through_gates: Quantity | None = None


@dataclass(frozen=True)
class StateMoments(Record):
    """One state's moments over units and sequences, at some of the times; exact for this batch.

    Args:
        times: from 1 to T in the layer's own order of steps; every one up to 128, then ever fewer.
        mean: ``mu = E[h]``.
        second_moment: ``Q = E[h^2]``.
        correlation: ``(E[h_a h_b] - mu^2) / (Q - mu^2)`` over pairs of different sequences; NaN where fewer than two
            sequences are left or no unit varies.
        spread: standard deviation over sequences of a sequence's own mean square over units; NaN for one sequence.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> sorted(layer.moments), layer.moments["h"].second_moment.shape
    (['c', 'h'], torch.Size([20]))
    """

    times: Tensor
    mean: Tensor
    second_moment: Tensor
    correlation: Tensor
    spread: Tensor


@dataclass(frozen=True)
class Profile(Record):
    """Norm over units of a perturbation or gradient, by the number of steps between cause and effect.

    Args:
        lags: steps between, from 0: every one up to 128, then ever fewer.
        log_norm: ln of the root mean square over sequences of the norm, by state and, under ``"all"``, of all states
            together; -inf where it is exactly 0. One number a lag.
        spread: standard deviation over sequences of ln of the norm of all; NaN where fewer than two sequences have it.
        rate: slope of ln norm per step, by least squares for each sequence over ``window``: mean and standard error
            over sequences (over eight blocks of steps where there is one sequence).
        xi: ``-1 / (2 rate)``, the time scale of the *squared* norm, as the theory's ``-1/ln chi``.
        window: first and last lag of the fit: from 1 to where the norm has fallen by 1e7, or to the end.
        misfit: root mean square of ln norm about the line: the profile is no exponential where it is large.
        reach: steps after the first until the mean squared norm has fallen to 1/e of its value after the first.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.backward.lags[-1], layer.backward.xi.number() < 20  # torch's default start
    (tensor(20), True)
    """

    nulls = {"log_norm": -math.inf}

    lags: Tensor
    log_norm: Mapping[str, Tensor]
    spread: Tensor
    rate: Quantity
    xi: Quantity
    window: tuple[int, int] | None
    misfit: float | None
    reach: Quantity


@dataclass(frozen=True)
class Amplification(Record):
    """A gradient with respect to a layer's states, relative to what enters the layer there and later.

    The norm over units and sequences at some lag, over that of the sums of norms that enter each sequence's outputs and
    last states from there on: at most 1 where no product of Jacobians amplifies.

    Args:
        log: ln of the largest ratio: of the user's loss exact for this batch, of random combinations of last outputs
            with the standard error over sequences (0 for a single one).
        lag: steps from there to the sequence's end.
        of_loss: whether the gradient is that of the user's loss.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.amplification.log.number() < 1, layer.amplification.of_loss
    (True, False)
    """

    log: Quantity
    lag: int
    of_loss: bool


@dataclass(frozen=True)
class JacobianAt(Record):
    """Singular values of ``d s_t / d s_(t-1)``, all states concatenated, along the first of the longest sequences.

    Args:
        time: t, in the layer's own order of steps.
        singular_values: from the largest, exact.

    >>> JacobianAt(time=5, singular_values=torch.tensor([2.0, 0.0])).mean_square
    2.0
    """

    derived = ("mean_square",)

    time: int
    singular_values: Tensor

    @property
    def mean_square(self) -> float:
        """m1, the mean squared singular value."""
        return float(self.singular_values.square().mean())


@dataclass(frozen=True)
class Lyapunov(Record):
    """The leading Lyapunov exponents: growth of ln volume per step, direction by direction.

    Args:
        exponents: in the order of the decomposition, so from the largest but for their errors; finite-time values,
            mean over sequences of ``sum_t ln r_ii / T``.
        window: times from and to which growth is taken.
        sequences: how many, the longest.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.lyapunov.exponents[0].number() < 0  # nearby states approach each other
    True
    """

    exponents: tuple[Quantity, ...]
    window: tuple[int, int]
    sequences: int


@dataclass(frozen=True)
class TiedPrediction(Record):
    """Networks of the layer's own width with one draw of weights, followed over ``steps`` steps from state 0.

    Args:
        steps, width: how many steps, and units of each network: N rounded to a power of two.
        lyapunov: growth of ``ln |ds|`` per step over the later half of the steps; the mean over networks.

    >>> TiedPrediction(steps=20, width=32, lyapunov=single(-0.2, 0.01))
    TiedPrediction(steps=20, width=32, lyapunov=Quantity(-0.200 ± 0.010))
    """

    steps: int
    width: int
    lyapunov: Quantity


@dataclass(frozen=True)
class Predicted(Record):
    """The theory's answer for `spec_of` the layer, given its input's means, variance and correlation over sequences.

    Args:
        untied: infinite width, weights fresh at every step; ``None`` where there is no answer.
        tied: one draw of weights; likewise.
        reason: why there is none.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.GRU(1, 8), torch.randn(20, 4, 1), theory=True).layers[0]
    >>> layer.predicted.untied.reach.number() < 20, layer.predicted.reason
    (True, None)
    """

    untied: Analysis | None
    tied: TiedPrediction | None
    reason: str | None = None


@dataclass(frozen=True)
class Denormals(Record):
    """Forward and backward passes of a module in its own dtype, with denormal numbers and with 0 in their place.

    Args:
        gradients: share of denormal numbers in the gradient with respect to the module's inputs.
        states: share in its outputs.
        seconds, flushed_seconds: of a pass, the second with ``torch.set_flush_denormal(True)``: the quickest of three
            each, or the first where flushing saves less than a tenth of it.
        sequences, steps: B and T of it.
        device: the CPU.
        flushed: whether the mode was on already.

    >>> found = Denormals(0.4, 0.0, 2.0, 0.2, sequences=64, steps=200, device="x86", flushed=False)
    >>> found.costly
    True
    """

    MANY: ClassVar[float] = 0.01
    # A pass that is a quarter slower than it need be is worth a line.
    SLOWER: ClassVar[float] = 1.25

    gradients: float
    states: float
    seconds: float
    flushed_seconds: float
    sequences: int
    steps: int
    device: str
    flushed: bool

    @property
    def costly(self) -> bool:
        """Whether there are many, and flushing saves time on this CPU."""
        many = max(self.gradients, self.states) > self.MANY
        return many and not self.flushed and self.seconds > self.SLOWER * self.flushed_seconds

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        kind, share = ("gradient", self.gradients) if self.gradients >= self.states else ("output", self.states)
        return (
            f"{share:.0%} of the numbers in the {kind} are denormal, and this CPU is slow with them: a forward and "
            f"backward pass over {self.sequences} sequences of {self.steps} steps takes {self.seconds:.3g} s, and "
            f"{self.flushed_seconds:.3g} s with torch.set_flush_denormal(True) ({self.device})."
        )


@dataclass(frozen=True)
class LayerDiagnosis(Record):
    """All that was measured of one layer and direction, in its own order of steps: a reverse one begins at the end.

    Args:
        info: which layer.
        check: how closely the replay that everything is measured on reproduces the module.
        inputs: statistics of its input.
        weights: its tensors.
        gates: statistics by gate.
        memory: time constants of the retained state, relative to ``length``.
        moments: by state, over time.
        forward: distance of two nearby states over time.
        backward: gradient of a random combination of the layer's own last output with respect to its earlier states.
        loss: gradient of the user's loss with respect to the layer's states, through the whole model; lags count back
            from the sequence's end. ``None`` without a target. Where a gradient enters at many steps, as where the loss
            reads them, or in a layer below another, the slope is not the decay of one that enters at the end: ``xi``
            and ``rate`` are then not given.
        amplification: of the gradient of the loss by the recurrence; of that of random last outputs, over ``length``
            steps, without a target, where no gradient enters, and where a sequence was made by several calls.
        loss_steps: share of the steps at which the gradient of the loss enters the layer's output; ``None`` without a
            target, and where a sequence was made by several calls: there each call's gradient includes that of the
            later ones.
        jacobians: singular values of one step at several times; empty where states are wider than 4096.
        lyapunov: the leading exponents.
        predicted: the theory's answer for a layer with these hyper-parameters.
        denormals: of its module's pass; ``None`` where there are none, or the device computes with them at full speed.
        start: which of the known starts its weights have; ``None`` where they look trained or drawn otherwise.
        use: what the model does with its module's results.

    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.info.name, sorted(layer.gates), layer.loss
    ('LSTM l0', ['f', 'i', 'o'], None)
    """

    info: LayerInfo
    check: ReplayCheck
    inputs: InputFacts
    weights: WeightFacts
    gates: Mapping[str, GateActivity]
    memory: Memory
    moments: Mapping[str, StateMoments]
    forward: Profile
    backward: Profile
    loss: Profile | None
    amplification: Amplification | None
    loss_steps: float | None
    jacobians: tuple[JacobianAt, ...]
    lyapunov: Lyapunov
    predicted: Predicted
    denormals: Denormals | None = None
    start: KnownStart | None = None
    use: Use | None = None


@dataclass(frozen=True)
class Unmeasured(Record):
    """A recurrent module of which nothing could be measured.

    Args:
        module, kind: its dotted name and class.
        reason: why not.
        finite: false where NaN or infinite numbers are the reason.
        called: false where the run did not call it.
        steps: of its longest sequence; 0 where that is not known.

    >>> from isornn.diagnosis import measure
    >>> found = measure(torch.nn.GRU(1, 8), torch.full((20, 4, 1), math.nan)).unmeasured[0]
    >>> found.finite, found.steps
    (False, 20)
    """

    module: str
    kind: str
    reason: str
    finite: bool = True
    called: bool = True
    steps: int = 0


@dataclass(frozen=True)
class Diagnosis(Record):
    """What `measure` found.

    Args:
        model: the class of the model.
        length: the number of steps to bridge: as given, or the steps of the longest sequence.
        layers: in the order of ``model.named_modules``, then by layer and direction.
        unmeasured: recurrent modules that were not called, or could not be replayed.
        loss: its value on the batch, where a target was given.

    >>> from isornn.diagnosis import measure
    >>> found = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1))
    >>> found.model, found.length, len(found.layers), sorted(found.to_json())
    ('LSTM', 20, 1, ['layers', 'length', 'loss', 'model', 'unmeasured'])
    """

    model: str
    length: int
    layers: tuple[LayerDiagnosis, ...]
    unmeasured: tuple[Unmeasured, ...]
    loss: float | None
