"""What theory solves for the protocol, kept beside the records: minutes of work that only other code would change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch

import isornn
from isornn.files import replacing

_HERE = Path(__file__).parent
_FILE = _HERE.parent / "results" / "initialisers-solved.json"
_SOURCES = ("cells", "theory")
_VERSIONS = (torch.__version__, numpy.__version__, scipy.__version__)


class Solved:
    """Answers by key. Those of other sources or libraries are as unknown as ones that never were.

    Args:
        file: of the answers, written whole after each new one; JSON holds them.
        of: what all answers depend on, as text.
    """

    def __init__(self, file: Path, of: str) -> None:
        self._file, self._of = file, of
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._answers: dict[str, Any] = known["answers"] if known.get("of") == of else {}

    def get(self, key: str, solve: Callable[[], Any]) -> Any:
        """The answer that is kept, or that of ``solve``, which is kept from now on."""
        if key not in self._answers:
            self._answers[key] = solve()
            self._save()
        return self._answers[key]

    def _save(self) -> None:
        lines = (f"{json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted(self._answers.items()))
        with replacing(self._file) as new:
            new.write_text(
                f'{{"of": {json.dumps(self._of)}, "answers": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8"
            )


def _sources() -> Iterator[Path]:
    package = Path(isornn.__file__).parent
    for folder in _SOURCES:
        yield from sorted((package / folder).rglob("*.py"))
    yield from (_HERE / "protocol.py", _HERE / "predict.py")


def _digest() -> str:
    """Of the cells, the theory and the protocol, and of the libraries that compute."""
    found = hashlib.sha256(" ".join(_VERSIONS).encode())
    for file in _sources():
        found.update(file.read_bytes())
    return found.hexdigest()


SOLVED = Solved(_FILE, _digest())
