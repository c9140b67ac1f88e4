"""Figures of results and saved records. ``isornn.present.draw_...`` return one, or write it to a file; matplotlib."""

from __future__ import annotations

import importlib
from typing import Any

from isornn.extras import named

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isornn.present' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"isornn.present.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise named(error) from None
