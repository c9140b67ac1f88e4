"""Learning curves of several runs, drawn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from isornn.files import replacing

_COLOURS = ("#000000", "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7")
Panel = Mapping[str, Sequence[Mapping[str, Any]]]


def draw_curves(panels: Mapping[str, Panel], name: str, figure: Path) -> None:
    """A panel for each title, a line for each label: the median over its runs, the range between them shaded.

    A run that has ended keeps its last value.
    """
    # A figure of its own, without pyplot: nothing global, and no display needed.
    canvas = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    for axes, (title, lines) in zip(
        canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        for colour, (label, records) in zip(_COLOURS, lines.items(), strict=False):
            longest = max((record["update"] for record in records), key=len)
            runs = [[*record[name], *[record[name][-1]] * (len(longest) - len(record[name]))] for record in records]
            at_each = list(zip(*runs, strict=True))
            axes.plot(longest, [statistics.median(values) for values in at_each], color=colour, lw=1.4, label=label)
            axes.fill_between(
                longest, [min(v) for v in at_each], [max(v) for v in at_each], color=colour, alpha=0.12, lw=0
            )
        axes.set(title=title, xlabel="update")
        axes.set_xlim(left=0)
    canvas.axes[0].set_ylabel(name)
    canvas.axes[-1].legend(frameon=False)
    with replacing(figure) as new:
        canvas.savefig(new, dpi=110)
