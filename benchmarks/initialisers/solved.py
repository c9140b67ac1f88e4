"""What theory solves for the protocol, kept beside the records: minutes of work that only other code would change."""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
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


_SAME = 1e-5  # relative: what a change of sources that leaves the theory as it was may move by rounding


class Solved:
    """Answers by key. Those of other sources or libraries are solved again, and stay where they come out the same to
    rounding: runs are known by the digits that they were started with.

    Args:
        file: of the answers, and of former ones that are not solved again yet, written whole after each new one; JSON
            holds them.
        of: what all answers depend on, as text.
    """

    def __init__(self, file: Path, of: str) -> None:
        self._file, self._of = file, of
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        answers, former = known.get("answers", {}), known.get("former", {})
        self._answers: dict[str, Any] = answers if known.get("of") == of else {}
        self._former: dict[str, Any] = former if known.get("of") == of else former | answers

    def get(self, key: str, solve: Callable[[], Any]) -> Any:
        """The answer that is kept, or that of ``solve``, which is kept from now on."""
        if key not in self._answers:
            answer, former = solve(), self._former.get(key)
            self._answers[key] = former if _same(former, answer) else answer
            self._save()
        return self._answers[key]

    def _save(self) -> None:
        left = {key: answer for key, answer in self._former.items() if key not in self._answers}
        with replacing(self._file) as new:
            new.write_text(
                f'{{"of": {json.dumps(self._of)}, "answers": {_by_line(self._answers)}, "former": {_by_line(left)}}}\n',
                encoding="utf-8",
            )


def _by_line(answers: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted(answers.items())]
    return "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"


def _same(one: Any, other: Any) -> bool:
    """Whether two answers differ by rounding alone.

    >>> _same({"gates": [1.0, None]}, {"gates": [1.000001, None]}), _same({"gates": [1.0]}, {"gates": [1.1]})
    (True, False)
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SAME)
    return bool(one == other)


def _sources() -> Iterator[Path]:
    package = Path(isornn.__file__).parent
    for folder in _SOURCES:
        yield from sorted((package / folder).rglob("*.py"))
    yield from (_HERE / "protocol.py", _HERE / "predict.py")


def _digest() -> str:
    """Of what the cells, the theory and the protocol compute, and of the libraries that they compute with."""
    found = hashlib.sha256(" ".join(_VERSIONS).encode())
    for file in _sources():
        found.update(_code(file.read_text(encoding="utf-8")).encode())
    return found.hexdigest()


def _code(source: str) -> str:
    """Without comments and docstrings.

    >>> _code('def f():\\n    "One."\\n    return 1  # one') == _code('def f():\\n    return 1')
    True
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


SOLVED = Solved(_FILE, _digest())
