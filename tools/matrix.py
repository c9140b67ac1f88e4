"""The oldest versions that pyproject.toml allows, and the newest there are, on the Pythons of this machine.

    make matrix                                            # PYTHONS="python3.11 python3.13" for some
    make matrix PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

The oldest Python gets every package at its lower bound, all of them the newest releases. In each environment each
command runs once (tools/smoke.py), then the tests of layers, starts, integrations and the theory's engines.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from environments import REPOSITORY, made, run, smoke

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
TESTS = ("tests/init", "tests/integrations", "tests/nn/test_layers.py", "tests/theory/test_dynamics.py")
SHOWN = ("torch", "numpy", "scipy", "numba", "matplotlib", "typer", "rich", "plotly", "dash", "ray", "lightning")


@dataclass(frozen=True)
class Row:
    """One environment: its Python, and the file of versions that pip is held to."""

    python: str
    bounds: Path | None

    def __str__(self) -> str:
        return f"{Path(self.python).name}, {'newest' if self.bounds is None else 'oldest'}"


def lower_bounds(file: Path) -> Path:
    """A file of constraints with every ``name>=version`` of pyproject.toml as ``name==version``."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = chain(project["dependencies"], *project["optional-dependencies"].values())
    found = {re.fullmatch(r"([\w-]+)>=([\d.]+)", one) for one in wanted}
    file.write_text("".join(f"{one[1]}=={one[2]}\n" for one in found if one is not None))
    return file


def tried(row: Row, folder: Path) -> str:
    """The versions that pip found, and how many tests passed with them."""
    begun = time.perf_counter()
    packages = (f"{REPOSITORY}[all]", "pytest", "hypothesis")
    python = made(folder / "env", *packages, python=row.python, constraints=row.bounds)
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json"))
    versions = {one["name"].lower(): one["version"] for one in listed}
    smoke(python, folder / "at", "all")
    settings = ("addopts=--import-mode=importlib", "pythonpath=tests", "filterwarnings=")
    options = ["-q", "-p", "no:cacheprovider", *chain.from_iterable(("-o", one) for one in settings)]
    passed = run(python, "-m", "pytest", *options, *TESTS, environment={"PYTHONPATH": ""}).splitlines()[-1]
    seconds = time.perf_counter() - begun
    return f"{row}: {', '.join(f'{name} {versions[name]}' for name in SHOWN)}\n    {passed}; {seconds:.0f} s in all"


def main() -> None:
    pythons = [found for name in os.environ.get("PYTHONS", "").split() or PYTHONS if (found := shutil.which(name))]
    if not pythons:
        sys.exit(f"PYTHONS: none of {', '.join(PYTHONS)} is on the path")
    with tempfile.TemporaryDirectory() as temporary:
        rows = [Row(pythons[0], lower_bounds(Path(temporary) / "oldest.txt")), *(Row(one, None) for one in pythons)]
        for number, row in enumerate(rows):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            print(tried(row, folder), flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
