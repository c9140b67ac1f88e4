"""The checks on a measured layer: each has its condition, its sentence, its evidence and its fix in one class."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from isornn.diagnosis import fixes
from isornn.diagnosis.fixes import Advice, Fix
from isornn.diagnosis.records import Denormals, Diagnosis, LayerDiagnosis, Profile, Unmeasured
from isornn.diagnosis.states import EDGE
from isornn.diagnosis.weights import TOLERANCE, doubled_gates, equal, layer_evidence
from isornn.formatting import or_why, power_of_ten, with_error
from isornn.theory import Quantity

CANNOT_TELL, NOT_FINITE = "cannot_tell", "not_finite"

# A thousandth, 2^-10, is the resolution of half precision and of TF32, in which cuDNN multiplies: a smaller gradient is
# lost when it is added to that of the last steps, and one larger by as much hides them.
BAR = 10 * math.log(2)
ERRORS = 2


@dataclass(frozen=True)
class Finding:
    """Something measured that limits training: a sentence with numbers, its evidence and its fix.

    Args:
        kind: one of `KINDS`, or ``"cannot_tell"``.
        layer: the layer's name as `LayerInfo.name` has it, or an unmeasured module's; ``None`` for the whole model.
        sentence: what was found, with numbers and units.
        evidence: by what was measured: its value, with its error unless it is exact, and the bar it is held to.
        fix: a correction of the layer that `fix_` can make, or code for the user to place; ``None`` where only other
            data or a look at the model helps.
    """

    kind: str
    layer: str | None
    sentence: str
    evidence: Mapping[str, str]
    fix: Fix | Advice | None = None

    @property
    def remedy(self) -> str:
        """Python that corrects it where ``model`` and ``batch`` are what was measured; empty without a fix."""
        return "" if self.fix is None else self.fix.code

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        plain = {name: getattr(self, name) for name in ("kind", "layer", "sentence", "remedy")}
        return {**plain, "evidence": dict(self.evidence)}


@dataclass(frozen=True)
class GradientRetention:
    """Norm of the gradient after ``length`` steps back relative to its norm after one: ln of the ratio.

    Args:
        length: the number of steps to bridge.
        steps: how many of them the sequences have.
        log: the ratio's logarithm after ``length`` steps; beyond ``steps`` along the fitted rate.
        error: standard error of the fitted rate, over ``length`` steps.
        measured: the logarithm after ``steps``.
    """

    length: int
    steps: int
    log: float
    error: float
    measured: float

    @staticmethod
    def of(profile: Profile, length: int) -> GradientRetention | None:
        """From a backward profile; ``None`` where it is too short to have a rate.

        >>> import torch
        >>> from isornn.diagnosis.gradients import profile_of
        >>> slopes = torch.tensor([-0.5, -0.52], dtype=torch.float64)
        >>> decay = profile_of({"all": torch.arange(31.0).unsqueeze(1) * slopes})
        >>> found = GradientRetention.of(decay, 30)
        >>> round(found.log, 1), found.vanishes
        (-14.7, True)
        """
        values = profile.log_norm["all"]
        if len(values) < 2:
            return None
        lags = profile.lags.tolist()
        # Where lags are thinned the last one may be a little before the length, but not before the sequence's end.
        at = max(number for number, lag in enumerate(lags) if lag <= length)
        steps = int(lags[at])
        measured = -math.inf if math.isinf(float(values[1])) else float(values[at] - values[1])
        rate, error = profile.rate.number(), profile.rate.error()
        if math.isinf(measured):
            return GradientRetention(length, steps, measured, 0.0, measured)
        if rate is None or error is None:
            return None
        return GradientRetention(length, steps, measured + rate * (length - steps), error * (length - 1), measured)

    @property
    def conclusive(self) -> bool:
        """Whether what was measured covers half the length, or has passed the bar already."""
        return 2 * self.steps >= self.length or abs(self.measured) > BAR

    @property
    def vanishes(self) -> bool:
        """Below the bar by more than two standard errors."""
        return self.conclusive and self.log + ERRORS * self.error < -BAR

    @property
    def explodes(self) -> bool:
        """Above the bar by more than two standard errors."""
        return self.conclusive and self.log - ERRORS * self.error > BAR

    def evidence(self, bar: str) -> dict[str, str]:
        """The ratio, and the bar it is held to."""
        how = "measured" if self.steps >= self.length else f"the last {self.length - self.steps} steps by the fit"
        value = "exactly 0" if math.isinf(self.log) else f"{self.ratio}, ln of it {self.log:.4g} ± {self.error:.2g}"
        return {f"gradient after {self.length} steps relative to one": f"{value} ({how}; bar: {bar})"}

    @property
    def ratio(self) -> str:
        """The ratio."""
        return power_of_ten(self.log / math.log(10))

    @property
    def against_one(self) -> str:
        """The ratio, as a clause."""
        return f"after {self.length} steps its norm is {self.ratio} of that after one step"


class Check(ABC):
    """One condition on a measured layer.

    ``explains`` names findings of the same layer that follow from this one, and are not reported with it.
    """

    kind: ClassVar[str]
    explains: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        """The finding, where the condition holds."""

    def finding(
        self, layer: LayerDiagnosis, sentence: str, evidence: Mapping[str, str], fix: Fix | Advice | None
    ) -> Finding:
        """A finding of this check's kind."""
        return Finding(self.kind, layer.info.name, sentence, evidence, fix)


