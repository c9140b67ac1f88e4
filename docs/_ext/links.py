"""Names that pages and docstrings write as code become links to their page.

In pages: `isornn.analyze(spec)`, `torch.nn.LSTM`. In docstrings: `critical_`, without the module; where several modules
have the name, that of the nearest counts.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

_NAME = re.compile(r"((?:isornn|torch|numpy)(?:\.\w+)+)(\(.*\))?$", re.DOTALL)


def _marked(app: Sphinx, tree: nodes.document) -> None:
    """Code that is a dotted name asks for the page of that name."""
    for code in list(tree.findall(nodes.literal)):
        found = _NAME.match(code.astext())
        if found is None or isinstance(code.parent, (nodes.reference, addnodes.pending_xref, nodes.title)):
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=found[1], refdoc=app.env.docname, refwarn=False
        )
        code.replace_self(link)
        link.append(code)


def _plainly(app: Sphinx, tree: nodes.document) -> None:
    """`length: the steps` in lists of arguments, where Sphinx has two hyphens."""
    for text in list(tree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(": "))


def _nearest(app: Sphinx, env: Any, node: addnodes.pending_xref, content: nodes.Element) -> nodes.Element | None:
    """The page of a name that a docstring writes without its module."""
    if node.get("refdomain") != "py" or not re.fullmatch(r"[A-Za-z]\w*(\.\w+)?", node["reftarget"]):
        return None
    domain = env.domains["py"]
    found = [
        name
        for name, entry in domain.objects.items()
        if name.endswith("." + node["reftarget"]) and entry.objtype != "module"
    ]
    if not found:
        return None
    here = (node.get("py:module") or "isornn").split(".")

    def nearness(name: str) -> tuple[int, bool, str]:
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(name.split("."), here, strict=False))
        return len(list(shared)), not domain.objects[name].aliased, name

    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", max(found, key=nearness), node, content)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _marked)
    app.connect("doctree-read", _plainly)
    app.connect("missing-reference", _nearest, priority=600)  # after intersphinx, which knows `ValueError`
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
