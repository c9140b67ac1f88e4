"""Papers that pages and docstrings name by authors and year become links."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ARXIV = "https://arxiv.org/abs/"
PAPERS = {
    "Arjovsky et al. 2016": ARXIV + "1511.06464",
    "Arpit et al. 2018": ARXIV + "1810.03023",
    "Balduzzi & Ghifary 2016": ARXIV + "1602.02218",
    "Beck et al. 2024": ARXIV + "2405.04517",
    "Chen et al. 2018": ARXIV + "1806.05394",
    "Chen, Pennington & Schoenholz 2018": ARXIV + "1806.05394",
    "Chen, Pennington, Schoenholz 2018": ARXIV + "1806.05394",
    "Chernodub & Nowicki 2016": ARXIV + "1604.02313",
    "Cho et al. 2014": ARXIV + "1406.1078",
    "De et al. 2024": ARXIV + "2402.19427",
    "Feng, Tung, Ahmed, Bengio & Hajimirsadeghi 2024": ARXIV + "2410.01201",
    "Gilboa et al. 2019": ARXIV + "1901.08987",
    "Glorot & Bengio 2010": "https://proceedings.mlr.press/v9/glorot10a.html",
    "Greff et al. 2015": ARXIV + "1503.04069",
    "Gu et al. 2020": ARXIV + "1910.09890",
    "Gu, Gulcehre, Paine, Hoffman & Pascanu 2020": ARXIV + "1910.09890",
    "He et al. 2015": ARXIV + "1502.01852",
    "Hochreiter & Schmidhuber 1997": "https://doi.org/10.1162/neco.1997.9.8.1735",
    "Jozefowicz et al. 2015": "https://proceedings.mlr.press/v37/jozefowicz15.html",
    "Karpathy et al. 2015": ARXIV + "1506.02078",
    "Le et al. 2015": ARXIV + "1504.00941",
    "Lei, Zhang, Wang, Dai & Artzi 2018": ARXIV + "1709.02755",
    "Li et al. 2018": ARXIV + "1803.04831",
    "Li, Li, Cook, Zhu & Gao 2018": ARXIV + "1803.04831",
    "Mezzadri 2007": ARXIV + "math-ph/0609050",
    "Mikolov et al. 2015": ARXIV + "1412.7753",
    "Orvieto et al. 2023": ARXIV + "2303.06349",
    "Pennington, Schoenholz & Ganguli 2017": ARXIV + "1711.04735",
    "Saxe et al. 2014": ARXIV + "1312.6120",
    "Tallec & Ollivier 2018": ARXIV + "1804.11188",
    "Trinh et al. 2018": ARXIV + "1803.00144",
    "Vogt et al. 2022": ARXIV + "2006.14123",
    "Vorontsov et al. 2017": ARXIV + "1702.00071",
    "Vorontsov, Trabelsi, Kadoury & Pal 2017": ARXIV + "1702.00071",
    "Yang 2019": ARXIV + "1910.12478",
    "Zhou et al. 2016": ARXIV + "1603.09420",
}
LEFT_ALONE = (nodes.title, nodes.reference, nodes.literal, nodes.FixedTextElement, addnodes.pending_xref)
_NAMED = re.compile("|".join(rf"\b{re.escape(name)}".replace(r"\ ", r"\s+") for name in sorted(PAPERS, key=len)[::-1]))


def _linked(app: Sphinx, tree: nodes.document) -> None:
    for parent in list(tree.findall(nodes.TextElement)):
        _join(parent)
    for text in list(tree.findall(nodes.Text)):
        if not _NAMED.search(text) or any(isinstance(above, LEFT_ALONE) for above in _ancestors(text)):
            continue
        parts: list[nodes.Node] = []
        end = 0
        for found in _NAMED.finditer(text):
            target = PAPERS[" ".join(found.group().split())]
            parts += [nodes.Text(text[end : found.start()]), nodes.reference("", found.group(), refuri=target)]
            end = found.end()
        text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def _join(parent: nodes.TextElement) -> None:
    """Text that Markdown has in pieces, one for each line, in one piece."""
    joined: list[nodes.Node] = []
    for child in parent.children:
        if isinstance(child, nodes.Text) and joined and isinstance(joined[-1], nodes.Text):
            joined[-1] = nodes.Text(joined[-1] + child)
        else:
            joined.append(child)
    parent.children = []
    parent.extend(joined)


def _ancestors(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while node.parent is not None:
        node = node.parent
        found.append(node)
    return found


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", _linked)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