class Exploding(Check):
    """The gradient at ``length`` is above 2^10 of that after one step, by two standard errors.

    Either its rate and the leading Lyapunov exponent are above 0, by two errors, or the bar is passed within the steps
    that were measured: transient growth counts as well.
    """

    kind = "exploding"
    explains = frozenset({"amplified"})

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        found, rate, leading = _retention(layer, length), layer.backward.rate, layer.lyapunov.exponents[0]
        if found is None or not found.explodes:
            return None
        chaotic = _positive(rate) and _positive(leading)
        if not chaotic and found.measured <= BAR:
            return None
        how = f"nearby states do not keep diverging (Lyapunov exponent {or_why(leading)} per step)"
        if chaotic:
            how = (
                f"its logarithm grows by {or_why(rate)} per step, and nearby states diverge (Lyapunov exponent "
                f"{or_why(leading)} per step)"
            )
        trained = layer_evidence(layer) is None
        return self.finding(
            layer,
            f"The gradient explodes: over {length} steps its norm grows by a factor of {found.ratio}; {how}.",
            {
                **found.evidence("2^10"),
                **_rates(layer),
                "leading Lyapunov exponent": f"{or_why(leading)} (bar: above 0 by {ERRORS} errors, or a gradient above "
                "2^10 within the measured steps)",
                **_weights(layer),
            },
            fixes.clip() if trained else fixes.redraw(layer, length, trained),
        )


class Amplified(Check):
    """The gradient with respect to the states at some time is above 2^10 times what enters from then on.

    What enters are the gradients with respect to the layer's outputs and last states; their norms are added up over
    steps. Jacobians that amplify nothing, orthogonal ones as well as those that vanish, keep the ratio at or below 1.
    A bar on the gradient's own norm, or on the update that it makes, would depend on the units of the loss: a sum over
    10,000 entries has 10,000 times the gradient of their mean, and trains as well. This ratio is the same for both.

    With a target it is the gradient of the loss, exactly. Without one, and where sequences were made by several calls,
    it is that of a Gaussian combination of last outputs over at most ``length`` steps, above the bar by two standard
    errors. Unlike `Exploding` this counts growth that has ended before ``length``, and that of the first step back.
    """

    kind = "amplified"

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        found = layer.amplification
        log, error = (None, None) if found is None else (found.log.number(), found.log.error())
        if found is None or log is None or error is None or log - ERRORS * error <= BAR:
            return None
        what, entering = "a random gradient", "what enters at the end"
        if found.of_loss:
            what, entering = "the gradient of the loss", "what enters the layer's outputs from there on"
        ratio = power_of_ten(log / math.log(10))
        trained = layer_evidence(layer) is None
        return self.finding(
            layer,
            f"The recurrence amplifies gradients: {found.lag} steps before the end the norm of {what} is {ratio} times "
            f"that of {entering}.",
            {
                "gradient relative to what enters": f"{ratio}, ln of it {or_why(found.log)} (bar: 2^10)",
                **_rates(layer),
                **_weights(layer),
            },
            fixes.clip() if trained else fixes.redraw(layer, length, trained),
        )


