"""What a diagnosis measured: one frozen record per measurement, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isornn.capture.axes import Reshaped
from isornn.diagnosis.facts import (
    Amplification,
    Denormals,
    GateActivity,
    InputFacts,
    JacobianAt,
    KnownStart,
    Lyapunov,
    Memory,
    Profile,
    StateMoments,
    WeightFacts,
)
from isornn.diagnosis.json_record import Record, layer_name
from isornn.theory import Analysis, Quantity


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
        parametrised: whether a parametrisation, a hook (weight norm) or a wrapper (weight drop) computes its weights.
        dtype, device: of its weights.
        calls: how often the module was called in the run.
        chains: into how many separate sequences, or batches of them, those calls joined; the longest are measured.
        sequences, steps: B and the largest length in it.
        mean_steps: mean length of its sequences.
        packed: whether sequences had lengths of their own.

    >>> import torch
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
        tolerance: what is allowed: 1e-5 for float32, 1e-10 for float64, 1e-2 for float16, 5e-2 for bfloat16, by what
            the module multiplied in (under autocast not the dtype of its states); or a thousand times what rounding
            has done until that step, in half precision up to ten times.
        rounding: distance of a second replay, in the module's own precision, from the first: more than the tolerance in
            chaotic networks and behind gates that are almost closed. 0 where it was not needed.

    >>> import torch
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
        held: the attribute of the model that holds it, as ``"encoder.hidden"``; ``None`` where none was found.
        along_batch: whether row k of the model's output depends on step k of the module alone, so that the module runs
            along the batch.
        unread: how many sequences are shorter than the longest and not read at all, where all longest ones are; 0 where
            any is read.
        reverse_at_start: whether of the reverse direction only the output at the last step is read.
        forward_at_start: whether of the forward direction only the output at the first step is read.
        reads_batch: whether its inputs are the batch's own numbers, not what the model computes from them; ``None``
            where that is not known, as where the batch is a function.
        padding_read: whether anything of the forward direction is read at steps that only repeat their sequence's last
            row; ``None`` where that is not known.
        ends_in_codes: whether sequences end in repeated rows that the model computes, and that the batch does not have:
            see `isornn.capture.use.ends_in_own_codes`.
        zero_gradient: whether the gradient of the model's output with respect to them is exactly 0; not looked at where
            a target is given.
        reshaped: which of its input, output and last state is reshaped where axes were to be exchanged, if any.
        state_sizes: by state, the root mean square of what the measured sequence starts from; empty where it is 0.
        unread_places: layers and directions, counted from 0, of which nothing is read while others are.
        exchanged: how many calls began at the states in which another one ended, h and c in each other's place.

    >>> import torch
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
    held: str | None = None
    along_batch: bool = False
    unread: int = 0
    reverse_at_start: bool = False
    reads_batch: bool | None = None
    padding_read: bool | None = None
    zero_gradient: bool = False
    reshaped: Reshaped | None = None
    state_sizes: Mapping[str, float] = field(default_factory=dict)
    ends_in_codes: bool = False
    unread_places: tuple[tuple[int, int], ...] = ()
    forward_at_start: bool = False
    exchanged: int = 0


@dataclass(frozen=True)
class TiedPrediction(Record):
    """Networks of the layer's own width with one draw of weights, followed over ``steps`` steps from state 0.

    Args:
        steps, width: how many steps, and units of each network: N rounded to a power of two.
        lyapunov: growth of ``ln |ds|`` per step over the later half of the steps; the mean over networks.

    >>> from isornn.diagnosis.json_record import single
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

    >>> import torch
    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.GRU(1, 8), torch.randn(20, 4, 1), theory=True).layers[0]
    >>> layer.predicted.untied.reach.number() < 20, layer.predicted.reason
    (True, None)
    """

    untied: Analysis | None
    tied: TiedPrediction | None
    reason: str | None = None


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

    >>> import torch
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

    @property
    def length(self) -> int:
        """T, the number of steps that this layer should bridge."""
        return self.memory.length


@dataclass(frozen=True)
class Unmeasured(Record):
    """A recurrent module of which nothing could be measured.

    Args:
        module, kind: its dotted name and class.
        reason: why not.
        finite: false where NaN or infinite numbers are the reason.
        called: false where the run did not call it.
        steps: of its longest sequence; 0 where that is not known.
        trained: false where no parameter of it requires a gradient.

    >>> import math
    >>> import torch
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
    trained: bool = True


@dataclass(frozen=True)
class Diagnosis(Record):
    """What `measure` found.

    Args:
        model: the class of the model.
        length: the number of steps to bridge: as given, or the steps of the longest sequence of any layer; by default
            each layer's own `LayerDiagnosis.length` is that of its own longest sequence.
        layers: in the order of ``model.named_modules``, then by layer and direction.
        unmeasured: recurrent modules that were not called, or could not be replayed.
        loss: its value on the batch, where a target was given.
        outside: parameters beside the recurrent modules' that are not finite, and the model's output where it has NaN,
            each as a clause.

    >>> import torch
    >>> from isornn.diagnosis import measure
    >>> found = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1))
    >>> found.model, found.length, len(found.layers), sorted(found.to_json())
    ('LSTM', 20, 1, ['layers', 'length', 'loss', 'model', 'outside', 'unmeasured'])
    """

    model: str
    length: int
    layers: tuple[LayerDiagnosis, ...]
    unmeasured: tuple[Unmeasured, ...]
    loss: float | None
    outside: tuple[str, ...] = ()
