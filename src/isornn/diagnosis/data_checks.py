"""Checks of what a layer receives, of how its tensors were set, and of what arithmetic costs."""

from __future__ import annotations

import math

from isornn.diagnosis import advice, fixes
from isornn.diagnosis.facts import Denormals, GateWeights
from isornn.diagnosis.finding import Check, Finding
from isornn.diagnosis.fixes import Fix
from isornn.diagnosis.records import LayerDiagnosis, LayerInfo
from isornn.diagnosis.retention import BAR
from isornn.diagnosis.states import EDGE
from isornn.diagnosis.weights import TOLERANCE, doubled_gates, equal, layer_evidence
from isornn.formatting import counted, with_error, with_error_of
from isornn.init.feature_sizes import ERRORS, SMALLEST, FeatureSizes, numbered
from isornn.init.layer_input import HEAVY, OFFSET, UNEVEN, offset, uneven_scales


class UnnormalisedInput(Check):
    """First layers only: ``sqrt(input_var E[x^2])`` above ln 99 or below 2^-10, or above ln 99 in a sequence of ten
    times the median level; a mean of ten standard deviations; or features' standard deviations that are a hundred
    times their median.

    The check uses the input's contribution to the gates' pre-activations, whose variance is ``input_var R``. Gates
    whose weights saturate them with inputs of unit size are excluded, as the data is not the cause. Means are
    compared feature by feature in data, and by root mean squares in what the model computes, where they contribute
    more than 1 to pre-activations; constants are left out, and of data indicators.
    """

    kind = "unnormalised_input"
    # A start is drawn for what the layer receives, so that the input comes first.
    explains = frozenset(
        {"exploding", "amplified", "saturated_forget_gate", "vanishing", "default_start", "small_features"}
    )

    # An input of this size alone saturates a gate's typical unit: ln(0.99 / 0.01).
    LARGE = math.log((1 - EDGE) / EDGE)
    SMALL = math.exp(-BAR)
    UNLIKE = 10.0  # of the largest level of a sequence to the median one

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        inputs, gates = layer.inputs, layer.weights.gates.values()
        read = [gate for gate in gates if 0 < gate.input_var <= self.LARGE**2]
        varying = math.sqrt(float(inputs.feature_stds.square().mean()))
        # An input that is the same at all steps is normalised by nothing.
        if layer.info.layer > 0 or not read or varying == 0:
            return None
        most = max(read, key=lambda gate: gate.input_var)
        gain = math.sqrt(most.input_var)
        drive = gain * math.sqrt(inputs.second_moment)
        shared = math.sqrt(float(inputs.feature_means.square().mean()))
        each = layer.use is not None and layer.use.reads_batch is True
        times = offset(inputs.feature_means, inputs.feature_stds, each=each)
        means = "the largest" if each else "root mean squares"
        if (gain * varying if _made_up_for(most, shared) else drive) > self.LARGE:
            wrong = (
                f"their contribution to pre-activations is {drive:.3g} (root mean square), and {self.LARGE:.2g} "
                "saturates a gate"
            )
        elif drive < self.SMALL:
            wrong = (
                f"their contribution to pre-activations is {drive:.2g} (root mean square), too small to have an effect"
            )
        elif gain * inputs.largest_level > self.LARGE and inputs.largest_level > self.UNLIKE * inputs.median_level:
            wrong = (
                f"sequences have unlike levels, and the largest contributes {gain * inputs.largest_level:.3g} to "
                f"pre-activations (root mean square), the median {gain * inputs.median_level:.2g}; {self.LARGE:.2g} "
                "saturates a gate"
            )
        # A mean of ten standard deviations: the loss is a hundred times more curved along it than along what varies.
        elif times > OFFSET and gain * shared > 1:
            wrong = f"the features' means are {times:.0f} times their standard deviations ({means})"
        elif (scales := uneven_scales(inputs.feature_means, inputs.feature_stds)) is not None:
            middle, most_varying = scales
            wrong = (
                f"the features' standard deviations are {middle:.2g} in the median and {most_varying:.2g} at most, so "
                "that most have little effect"
            )
        else:
            return None
        size = f"mean {inputs.mean:.4g}, standard deviation {inputs.std:.3g}"
        what = "The inputs, which the model computes," if is_computed(layer) else "The inputs"
        return self.finding(
            layer,
            f"{what} are not normalised ({size}): {wrong}.",
            {
                "inputs": f"{size}, largest {inputs.largest:.3g}",
                "drive, sqrt(input_var E[x^2])": f"{drive:.3g} (bars: {self.SMALL:.2g} and {self.LARGE:.3g})",
                f"mean over standard deviation, by feature, {means}": f"{times:.3g} (bar: {OFFSET:g}, where the "
                f"mean drives by more than 1; here by {gain * shared:.3g})",
            },
            advice.normalise_within(layer.info.inputs) if is_computed(layer) else advice.normalise(),
        )


def is_computed(layer: LayerDiagnosis) -> bool:
    """Whether the layer's inputs are known to be computed by the model."""
    return layer.use is not None and layer.use.reads_batch is False