class UnnormalisedInput(Check):
    """First layers only: ``sqrt(input_var E[x^2])`` above ln 99 or below 2^-10, or a mean of ten standard deviations.

    The check uses the input's contribution to the gates' pre-activations, whose variance is ``input_var R``. Gates
    whose weights saturate them with inputs of unit size are excluded, as the data is not the cause. The mean is
    compared feature by feature, where it contributes more than 1 to pre-activations.
    """

    kind = "unnormalised_input"
    explains = frozenset({"exploding", "amplified", "saturated_forget_gate", "vanishing"})

    # An input of this size alone saturates a gate's typical unit: ln(0.99 / 0.01).
    LARGE = math.log((1 - EDGE) / EDGE)
    SMALL = math.exp(-BAR)
    # A mean of ten standard deviations: the loss is a hundred times more curved along it than along what varies.
    OFFSET = 10.0

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        inputs, gates = layer.inputs, layer.weights.gates.values()
        gains = [math.sqrt(gate.input_var) for gate in gates if 0 < gate.input_var <= self.LARGE**2]
        varying = math.sqrt(float(inputs.feature_stds.square().mean()))
        # An input that is the same at all steps is normalised by nothing.
        if layer.info.layer > 0 or not gains or varying == 0:
            return None
        gain = max(gains)
        drive = gain * math.sqrt(inputs.second_moment)
        shared = math.sqrt(float(inputs.feature_means.square().mean()))
        if drive > self.LARGE:
            wrong = (
                f"their contribution to pre-activations is {drive:.3g} (root mean square), and {self.LARGE:.2g} "
                "saturates a gate"
            )
        elif drive < self.SMALL:
            wrong = (
                f"their contribution to pre-activations is {drive:.2g} (root mean square), too small to have an effect"
            )
        elif shared > self.OFFSET * varying and gain * shared > 1:
            wrong = (
                f"the features' means are {shared / varying:.0f} times their standard deviations (root mean squares)"
            )
        else:
            return None
        size = f"mean {inputs.mean:.4g}, standard deviation {inputs.std:.3g}"
        return self.finding(
            layer,
            f"The inputs are not normalised ({size}): {wrong}.",
            {
                "inputs": f"{size}, largest {inputs.largest:.3g}",
                "drive, sqrt(input_var E[x^2])": f"{drive:.3g} (bars: {self.SMALL:.2g} and {self.LARGE:.3g})",
                "mean over standard deviation, by feature": f"{shared / varying:.3g} (bar: {self.OFFSET:g}, where the "
                f"mean drives by more than 1; here by {gain * shared:.3g})",
            },
            fixes.normalise(),
        )


class Padding(Check):
    """First layers without lengths only: 5 % more of the steps repeat their sequence's last row than its first row."""

    kind = "padding"

    # One step in twenty; values that are often repeated anyway are as much so at the start.
    PADDED = 0.05

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        inputs, info = layer.inputs, layer.info
        if info.layer > 0 or inputs.padding - inputs.leading_padding <= self.PADDED:
            return None
        return self.finding(
            layer,
            f"Padding is processed as input: {inputs.padding:.0%} of the steps repeat their sequence's last row, on "
            f"average the last {inputs.padding * info.steps:.0f} of {info.steps}, and the layer is given no lengths.",
            {
                "steps that repeat the last row": f"{inputs.padding:.1%} (bar: {self.PADDED:.0%} more than at the "
                "start)",
                "steps at the start that repeat the first": f"{inputs.leading_padding:.1%}",
            },
            fixes.pack(info.batch_first),
        )


class DefaultStart(Check):
    """Recurrent entries are within ±1/sqrt(N), uniform at p > 0.001, and the gradient vanishes within ``length``."""

    kind = "default_start"
    explains = frozenset({"vanishing"})

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        draw, found = layer.weights.recurrent_default, _retention(layer, length)
        if draw is None or not draw.likely or found is None or not found.vanishes:
            return None
        bound = f"1/sqrt({layer.info.hidden})"
        return self.finding(
            layer,
            f"The weights have torch's default initialisation, and the gradient vanishes: {found.against_one}; "
            f"{_xi(layer)}.",
            {
                "recurrent entries": f"all within ±{bound}; distance {draw.distance:.2g} from the uniform law, which "
                f"{draw.p_value:.2g} of such draws exceed (bar: 0.001)",
                **found.evidence("2^-10"),
                **_rates(layer),
            },
            fixes.redraw(layer, length, layer_evidence(layer) is None),
        )


