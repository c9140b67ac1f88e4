"""Why the theory has no number: what a `Quantity` says in its place, and `TheoryMissing`."""

from __future__ import annotations

NOT_CONVERGED = "no fixed point was found: the state grows without bound or did not settle (see the residual)"
NOT_ASKED = "not computed yet: the diagram is unfinished"
TOO_SOON = "units remember for longer than they could be followed, so that the state may not have settled"
PAIR_TOO_SOON = (
    "two sequences come to their stable correlation, or leave an unstable one, more slowly than they could be followed"
)
FROZEN = "the retention gate is saturated: the state stays what it was, so no fixed point of its own exists"
FROZEN_UNITS = (
    "biases are drawn once, and the retention gates of some units are saturated: they stay at their start, or add up "
    "what they are fed, so that no fixed point exists"
)
OSCILLATES = (
    "the moments lead away from their fixed point step by step, as where they alternate between two values, and do not "
    "settle"
)
KEEPS_ANY = (
    "marginal: one step leaves every value unchanged (the map of moments has slope 1 all along), so networks keep the "
    "one that they start with"
)
KEEPS_START = (
    "units keep any state, or have several stable ones, so that moments depend on the states that they start from; "
    "simulate from yours"
)
NO_SPREAD = "all units have the same value to double precision (Q = mu^2), so the correlation is 0/0"
TOO_LARGE = "it is beyond what double precision holds"
NOT_A_NUMBER = "it could not be computed in double precision (not a number)"
MARGINAL = "infinite: marginal, the factor per step is 1 to rounding, so changes neither fade nor grow exponentially"
UNENDING = "infinite: |chi| >= 1, changes of the state do not fade"
FADING_UNSURE = (
    "units differ so widely by their biases that some samples of these say that changes fade, and others that they do "
    "not: the slowest units decide, and are too rare to tell; see profile"
)
BEYOND = "the response does not fall to 1/e within the steps followed, and is not known to be an exponential"
NOT_EXPONENTIAL = (
    "biases are drawn once, so units have different time scales and the decay is not exponential: see reach and profile"
)
DIED_OUT = (
    "the response died out before its decay settled at one rate, as where units stick for times of their own: see "
    "reach and profile"
)
CORRELATED_RESPONSE = (
    "inputs are correlated over time, and the decay did not become exponential within the steps that were followed: "
    "see reach and profile"
)
JUMPS = "the update jumps in {}, so small displacements do not stay small, and derivatives say nothing of them"
IDENTITY = "the theory of random matrices does not cover identity matrices; measure a network instead"
NOT_POINTWISE = (
    "the update acts on several units together, and the theory is of units that are alike; simulate it instead"
)
TWO_AXES = "its {} takes values (batch, N) only, and the theory's have more axes; write it for (..., N)"
REDRAWN_BESIDE_SPREAD = 'units keep parameters of their own, so their biases must be drawn once too: biases = "fixed"'
UNSEEN = (
    "no displacement of a state changes what is read, to double precision, as where tanh(c) is saturated: see "
    "state_profiles"
)
NEGATIVE = "the response is negative one step later, and does not fall to 1/e: see profile"
NEGATIVE_RATE = "the response is negative one step later, and sampled units do not tell the rate of such a one"
NOTHING_LEFT = "nothing is left of a displacement: the state does not carry over"
NEVER_FORGETS = "infinite: the unit keeps all that it has"
NOT_SETTLED = "the state has not settled within the steps that were followed (see the residual)"
SIGN_UNSURE = "what two sequences' displacements have in common is too little to tell its sign from the sampled units"


class TheoryMissing(ValueError):
    """No theory is known for what was asked; the message says which assumption fails.

    >>> from isornn.cells import Gate, Spec, Vanilla
    >>> from isornn.theory import lstm_approximation
    >>> lstm_approximation(Spec(Vanilla(), {"h": Gate(1.0, 1.0)}))
    Traceback (most recent call last):
    ...
    isornn.theory.reasons.TheoryMissing: the papers' approximation is for an LSTM ...
    """