class SmallFeatures(Check):
    """Data of first layers: features whose root mean square is below a hundredth of the median feature's standard
    deviation, by two errors, and whose largest value is below a tenth of it.

    Constants and indicators are left out, as are features with a level of their own (a year, say), which may vary
    little in one batch. Where input weights are alike, such features have a hundredth of the others' effect.
    """

    kind = "small_features"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        inputs, info = layer.inputs, layer.info
        sizes, errors, largest = inputs.feature_sizes, inputs.feature_size_errors, inputs.feature_largest
        if info.layer or info.direction or sizes is None or errors is None or largest is None:
            return None
        found = FeatureSizes(sizes, errors, largest)
        small, middle = found.far_smaller(inputs.feature_means, inputs.feature_stds)
        if not len(small):
            return None
        most = int(small[sizes[small].argmax()])
        size, error = float(sizes[most]), float(sizes[most] * errors[most])
        number = with_error_of(size, error if math.isfinite(error) else math.inf)
        return self.finding(
            layer,
            f"{len(small)} of {counted(info.inputs, 'feature')} ({numbered(small)}, counted from 0) are far smaller "
            f"than the others: at most {number} (root mean square), where the median feature has standard deviation "
            f"{middle:.3g}. Until input weights have grown they have little effect.",
            {
                "root mean square of the largest of them": f"{number} (bar: a hundredth of the median standard "
                f"deviation, {middle / UNEVEN:.2g}, by {ERRORS} errors)",
                "largest value among them": f"{float(largest[small].max()):.3g} (bar: {SMALLEST * middle:.2g})",
            },
            advice.normalise(),
        )


class HeavyTails(Check):
    """Data of first layers: rare values give it a size of more than five times what is usual, by two errors.

    The size is ``sqrt(variance * tails)``, with which `isornn.init.critical_` warns by the same bar; what is usual is
    the standard deviation or, if that is larger, the distance from their feature's median that nine in ten of the
    values keep that are not equal to it. A few values in one sequence alone do not pass the bar by two errors.
    """

    kind = "heavy_tails"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        tails = layer.inputs.tails
        number, error = (None, None) if tails is None else (tails.number(), tails.error())
        if tails is None or number is None or error is None or layer.info.layer or layer.info.direction:
            return None
        # Of its logarithm, as it was found.
        if number * math.exp(-ERRORS * (error / number if math.isfinite(error) else 0.0)) <= HEAVY:
            return None
        inputs = layer.inputs
        return self.finding(
            layer,
            f"The inputs have heavy tails: rare values give them a size of {with_error(tails)} times what is usual "
            f"(standard deviation {inputs.std:.3g}, largest {inputs.largest:.3g}). Where these fit the gates' range, "
            "most others have little effect.",
            {
                "size that rare values give, over the usual one": f"{with_error(tails)} (bar: {HEAVY:g}, by {ERRORS} "
                "errors over sequences)",
                "inputs": f"standard deviation {inputs.std:.3g}, largest {inputs.largest:.3g}",
            },
            advice.compress(),
        )


class UnnormalisedState(Check):
    """The state that the model gives a layer to start from is far beyond what the layer's own states come to.

    Of LSTM, GRU and tanh networks. Of h, which stays within 1, a root mean square above 10; of an LSTM's c, to which a
    step adds 1 at most, above the number of steps and 10, but not where it is carried from one batch to the next.
    """

    kind = "unnormalised_state"
    explains = frozenset({"saturated_forget_gate", "vanishing", "exploding", "amplified", "default_start"})
    LARGE = 10.0

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        use = layer.use
        if use is None or use.carried or layer.info.layer or layer.info.direction or not _within_1(layer.info):
            return None
        first = next(iter(layer.moments))
        for state, size in use.state_sizes.items():
            bar = self.LARGE if state == first else max(self.LARGE, float(layer.info.steps))
            if size > bar:
                return self.finding(
                    layer,
                    f"The state {state} that it is given to start from has root mean square {size:.3g}, where its own "
                    f"{'stay within 1' if state == first else f'come to {layer.info.steps} at most, 1 a step'}; units "
                    "keep it for as long as their gates retain, and saturate.",
                    {f"root mean square of the initial {state}": f"{size:.3g} (bar: {bar:g})"},
                    advice.normalise_state(),
                )
        return None


def _within_1(layer: LayerInfo) -> bool:
    """Whether h is known to stay within 1."""
    return layer.cell in ("lstm", "gru") or (layer.cell == "vanilla" and "nonlinearity" not in layer.options)


def _made_up_for(gate: GateWeights, shared: float) -> bool:
    """Whether biases are as large as what the input's means add to the gate, as `critical_` sets them.

    Of the gate that reads most, a candidate: those that retain and write have their time scales in their biases too.
    """
    added = gate.input_var * shared**2
    return added > 1 and 0.25 < (gate.bias_mean**2 + gate.bias_var) / added < 4