class StackedOrthogonal(Check):
    """Singular values of the stacked (k N, P) matrix are equal to 1 %, those of a gate's own are not."""

    kind = "stacked_orthogonal"

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
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


class SaturatedForgetGate(Check):
    """More than half of the units retain their state for over 100 lengths; or the gate is closed at 25 % of its values.

    A closed gate (below 0.01) counts where the gradient vanishes.
    """

    kind = "saturated_forget_gate"
    explains = frozenset({"vanishing"})

    # A gate that would stay open for a hundred lengths forgets less than 1 % over one, and its slope f (1 - f) is so
    # small that over all the steps together a change of its pre-activation by 1 changes what is retained by less.
    BEYOND = 100
    MOST = 0.5
    # Closed at every fourth step, it resets a unit after four of them on average, whatever it does in between.
    CLOSED = 0.25

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        name, scales = layer.memory.gate, layer.memory.time_constants
        if name is None or scales is None or name not in layer.gates:
            return None
        gate, found = layer.gates[name], _retention(layer, length)
        reset, resetting, retaining = gate.closed, f"below {EDGE}", f"above {1 - EDGE}"
        if layer.memory.sign < 0:
            reset, resetting, retaining = gate.open, retaining, resetting
        beyond = float((scales > self.BEYOND * length).double().mean())
        if beyond > self.MOST:
            wrong = (
                f"{beyond:.0%} of its units have a time constant above {self.BEYOND} times the length of {length} "
                "steps, so they neither forget nor learn to forget"
            )
        elif reset > self.CLOSED and found is not None and found.vanishes:
            wrong = (
                f"{reset:.0%} of its values are {resetting}, which resets a unit every {1 / reset:.1f} steps "
                f"on average, and the gradient vanishes: {found.against_one}"
            )
        else:
            return None
        return self.finding(
            layer,
            f"The forget gate {name} is saturated: {wrong}; {gate.saturated:.0%} of its values are within {EDGE} of 0 "
            "or 1.",
            {
                f"units that retain for {self.BEYOND} times the length": f"{beyond:.1%} (bar: {self.MOST:.0%})",
                f"gate {name} {resetting}": f"{reset:.1%} of values (bar: {self.CLOSED:.0%}, where the gradient "
                "vanishes)",
                f"gate {name} {retaining}": f"{gate.saturated - reset:.1%} of values (no bar: a long memory needs it)",
                f"pre-activation of {name}": f"mean {gate.pre_activation_mean:.3g}, "
                f"standard deviation {gate.pre_activation_std:.3g}",
                **({} if found is None else found.evidence("2^-10")),
                **_weights(layer),
            },
            fixes.redraw(layer, length, layer_evidence(layer) is None),
        )


class Vanishing(Check):
    """The gradient at ``length`` is below 2^-10 of that after one step, by two standard errors."""

    kind = "vanishing"

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        found = _retention(layer, length)
        if found is None or not found.vanishes:
            return None
        return self.finding(
            layer,
            f"The gradient vanishes: {found.against_one}, below 1/1024; {_xi(layer)}.",
            {**found.evidence("2^-10"), **_rates(layer), **_weights(layer)},
            fixes.redraw(layer, length, layer_evidence(layer) is None),
        )


class DoubledBias(Check):
    """Both bias vectors of the retention gate, which add, are set, in a layer that is as it was initialised."""

    kind = "doubled_bias"

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
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
            Fix(fixes.single_bias_, layer.info.name),
        )


class CostlyDenormals(Check):
    """More than 1 % of the gradient or the outputs are denormal numbers, and a pass is 1.25 times slower with them.

    Measured once for all layers of a module, and reported for its first.
    """

    kind = "denormals"

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
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
            fixes.flush(),
        )


