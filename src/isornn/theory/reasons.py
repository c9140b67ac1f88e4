"""Why a number does not exist, in the words that users read."""

NOT_CONVERGED = "no fixed point was found: the state grows without bound or did not settle (see the residual)"
FROZEN = "the remember gate is saturated: the state stays what it was, so no fixed point of its own exists"
KEEPS_ANY = (
    "marginal: one step leaves every value unchanged (the map of moments has slope 1 all along), so networks keep the "
    "one that they start with"
)
NO_SPREAD = "all units have the same value (Q = mu^2), so the correlation is 0/0"
TOO_LARGE = "it is beyond what double precision holds"
MARGINAL = "infinite: marginal, the factor per step is 1 to rounding, so changes neither fade nor grow exponentially"
UNENDING = "infinite: chi >= 1, changes of the state do not fade"
NOT_EXPONENTIAL = (
    "biases are drawn once, so units have different time scales and the decay is not exponential: see reach and profile"
)
IDENTITY = "the theory of random matrices does not cover identity matrices; measure a network instead"
NOT_POINTWISE = (
    "the update acts on several units together, and the theory is of units that are alike; simulate it instead"
)
REDRAWN_BESIDE_SPREAD = 'units keep parameters of their own, so their biases must be drawn once too: biases = "fixed"'
NOTHING_LEFT = "nothing is left of a displacement: the state does not carry over"
NEVER_FORGETS = "infinite: the unit keeps all that it has"
NOT_SETTLED = "the state has not settled within the steps that were followed (see the residual)"
SIGN_UNSURE = "what two sequences' displacements have in common is too little to tell its sign from the sampled units"
