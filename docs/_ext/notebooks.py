"""Below the title of each tutorial, a link to it as an executed Jupyter notebook."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


def _offered(app: Sphinx, tree: nodes.document) -> None:
    page = app.env.docname
    file = Path(app.env.mystnb_config.output_folder) / f"{page}.ipynb"
    if not page.startswith("tutorials/") or not file.exists():
        return
    link = addnodes.download_reference(
        "", "as a Jupyter notebook", reftarget="/" + os.path.relpath(file, app.srcdir), refdoc=page
    )
    paragraph = nodes.paragraph("", "", nodes.Text("Download this page "), link, nodes.Text("."))
    next(tree.findall(nodes.section)).insert(1, paragraph)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _offered, priority=400)  # before Sphinx collects what can be downloaded
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
