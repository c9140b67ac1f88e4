"""A report as one page of HTML that opens without a network."""

from __future__ import annotations

import base64
import gzip
import importlib.resources
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from isornn.diagnosis import Diagnosis, Finding
from isornn.files import replacing
from isornn.present.plotly import as_json
from isornn.records import versions
from isornn.reports import summary
from isornn.reports.findings import grouped, headline, layer_of, spoken
from isornn.reports.layer import WEIGHT_COLUMNS, facts, panels, weight_rows
from isornn.reports.overview import overview, overview_caption
from isornn.reports.panel import ReportPanel


def write(file: Path, text: str) -> None:
    """Write a page, atomically.

    Raises:
        OSError: the folder is missing or cannot be written to.
    """
    with replacing(file) as new:
        new.write_text(text, encoding="utf-8")


def page(diagnosis: Diagnosis, findings: Sequence[Finding], notes: Sequence[str]) -> str:
    """The page's HTML. Names that the user gave are escaped; plotly.js, style and figures are within."""
    overall = ReportPanel("All layers", overview(diagnosis), overview_caption(diagnosis.layers))
    shown, sections = [overall] if len(diagnosis.layers) > 1 else [], []
    for layer in diagnosis.layers:
        own = panels(layer)
        numbered = list(enumerate(own, len(shown)))
        sections.append({"layer": layer, "panels": numbered, "facts": facts(layer), "weights": weight_rows(layer)})
        shown += own
    return rendered(
        "report.html",
        shown,
        diagnosis=diagnosis,
        findings=grouped(findings),
        notes=notes,
        headline=headline(findings),
        columns=summary.COLUMNS,
        rows=summary.rows(diagnosis),
        meaning=summary.meaning(diagnosis),
        overall=overall,
        sections=sections,
        weight_columns=WEIGHT_COLUMNS,
    )


def rendered(template: str, shown: Sequence[ReportPanel], **values: Any) -> str:
    """A template with its figures, ``shown`` by their numbers, and what every page needs."""
    figures = [None if panel.figure is None else as_json(panel.figure) for panel in shown]
    environment = Environment(
        loader=PackageLoader("isornn.reports", "assets"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        spoken=spoken,
        layer_of=layer_of,
        versions=versions(),
        style=Markup(_asset("report.css")),
        script=Markup(_asset("report.js")),
        plotly=Markup(packed(get_plotlyjs())),
        figures=Markup(packed(json.dumps(_shared(figures), allow_nan=False, separators=(",", ":")))),
        **values,
    )


def packed(text: str) -> str:
    """Text compressed by gzip, in base 85 without "<": report.js unpacks it. 4.8 MB of plotly.js become 1.8 MB."""
    return base64.b85encode(gzip.compress(text.encode(), 9, mtime=0)).decode().replace("<", "'")


def _shared(figures: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Figures whose curves name their x and y by place among ``arrays``: the overview draws what each layer's do.

    >>> curve = {"x": [1.0, 2.0], "y": [0.123456, 1.0]}
    >>> shared = _shared([{"data": [curve, {**curve, "y": [1.0, 2.0]}], "layout": {}}, None])
    >>> shared["arrays"], shared["figures"]
    ([[1.0, 2.0], [0.1235, 1.0]], [{'data': [{'x': 0, 'y': 1}, {'x': 0, 'y': 0}], 'layout': {}}, None])
    """
    places: dict[str, int] = {}
    arrays: list[Any] = []

    def place(array: Any) -> int:
        number = places.setdefault(json.dumps(array), len(arrays))
        arrays.extend([array] if number == len(arrays) else [])
        return number

    def named(curve: dict[str, Any]) -> dict[str, Any]:
        return {name: place(value) if name in ("x", "y") else value for name, value in _rounded(curve).items()}

    short = [figure and {**figure, "data": [named(curve) for curve in figure["data"]]} for figure in figures]
    return {"figures": short, "arrays": arrays}


def _rounded(value: Any) -> Any:
    """What a figure's JSON has, arrays that plotly writes in base 64 as lists. Numbers have 4 digits, more than can be
    seen; whole ones stay as they are.

    >>> figure = {"x": [1, 12345.0], "y": [0.123456, math.nan], "z": {"dtype": "i1", "bdata": "BwgJ", "shape": "1, 3"}}
    >>> _rounded(figure)
    {'x': [1, 12345.0], 'y': [0.1235, None], 'z': [[7, 8, 9]]}
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if value.is_integer() else float(f"{value:.4g}")
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "bdata" not in value:
        return {name: _rounded(one) for name, one in value.items()}
    numbers = np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
    shape = [int(size) for size in value.get("shape", "-1").split(",")]
    return _rounded(numbers.reshape(shape).tolist())


def _asset(name: str) -> str:
    return importlib.resources.files("isornn.reports").joinpath("assets", name).read_text(encoding="utf-8")
