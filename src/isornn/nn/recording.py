"""Whether a call is recorded as a program that runs later, for values and lengths that are not known yet."""

from __future__ import annotations

import torch
from torch.jit._trace import is_tracing


def recording() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace is at work."""
    return torch.compiler.is_compiling() or is_tracing()
