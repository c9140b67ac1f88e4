"""The figure of the memory that data needs."""

from __future__ import annotations

from pathlib import Path

from isornn.figures import Curve, Mark, Panel
from isornn.formatting import steps
from isornn.lookback import Memory
from isornn.present.matplotlib import Drawing, draw_panels


def draw_memory(found: Memory, figure: str | Path | None = None) -> Drawing:
    """`memory_panel` as a figure.

    Args:
        figure: also written there, atomically; the ending (.png, .pdf, .svg) says the format.

    Returns:
        The figure, which a notebook shows.

    Raises:
        OSError: the figure cannot be written there.

    >>> import torch
    >>> from isornn.lookback import memory
    >>> x = torch.randn(300, 20, 1, generator=torch.Generator().manual_seed(0))
    >>> len(draw_memory(memory(x, x[:, -4, 0])).axes)
    1
    """
    return draw_panels("", [memory_panel(found)], figure)


def memory_panel(found: Memory) -> Panel:
    """The score against the number of last steps that are read, with one standard error, and the number needed.

    Where nothing could be tried the caption says why.
    """
    title, x = "What the last steps of the inputs predict", "last steps that are read"
    y = f"{found.score}, held-out sequences"
    if not found.lengths:
        return Panel(title, x, y, caption=str(found))
    curves = [
        Curve(found.lengths, found.scores, error=found.errors, colour=0, hover="last %{x} steps: %{y:.3g}"),
        Curve(found.lengths, found.scores, style="points", colour=0, hover="last %{x} steps: %{y:.3g}"),  # those tried
    ]
    marks = [Mark("y", 0.0)]
    if found.needed is not None:
        marks.append(Mark("x", found.needed, f"enough: {steps(found.needed)}", "dashed"))
    low = min(0.0, max(-1.0, min(found.scores)))
    return Panel(
        title,
        x,
        y,
        curves,
        marks=marks,
        log=["x"],
        x_range=(0.9, 1.1 * found.lengths[-1]),
        y_range=(low - 0.05, 1.05),
        caption=str(found),
    )
