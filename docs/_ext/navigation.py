"""The sidebar goes down to the reference's pages; the names on those are listed there, not on every page."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

LEVELS = 2


def _shortened(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    if "toctree" in context:
        whole = context["toctree"]
        context["toctree"] = lambda **options: whole(**{**options, "maxdepth": LEVELS})


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", _shortened, priority=400)  # before furo's
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
