"""Checks of how far gradients come: exploding, amplified, vanishing, and what keeps or loses them."""

from __future__ import annotations

import math
from operator import itemgetter

import torch

from isornn.diagnosis import advice, fixes
from isornn.diagnosis.finding import CANNOT_TELL, Check, Finding
from isornn.diagnosis.profiles import BEGINS_ANEW, MEASURABLE, separate
from isornn.diagnosis.records import LayerDiagnosis
from isornn.diagnosis.retention import BAR, ERRORS, retention
from isornn.diagnosis.states import EDGE
from isornn.diagnosis.weights import layer_evidence, too_few_to_tell
from isornn.formatting import counted, or_why, power_of_ten, with_error
from isornn.theory import Quantity


class Exploding(Check):
    """The gradient at ``length`` is above 2^10 of that after one step, by two standard errors.

    Either its rate and the leading Lyapunov exponent are above 0, by two errors, or the bar is passed within the steps
    that were measured: transient growth counts as well.
    """

    kind = "exploding"
    explains = frozenset({"amplified"})

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        found, rate, leading = retention(layer), layer.backward.rate, layer.lyapunov.exponents[0]
        if found is None or not found.explodes:
            return None
        chaotic = _range(rate)[0] > 0 and _range(leading)[0] > 0
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
            f"The gradient explodes: over {layer.length} steps its norm grows by a factor of {found.ratio}; {how}.",
            {
                **found.evidence("2^10"),
                **_overflow(layer),
                **_rates(layer),
                "leading Lyapunov exponent": f"{or_why(leading)} (bar: above 0 by {ERRORS} errors, or a gradient above "
                "2^10 within the measured steps)",
                **_weights(layer),
            },
            advice.clip() if trained else fixes.redraw_fix(layer, trained),
        )


def _overflow(layer: LayerDiagnosis) -> dict[str, str]:
    """After how many steps back the layer's dtype can no longer hold a gradient that began at size 1."""
    largest = torch.finfo(getattr(torch, layer.info.dtype)).max
    beyond = (layer.backward.log_norm["all"] > math.log(largest)).nonzero().flatten().tolist()
    if not beyond:
        return {}
    lag = int(layer.backward.lags[beyond[0]])
    return {f"steps back at which the gradient overflows {layer.info.dtype}": f"{lag} (bar: {largest:.2g})"}


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

    def find(self, layer: LayerDiagnosis) -> Finding | None:
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
            advice.clip() if trained else fixes.redraw_fix(layer, trained),
        )


class DefaultStart(Check):
    """Recurrent entries are within ±1/sqrt(N), uniform at p > 0.001, and the gradient vanishes within ``length``."""

    kind = "default_start"
    explains = frozenset({"vanishing"})

    CAVEAT = "Where the last few steps predict the target (isornn memory measures it), the default often trains faster."

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        draw, found = layer.weights.recurrent_default, retention(layer)
        if draw is None or not draw.likely or found is None or not found.vanishes:
            return None
        # Of parametrised weights, whose training shows in other tensors, this very law is the evidence.
        trained = layer_evidence(layer) is None and not layer.info.parametrised
        bound, few = f"1/sqrt({layer.info.hidden})", ""
        if trained and too_few_to_tell(layer.weights):
            few = f", as far as {draw.entries} recurrent entries can tell"
        return self.finding(
            layer,
            f"The weights have torch's default initialisation{few}, and the gradient vanishes: {found.against_one}; "
            f"{_xi(layer)}.",
            {
                "recurrent entries": f"all within ±{bound}; distance {draw.distance:.2g} from the uniform law, which "
                f"{draw.p_value:.2g} of such draws exceed (bar: 0.001)",
                **found.evidence("2^-10"),
                **_rates(layer),
            },
            fixes.redraw_fix(layer, trained, self.CAVEAT),
        )


class SaturatedForgetGate(Check):
    """More than half of the units retain their state for over 100 lengths; or the gate is closed at 25 % of its values.

    Lengths count from 3 steps, and a closed gate (below 0.01) where the gradient vanishes.
    """

    kind = "saturated_forget_gate"
    explains = frozenset({"vanishing"})

    # A gate that would stay open for a hundred lengths forgets less than 1 % over one, and its slope f (1 - f) is so
    # small that over all the steps together a change of its pre-activation by 1 changes what is retained by less.
    BEYOND = 100
    MOST = 0.5
    # Closed at every fourth step, it resets a unit after four of them on average, whatever it does in between.
    CLOSED = 0.25

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        name, scales = layer.memory.gate, layer.memory.time_constants
        if name is None or scales is None or name not in layer.gates:
            return None
        gate, found, length = layer.gates[name], retention(layer), layer.length
        reset, resetting, retaining = gate.closed, f"below {EDGE}", f"above {1 - EDGE}"
        if layer.memory.sign < 0:
            reset, resetting, retaining = gate.open, retaining, resetting
        beyond = float((scales > self.BEYOND * length).double().mean())
        # Steps that could not be joined, or a policy's single ones, do not show what a unit has to forget within.
        if length >= MEASURABLE and beyond > self.MOST:
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
            fixes.redraw_fix(layer, layer_evidence(layer) is None),
        )


