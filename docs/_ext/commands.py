"""The reference of the command line, written from the app's own help before the pages are read.

typer brings its own copy of click, which sphinx-click does not know; `typer utils docs` prints Markdown.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

COMMAND = ["-m", "typer", "isornn.cli.app", "utils", "docs", "--name", "isornn"]


def _write(app: Sphinx) -> None:
    plain = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run([sys.executable, *COMMAND], capture_output=True, text=True, check=True, env=plain)
    _, heading, text = done.stdout.partition("## `isornn ")  # before the first command is what the page says itself
    file = Path(app.srcdir) / "_build" / "commands.md"
    file.parent.mkdir(exist_ok=True)
    file.write_text(heading + html.unescape(text), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
