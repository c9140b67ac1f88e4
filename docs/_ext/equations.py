"""Rows of "Where each equation of the papers is computed" can be linked to, and found by the search.

In the page theory_map, the first cell of a row says the equation, as in "Gilboa eq. 12". It becomes an entry of the
index and the target theory_map.md#gilboa-eq-12.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

PAGE, SECTION = "theory_map", "where-each-equation-of-the-papers-is-computed"


def _entered(app: Sphinx, tree: nodes.document) -> None:
    if app.env.docname != PAGE:
        return
    (section,) = (one for one in tree.findall(nodes.section) if SECTION in one["ids"])
    for body in section.findall(nodes.tbody):
        for row in body.findall(nodes.row):
            cell = row[0]
            name = cell.astext()
            anchor = nodes.make_id(name)
            entries = [("single", name, anchor, "", None)]
            cell.insert(0, addnodes.index(entries=entries))
            row["ids"].append(anchor)
            app.env.metadata[PAGE]["myst_slugs"][anchor] = (cell.line or 0, anchor, name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _entered)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
