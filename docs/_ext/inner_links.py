"""After the build: every link within the site leads to a page and a place on it; nothing is loaded from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
logger = logging.getLogger(__name__)


class _Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.anchors.add(value)
            elif (tag, name) == ("a", "href"):
                self.links.add(value)
            elif (tag, name) in LOADED:
                self.loaded.add(value)


def _checked(app: Sphinx, failure: Exception | None) -> None:
    if failure is not None or app.builder.format != "html":
        return
    pages = {file: _Page(file) for file in Path(app.outdir).resolve().rglob("*.html")}
    for file, page in pages.items():
        for url in sorted(page.loaded):
            if urlsplit(url).scheme in ("http", "https") or url.startswith("//"):
                logger.warning("%s loads %s, which takes the network", file, url)
        for url in sorted(page.links):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchor = unquote(parts.fragment)
            if not target.exists():
                logger.warning("%s links to %s, which does not exist", file, url)
            elif anchor and target in pages and anchor not in pages[target].anchors:
                logger.warning("%s links to %s, which has no such anchor", file, url)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", _checked)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
