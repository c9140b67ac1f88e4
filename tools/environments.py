"""Fresh virtual environments in which the library is tried as it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SMOKE = REPOSITORY / "tools" / "smoke.py"


def run(*words: str | Path, at: Path = REPOSITORY, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command, whose errors are ours: they end with what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=at,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}")
    return done.stdout


def made(folder: Path, *installed: str, python: str = sys.executable, constraints: Path | None = None) -> Path:
    """The Python of a new environment with what pip is given; ``PIP_ARGS`` of the environment comes along."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    constrained = [] if constraints is None else ["-c", str(constraints)]
    install = [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*install, *os.environ.get("PIP_ARGS", "").split(), *constrained, *installed)
    return own


def smoke(python: Path, folder: Path, what: str) -> str:
    """What tools/smoke.py prints in an empty folder. The repository's own sources are out of sight."""
    folder.mkdir()
    return run(python, SMOKE, what, at=folder, environment={"PYTHONPATH": ""})