class Vanishing(Check):
    """The gradient at ``length`` is below 2^-10 of that after one step, by two standard errors."""

    kind = "vanishing"

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        found = retention(layer)
        if found is None or not found.vanishes:
            return None
        return self.finding(
            layer,
            f"The gradient vanishes: {found.against_one}, below 1/1024; {_xi(layer)}.",
            {**found.evidence("2^-10"), **_rates(layer), **_weights(layer)},
            fixes.redraw_fix(layer, layer_evidence(layer) is None),
        )


class EdgeOfChaos(Check):
    """The gradient is neither lost nor explodes over ``length``, its gates alone would lose it, and the state is at the
    edge of chaos or beyond, in a layer that is as it was initialised.

    A step's Jacobian is ``D + R``: D what gates keep of each unit's own state, R what recurrent matrices pass from unit
    to unit. The product of the D is what an initialisation sets, and what stays when other weights change. Where it
    falls below 2^-10 and the gradient does not, the gradient lives by R alone, of which the product neither vanishes
    nor explodes at one size of the weights, the edge of chaos, that depends on the input and moves with every update.

    Bars: the product of the D below 2^-10 by two standard errors; the norm after ``length`` steps above e^-2 of that
    after one (xi above a quarter of the length), or within two errors of it; the leading Lyapunov exponent above -2 /
    ``length``, or within two errors of it. Cells without gates have no other way, and are not called.
    """

    kind = "edge_of_chaos"

    # e-foldings of the norm over the length.
    LOST = 2.0

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        found, drawn, leading = retention(layer), layer_evidence(layer), layer.lyapunov.exponents[0]
        through = [memory.through_gates for memory in (layer.memory, *layer.memory.others)]
        # -inf is a number here: of gates that are 0 nothing is left.
        kept = [(float(one.value), one) for one in through if one is not None and not bool(one.value.isnan())]
        if drawn is None or found is None or not kept or not found.conclusive or found.explodes:
            return None
        number, gates = max(kept, key=itemgetter(0))
        if number + ERRORS * (gates.error() or 0.0) >= -BAR or found.log + ERRORS * found.error < -self.LOST:
            return None
        if not _range(leading)[1] >= -self.LOST / layer.length:
            return None
        alone = power_of_ten(number / math.log(10))
        return self.finding(
            layer,
            f"The gradient survives at the edge of chaos and not through gates: {found.against_one}; through the gates "
            f"alone it would be {alone}. Recurrent matrices pass it on (Lyapunov exponent {or_why(leading)} per step), "
            "as long as neither their weights nor the input change much.",
            {
                f"gradient through gates alone after {layer.length} steps relative to one": f"{alone}, ln of it "
                f"{or_why(gates)} (bar: 2^-10, e^{-BAR:.3g})",
                **found.evidence(f"above e^-{self.LOST:g}, and not above 2^10"),
                **_rates(layer),
                "leading Lyapunov exponent": f"{or_why(leading)} (bar: -{self.LOST / layer.length:.2g}, within "
                f"{ERRORS} errors)",
                "weights": f"as initialised: {drawn}",
            },
            fixes.redraw_fix(layer, trained=False),
        )


class TooShort(Check):
    """The sequences are shorter than half of ``length``, and neither bar of the gradient is passed."""

    kind = CANNOT_TELL

    def find(self, layer: LayerDiagnosis) -> Finding | None:
        found, length, steps = retention(layer), layer.length, layer.info.steps
        if found is not None and found.conclusive:
            return None
        rate = f"rate: {layer.backward.rate.reason()}"
        why = rate if found is None else f"e^({found.measured:.3g}) of its value after one step"
        over = f" over {length} steps" if length >= MEASURABLE else ""
        what = f"Sequences of {counted(steps, 'step')} are too short to measure gradients{over}"
        half = length / 2
        bar = f"half the length, {half:g}" if half > MEASURABLE else f"{MEASURABLE}"
        chains = layer.info.chains
        if chains > 1:
            what = (
                f"{separate(layer.info.calls, chains, steps)}, too short to measure gradients{over}; "
                f"{BEGINS_ANEW}. isornn.init.critical_(model, length) draws such a layer too."
            )
        elif steps < MEASURABLE:
            what += f"; use longer sequences, of at least {MEASURABLE} steps."
        else:
            what += f"; use longer sequences, or give length={steps} for what this layer has to bridge."
        return self.finding(
            layer,
            what,
            {"steps measured": f"{steps} (bar: {bar})", "gradient": why},
            None,
        )


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
    unknown = "too few to tell" if too_few_to_tell(layer.weights) else "trained, or no trace of an initialisation"
    return {"weights": unknown if found is None else f"as initialised: {found}"}


def _range(quantity: Quantity) -> tuple[float, float]:
    """Two errors below and above it; an error that is not known, as from few steps, counts as 0. NaN without a number,
    which is beyond no bar."""
    number, error = quantity.number(), quantity.error()
    if number is None or error is None:
        return math.nan, math.nan
    margin = ERRORS * error if math.isfinite(error) else 0.0
    return number - margin, number + margin
