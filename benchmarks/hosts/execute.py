"""Execute the ```python blocks of a page, in order, in one namespace.

    python -P execute.py PAGE DISTRIBUTION ANSWER

The page's last block leaves ``found``: of the host's model classes, by name, the recurrent layers that isornn finds in
them. Their number and the versions of DISTRIBUTION and torch are written to the file ANSWER as JSON. ``__main__.py``
calls this with the python of the host's environment; -P keeps the scripts beside this one out of its path.
"""

from __future__ import annotations

import json
import linecache
import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    page, distribution, answer = sys.argv[1:]
    # Models that hosts save by pickle find the page's classes in the module of that name.
    module = sys.modules["__main__"] = ModuleType("__main__")
    execute(Path(page), module)
    found = {name: len(layers) for name, layers in module.found.items()}
    assert found and all(found.values()), f"no recurrent layers in {[name for name in found if not found[name]]}"
    print(f"{len(found)} model classes: {', '.join(found)}")
    versions = {"host": version(distribution), "torch": version("torch")}
    Path(answer).write_text(json.dumps({**versions, "classes": len(found)}))


def execute(page: Path, module: ModuleType) -> None:
    """Run the page's blocks in ``module``; tracebacks have the page's lines."""
    text = page.read_text()
    linecache.getlines(str(page))
    for block in BLOCK.finditer(text):
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], str(page), "exec"), vars(module))


if __name__ == "__main__":
    main()
