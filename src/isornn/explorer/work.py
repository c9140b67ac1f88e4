"""The page's computations, each a pure function of plain values, so that it can run in a separate process. Specs are
passed as the text of a spec file."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from isornn.cells import Spec, SpecError
from isornn.cells.starts import start
from isornn.explorer.cobweb import cobweb_of, cobweb_panel
from isornn.explorer.time_scales import time_scales_panel, units_of
from isornn.explorer.words import against, readings
from isornn.figures import Curve, Mark, Panel
from isornn.present.analysis import response_panel
from isornn.present.plotly import as_json, figure_of
from isornn.present.spectrum import spectrum_panel
from isornn.simulation import simulate
from isornn.theory import TheoryMissing, analyze, critical, isometric, spectrum
from isornn.theory.spectra import NotSolved

_NETWORKS, _WIDTH, _SETTLING = 4, 192, 40
LONGEST = 10_000  # steps that a response is followed for
Answer = dict[str, Any]


def to_text(spec: Spec) -> str:
    """The spec as one line of JSON."""
    return json.dumps(spec.to_json())


def from_text(text: str) -> Spec:
    """The spec in a line of JSON.

    Raises:
        SpecError, OptionError: as `Spec.from_json`; the text is not JSON.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError("spec", text, f"it must be JSON ({error})") from None
    return Spec.from_json(data)


def numbers(text: str, length: int) -> Answer:
    """The results of `analyze` as text, and the two figures that are derived from it.

    ``moments`` is (E[h^2], C*, its standard error) for what is computed next, ``None`` where they do not exist.
    """
    analysis = analyze(from_text(text), length=min(length, LONGEST))
    units = units_of(analysis)
    point = analysis.fixed_point
    second, correlation = point.second_moment.number(), point.correlation.number()
    return {
        "readings": [asdict(reading) for reading in readings(analysis)],
        "against": against(analysis.reach, length),
        "engine": analysis.engine,
        "moments": None if second is None or correlation is None else [second, correlation, point.correlation.error()],
        "why": point.correlation.reason() or "",
        "fading": _drawn(response_panel(analysis, length)),
        "time_scales": _drawn(time_scales_panel(units, length)),
    }


def cobweb(text: str, second_moment: float, correlation: float, error: float) -> Answer:
    """The correlation map."""
    return _drawn(cobweb_panel(cobweb_of(from_text(text), second_moment, (correlation, error))))


def jacobian_spectrum(text: str) -> Answer:
    """The Jacobian's spectrum, or why there is none."""
    try:
        found = spectrum(from_text(text))
    except (TheoryMissing, NotSolved) as reason:
        return nothing(str(reason))
    return _drawn(spectrum_panel(found))


def simulated_spectrum(text: str, second_moment: float) -> Answer:
    """The singular values of one step of simulated networks, which are there sooner than the Jacobian's spectrum.

    Args:
        second_moment: at which the states start, so that they are soon stationary.
    """
    generator = torch.Generator().manual_seed(0)
    found = simulate(
        from_text(text),
        width=_WIDTH,
        steps=_SETTLING,
        networks=_NETWORKS,
        initial_variance=second_moment,
        tangents=1,
        singular_values=True,
        generator=generator,
    ).spectrum
    assert found is not None
    density, edges = np.histogram(found.singular_values.flatten().numpy(), bins=60, density=True)
    curve = Curve(edges.tolist(), [float(density[0]), *density.tolist()], style="steps", filled=True)
    caption = f"{_NETWORKS} simulated networks of {_WIDTH} units. The density for infinitely many is being computed."
    return _drawn(Panel("", "singular value s", "density", [curve], marks=[Mark("x", 1.0)], caption=caption))


def starting_point(name: str, text: str, hidden: int, inputs: int, length: int) -> Answer:
    """The spec of a named start, `critical` and `isometric` among them, for the cell and the input of a spec.

    ``python`` is the line that applies it, where there is one; ``unmet`` are the conditions that do not hold.

    Raises:
        SpecError: as `start` and `critical`.
    """
    kind, law = from_text(text).cell, from_text(text).input
    if name in ("critical", "isometric"):
        point = (critical if name == "critical" else isometric)(kind, length, input=law)
        unmet = [f"{c.name}: {c.wanted} wanted, {c.found} found" for c in point.conditions if not c.met]
        return {"spec": to_text(point.spec), "python": point.python, "unmet": unmet}
    return {"spec": to_text(start(name, kind, hidden, inputs, length, law)), "python": None, "unmet": []}


def nothing(reason: str) -> Answer:
    """An empty figure with the reason."""
    return _drawn(Panel("", "", "", caption=f"None: {reason}." if reason else ""))


def _drawn(panel: Panel) -> Answer:
    return {"figure": as_json(figure_of(panel)), "caption": panel.caption}
