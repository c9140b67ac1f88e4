"""What the process of every request would else load for itself; the server that forks them imports this once.

No tensors are made here: a process that has run torch's threads cannot be forked safely.
"""

import torch.fx.experimental.symbolic_shapes  # noqa: F401  torch loads it, and sympy, with the first derivative: 0.6 s

import isornn.theory.population.engine
import isornn.theory.spectra.compiled  # noqa: F401
from isornn.explorer import work

work.nothing("")  # plotly loads its classes when they are first used
