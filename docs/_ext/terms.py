"""Rows of two pages can be linked to, and are found first by the search and the index.

In theory_map, "Gilboa eq. 12" in a row's first cell becomes the target theory_map.md#gilboa-eq-12; "Gilboa eqs. 16 to
19" is also found as each of them. In the glossary each term becomes a target, as glossary.md#reach.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_SEVERAL = re.compile(r"(.+) eqs\. (\d+)(, | to )(\d+)")


def equations(cell: str) -> list[str]:
    """What a row of the map is found as: its own words first."""
    found = _SEVERAL.fullmatch(cell)
    if found is None:
        return [cell]
    paper, first, between, last = found.groups()
    numbers = range(int(first), int(last) + 1) if between == " to " else (int(first), int(last))
    return [cell, *(f"{paper} eq. {number}" for number in numbers)]


def terms(cell: str) -> list[str]:
    """What a row of the glossary is found as; symbols that no address can hold are left out."""
    return [name for name in cell.replace('"', "").split(", ") if nodes.make_id(name)]


PAGES = {
    "theory_map": ("where-each-equation-of-the-papers-is-computed", equations),
    "glossary": ("glossary", terms),
}


def _entered(app: Sphinx, tree: nodes.document) -> None:
    page = app.env.docname
    if page not in PAGES:
        return
    known = app.env.metadata[page]["myst_slugs"]
    where, names_of = PAGES[page]
    (section,) = (one for one in tree.findall(nodes.section) if where in one["ids"])
    for body in section.findall(nodes.tbody):
        for row in body.findall(nodes.row):
            cell = row[0]
            names = names_of(cell.astext())
            fresh = {nodes.make_id(name): name for name in names if nodes.make_id(name) not in known}
            for anchor, name in fresh.items():
                known[anchor] = (0, anchor, name)
                row["ids"].append(anchor)
                cell.insert(0, addnodes.index(entries=[("single", name, anchor, "main", None)]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _entered)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
