"""What the theory refuses, with the reason."""

from __future__ import annotations


class TheoryMissing(ValueError):
    """No theory is known for what was asked; the message says which assumption fails."""