class Padding(Check):
    """First layers without lengths only: 5 % more of the steps repeat their sequence's last row than its first row.

    Where nothing is read at these steps, as by ``output[torch.arange(B), lengths - 1]``, only a reverse direction runs
    over them ahead of each sequence. Not where these rows are codes that the model computes, nor ahead of a forward
    direction: what it reads comes after.
    """

    kind = "padding"

    # One step in twenty; values that are often repeated anyway are as much so at the start.
    PADDED = 0.05

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        inputs, info, use = layer.inputs, layer.info, layer.use
        unread = use is not None and use.padding_read is False
        # Each direction has its own order of steps: at the end of one is the start of the other.
        ahead = unread and info.direction == 1 and inputs.leading_padding > inputs.padding
        repeats, others = inputs.padding, inputs.leading_padding
        if ahead:
            repeats, others = others, repeats
        if info.layer > 0 or info.packed or repeats - others <= self.PADDED:
            return None
        if (unread and info.direction == 0) or (use is not None and use.ends_in_codes):
            return None
        unknown = "" if layer.loss is not None else " With target= steps that the loss leaves out do not count."
        where = " The reverse direction runs over them ahead of each sequence." if ahead else unknown
        return self.finding(
            layer,
            f"Padding is processed as input: {repeats:.0%} of the steps repeat their sequence's last row, on "
            f"average the last {repeats * info.steps:.0f} of {info.steps}, and the layer is given no lengths.{where}",
            {
                "steps that repeat the last row": f"{repeats:.1%} (bar: {self.PADDED:.0%} more than at the start)",
                "steps at the start that repeat the first": f"{others:.1%}",
            },
            advice.pack(info.batch_first),
        )


class StackedOrthogonal(Check):
    """Singular values of the stacked (k N, P) matrix are equal to 1 %, those of a gate's own are not."""

    kind = "stacked_orthogonal"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        stacked, gates = layer.weights.stacked_singular_values, layer.weights.gates
        own = {name: gate.singular_values for name, gate in gates.items() if len(gate.singular_values) > 0}
        loose = {name: values for name, values in own.items() if len(values) > 1 and not equal(values)}
        if len(own) < 2 or not equal(stacked) or not loose:
            return None
        name, worst = min(loose.items(), key=lambda item: float(item[1][-1]))
        span = f"{float(worst[-1]):.2g} to {float(worst[0]):.2g}"
        return self.finding(
            layer,
            f"Orthogonal initialisation was applied to the stack of {len(own)} gates' matrices, so a single gate's "
            f"matrix is not orthogonal: the singular values of {name} are {span}.",
            {
                "singular values of the stacked matrix": f"{float(stacked[-1]):.4g} to {float(stacked[0]):.4g} "
                f"(bar: equal to {TOLERANCE:.0%})",
                f"singular values of gate {name}": f"{span} (bar: equal to {TOLERANCE:.0%})",
            },
            Fix(fixes.orthogonal_by_gate_, layer.info.name),
        )


class DoubledBias(Check):
    """Both bias vectors of the retention gate, which add, are set, in a layer that is as it was initialised."""

    kind = "doubled_bias"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        name, drawn = layer.memory.gate, layer_evidence(layer)
        if name is None or drawn is None or name not in doubled_gates(layer.weights, layer.info.hidden):
            return None
        gate = layer.weights.gates[name]
        first, second = (f"{mean:.3g}" for mean in gate.bias_means)
        bound = 1 / math.sqrt(layer.info.hidden)
        return self.finding(
            layer,
            f"The bias of gate {name} is set in both bias vectors, which add: the means {first} of bias_ih and "
            f"{second} of bias_hh make {gate.bias_mean:.3g}.",
            {
                f"mean of gate {name} in bias_ih, bias_hh": f"{first}, {second} (bar: both beyond ±{bound:.2g}, where "
                f"torch's own draw ends)",
                "the layer is as it was initialised": drawn,
            },
            Fix(
                fixes.single_bias_,
                layer.info.name,
                notes=(f"Where {first} is meant, not {gate.bias_mean:.3g}: the memory becomes shorter.",),
                choice=f"which of {first} and {gate.bias_mean:.3g} is meant only you know; single_bias_ makes it "
                f"{first}, so that the memory becomes shorter",
            ),
        )


class CostlyDenormals(Check):
    """More than 1 % of the gradient or the outputs are denormal numbers, and a pass is 1.25 times slower with them.

    Measured once for all layers of a module, and reported for its first.
    """

    kind = "denormals"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        found = layer.denormals
        if found is None or not found.costly or layer.info.layer or layer.info.direction:
            return None
        return self.finding(
            layer,
            found.sentence,
            {
                "denormal numbers in the gradient of its inputs": f"{found.gradients:.1%} (bar: {Denormals.MANY:.0%})",
                "denormal numbers in its outputs": f"{found.states:.1%} (bar: {Denormals.MANY:.0%})",
                "seconds of a pass": f"{found.seconds:.3g}, {found.flushed_seconds:.3g} with denormal numbers flushed "
                f"to 0 (bar: {Denormals.SLOWER:g} times)",
                "device": found.device,
            },
            advice.flush(),
        )
