"""Figures of results and saved records. ``isornn.present.draw_...`` return one, or write it to a file; matplotlib."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isornn.extras import named

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from isornn.present.analysis import draw_analysis
    from isornn.present.demo import draw_demo
    from isornn.present.front import draw_front
    from isornn.present.matplotlib import draw_panels
    from isornn.present.memory import draw_memory
    from isornn.present.phase import draw_phase
    from isornn.present.spectrum import draw_spectrum
    from isornn.present.watching import draw_gradients, draw_singular_values, draw_watch

# Loaded on first use: labels and panels are used without matplotlib too.
_HOMES = {
    "draw_analysis": "analysis",
    "draw_demo": "demo",
    "draw_front": "front",
    "draw_gradients": "watching",
    "draw_memory": "memory",
    "draw_panels": "matplotlib",
    "draw_phase": "phase",
    "draw_singular_values": "watching",
    "draw_spectrum": "spectrum",
    "draw_watch": "watching",
}

__all__ = [
    "draw_analysis",
    "draw_demo",
    "draw_front",
    "draw_gradients",
    "draw_memory",
    "draw_panels",
    "draw_phase",
    "draw_singular_values",
    "draw_spectrum",
    "draw_watch",
]


if not TYPE_CHECKING:  # a type checker that sees it takes every name, misspelt ones too, for Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'isornn.present' has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"isornn.present.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            raise named(error) from None
