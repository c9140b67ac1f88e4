"""What is measured of one layer: its inputs, weights, gates, states and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from isornn.cells import Input
from isornn.diagnosis.json_record import Record
from isornn.theory import Quantity


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
            like. 0 where sequences have lengths of their own, and where several all end in equally many.
        leading_padding: the same of steps that are followed by their equals from the first step on.
        median_level, largest_level: root mean square of a sequence's inputs, the median over sequences and the largest.
        feature_sizes, feature_size_errors, feature_largest: (D,), of data that a first layer reads: each feature's root
            mean square, the standard error of its logarithm over sequences (NaN of a single one), and its largest
            absolute value; ``None`` of other inputs.
        tails: of such data of up to 512 features: the size that rare values give it, ``sqrt(variance * tails)`` as
            `isornn.init` divides input weights by, over what is usual: its standard deviation or, where that is larger,
            the distance from their feature's median that nine in ten of the values keep.

    >>> import torch
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
    median_level: float = 0.0
    largest_level: float = 0.0
    feature_sizes: Tensor | None = None
    feature_size_errors: Tensor | None = None
    feature_largest: Tensor | None = None
    tails: Quantity | None = None

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

    >>> import torch
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
        not_drawn: matrices, as "recurrent f" and "input g", whose entries follow no law by which one is drawn
            (`isornn.diagnosis.drawn`).

    >>> import torch
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
    not_drawn: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownStart(Record):
    """A start that a layer's tensors have, whether it is a fault or not.

    Args:
        name: as `isornn.init` has it, without its underscore (``"stacked_orthogonal"``); ``"forget_bias_3"``, and so
            for any number in place of the 3; or ``"other"``.
        law: of matrices and biases, as a clause.
        used: where it is used, as a clause; may be empty.

    >>> print(KnownStart("identity", "identity matrices, biases 0", ""))
    identity: identity matrices, biases 0
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

    >>> import torch
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

    >>> import torch
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

    >>> import torch
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
        reach: steps after the first until the mean squared norm has fallen to 1/e of its value after the first, with
            the standard error over sequences; that is unknown of one sequence.
        ratio_error: standard error over sequences of ln of the norm of all over its value at lag 1, one number a lag;
            NaN where it is unknown.

    >>> import torch
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
    ratio_error: Tensor | None = None


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

    >>> import torch
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

    >>> import torch
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

    >>> import torch
    >>> from isornn.diagnosis import measure
    >>> layer = measure(torch.nn.LSTM(1, 8), torch.randn(20, 4, 1)).layers[0]
    >>> layer.lyapunov.exponents[0].number() < 0  # nearby states approach each other
    True
    """

    exponents: tuple[Quantity, ...]
    window: tuple[int, int]
    sequences: int


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
