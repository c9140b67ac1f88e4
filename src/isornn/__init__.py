"""Over how many steps an untrained recurrent network carries information, and initialisations that extend it to T.

>>> import isornn
>>> spec = isornn.Spec(isornn.cells.Peephole(), {"f": isornn.Gate(bias_mean=5.0)})
>>> round(isornn.analyze(spec).xi.number(), 1)
74.5
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from isornn import (
        cells,
        diagnosis,
        init,
        lookback,
        nn,
        optim,
        present,
        reports,
        simulation,
        tasks,
        theory,
        training,
    )
    from isornn.cells import Gate, Input, Spec, typing_of
    from isornn.lookback import memory
    from isornn.reports import diagnose
    from isornn.simulation import simulate
    from isornn.theory import (
        Objective,
        analyze,
        analyze_stack,
        compare,
        critical,
        isometric,
        kernel,
        kernel_estimate,
        spectrum,
    )

    __version__: str

# Where public names live; loaded on first use, so that the command line starts without torch.
_HOMES = {
    "Gate": "cells",
    "Input": "cells",
    "Objective": "theory",
    "Spec": "cells",
    "analyze": "theory",
    "analyze_stack": "theory",
    "compare": "theory",
    "critical": "theory",
    "diagnose": "reports",
    "isometric": "theory",
    "kernel": "theory",
    "kernel_estimate": "theory",
    "memory": "lookback",
    "simulate": "simulation",
    "spectrum": "theory",
    "typing_of": "cells",
}
_MODULES = (
    "cells",
    "diagnosis",
    "init",
    "lookback",
    "nn",
    "optim",
    "present",
    "reports",
    "simulation",
    "tasks",
    "theory",
    "training",
)

__all__ = [
    "Gate",
    "Input",
    "Objective",
    "Spec",
    "analyze",
    "analyze_stack",
    "cells",
    "compare",
    "critical",
    "diagnose",
    "diagnosis",
    "init",
    "isometric",
    "kernel",
    "kernel_estimate",
    "lookback",
    "memory",
    "nn",
    "optim",
    "present",
    "reports",
    "simulate",
    "simulation",
    "spectrum",
    "tasks",
    "theory",
    "training",
    "typing_of",
]


if not TYPE_CHECKING:  # a type checker that sees it takes every name, misspelt ones too, for Any

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("isornn")
        if name in _HOMES:
            return getattr(importlib.import_module(f"isornn.{_HOMES[name]}"), name)
        if name in _MODULES:
            return importlib.import_module(f"isornn.{name}")
        raise AttributeError(f"module 'isornn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
