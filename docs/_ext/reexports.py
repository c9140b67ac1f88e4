"""A name that packages export twice, such as isornn.analyze and isornn.theory.analyze, has one page: links from both.

sphinx.ext.viewcode takes a module's names to be documented under one package. Where they are not, its links from the
source back to the pages lead nowhere, so there are none; those from the pages to the source stay.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry

PACKAGES = (
    "isornn",
    "isornn.cells",
    "isornn.diagnosis",
    "isornn.init",
    "isornn.lookback",
    "isornn.nn",
    "isornn.optim",
    "isornn.present",
    "isornn.reports",
    "isornn.simulation",
    "isornn.tasks",
    "isornn.theory",
    "isornn.theory.spectra",
    "isornn.training",
)


def _aliased(app: Sphinx, env: Any) -> None:
    objects = env.domains["py"].objects
    documented = {id(_found(name)): entry for name, entry in objects.items() if entry.objtype in ("class", "function")}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            entry = documented.get(id(getattr(module, name)))
            if entry is not None:
                objects.setdefault(f"{package}.{name}", ObjectEntry(entry.docname, entry.node_id, entry.objtype, True))


def _without_links_back(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    if page.startswith("_modules/"):
        context["body"] = re.sub(r'<a class="viewcode-back".*?</a>', "", context["body"])


def _found(name: str) -> Any:
    """The object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        return object()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("env-check-consistency", _aliased)
    app.connect("html-page-context", _without_links_back)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