class TooShort(Check):
    """The sequences are shorter than half of ``length``, and neither bar of the gradient is passed."""

    kind = CANNOT_TELL

    def find(self, layer: LayerDiagnosis, length: int) -> Finding | None:
        found, steps = _retention(layer, length), layer.info.steps
        if found is not None and found.conclusive:
            return None
        rate = f"rate: {layer.backward.rate.reason()}"
        why = rate if found is None else f"e^({found.measured:.3g}) of its value after one step"
        return self.finding(
            layer,
            f"Sequences of {steps} steps are too short to measure gradients over {length} steps; use longer sequences.",
            {"steps measured": f"{steps} (bar: half the length, {length / 2:g})", "gradient": why},
            None,
        )


# Most severe first: what stops training at once, what affects the input of all layers, what shortens their memory, what
# only costs time.
CHECKS: tuple[Check, ...] = (
    Exploding(),
    Amplified(),
    UnnormalisedInput(),
    Padding(),
    DefaultStart(),
    StackedOrthogonal(),
    SaturatedForgetGate(),
    Vanishing(),
    DoubledBias(),
    CostlyDenormals(),
    TooShort(),
)
KINDS = (NOT_FINITE, *(check.kind for check in CHECKS if check.kind != CANNOT_TELL))


def findings(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """All findings, most severe first; empty where no check finds anything.

    Every check reads the measurements alone, layer by layer, and has a bar that its evidence names. The classes of
    `isornn.diagnosis.checks` state the conditions. Modules that could not be measured are findings too:
    ``"not_finite"`` where NaN or infinite numbers are the reason, else ``"cannot_tell"``.

    Args:
        diagnosis: of `measure`.

    >>> import torch
    >>> from torch import nn
    >>> from isornn.diagnosis import measure
    >>> model = nn.LSTM(4, 32, batch_first=True)
    >>> found = findings(measure(model, torch.randn(4, 60, 4), theory=False))
    >>> [(finding.kind, finding.layer) for finding in found]
    [('default_start', 'LSTM l0')]
    >>> print(found[0].remedy)
    import isornn
    <BLANKLINE>
    isornn.diagnosis.redraw_(model, 'LSTM l0', 60, batch)
    """
    found = [finding for layer in diagnosis.layers for finding in _of_layer(layer, diagnosis.length)]
    found += [_unmeasured(module) for module in diagnosis.unmeasured]
    if diagnosis.loss is not None and not math.isfinite(diagnosis.loss):
        evidence = {"loss on the batch": f"{diagnosis.loss} (bar: finite)"}
        found.append(Finding(NOT_FINITE, None, f"The loss on the batch is {diagnosis.loss}.", evidence))
    order = [*KINDS, CANNOT_TELL]
    return tuple(sorted(found, key=lambda finding: order.index(finding.kind)))


def _of_layer(layer: LayerDiagnosis, length: int) -> list[Finding]:
    found = {check: finding for check in CHECKS if (finding := check.find(layer, length)) is not None}
    explained = {kind for check in found for kind in check.explains}
    return [finding for check, finding in found.items() if check.kind not in explained]


def _unmeasured(module: Unmeasured) -> Finding:
    name, what = module.module or module.kind, f"{module.kind} {module.module}".strip()
    if module.finite:
        return Finding(CANNOT_TELL, name, f"{what} was not measured: {module.reason}.", {"measured": "nothing"})
    evidence = {"first found": f"{module.reason} (bar: none)"}
    return Finding(NOT_FINITE, name, f"{what} computes with NaN or infinite numbers: {module.reason}.", evidence)


def _retention(layer: LayerDiagnosis, length: int) -> GradientRetention | None:
    return GradientRetention.of(layer.backward, length)


def _rates(layer: LayerDiagnosis) -> dict[str, str]:
    """Growth per step, and xi, as fitted."""
    backward = layer.backward
    return {"growth of ln gradient per step": or_why(backward.rate), "xi in steps": or_why(backward.xi)}


def _xi(layer: LayerDiagnosis) -> str:
    """As a clause."""
    xi = layer.backward.xi
    return f"the time scale xi is {with_error(xi)} steps" if not xi.reason() else f"xi has no value: {xi.reason()}"


def _weights(layer: LayerDiagnosis) -> dict[str, str]:
    """Whether they are as initialised, as evidence."""
    found = layer_evidence(layer)
    return {"weights": "trained, or no trace of an initialisation" if found is None else f"as initialised: {found}"}


def _positive(quantity: Quantity) -> bool:
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return False
    # From few steps the exponent's error is not known.
    return number > (ERRORS * error if math.isfinite(error) else 0.0)
