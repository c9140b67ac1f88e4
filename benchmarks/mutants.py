"""Single changes of an operator in the source, each tried against its own tests: how many are noticed.

    python benchmarks/mutants.py [--mutants 100] [--seed 0] [--under theory] [--minutes 5] [-o mutants.jsonl]

A mutant has one operator replaced (+ and -, * and /, < and <=, > and >=, == and !=, and and or, a minus sign dropped)
in a file drawn with the chance of its number of operators. Its own tests are the doctests of the file, the test files
that import its module or are named after it, and else those of the nearest folder of tests. They run in a copy of the
repository; a mutant that no test notices survives and is printed, to be looked at: some change nothing. With ``-o`` an
interrupted call goes on where it was. Bar: 95 of 100 are noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWAPS = {"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWAPS |= {"and": "or", "or": "and"}
BAR = 0.95


@dataclass(frozen=True)
class Mutant:
    """The operator ``before`` at a line and column (of bytes, from 0) of a file, replaced by ``after``."""

    file: str
    line: int
    column: int
    before: str
    after: str

    def applied(self, folder: Path) -> None:
        lines = (folder / self.file).read_bytes().split(b"\n")
        text, start = lines[self.line - 1], self.column
        lines[self.line - 1] = text[:start] + self.after.encode() + text[start + len(self.before.encode()) :]
        (folder / self.file).write_bytes(b"\n".join(lines))


def mutants(file: Path) -> Iterator[Mutant]:
    """All of a file, in the order of its text."""
    source = file.read_bytes()
    lines, name = source.split(b"\n"), str(file.relative_to(ROOT))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield Mutant(name, node.lineno, node.col_offset, "-", "")
        sides: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            sides = node.values
        for left, right in pairwise(sides):
            line, start = left.end_lineno or left.lineno, left.end_col_offset or 0
            end = right.col_offset if right.lineno == line else len(lines[line - 1])
            between = lines[line - 1][start:end].decode()
            operator = between.strip(" ()\\")
            if operator in SWAPS:
                yield Mutant(name, line, start + between.index(operator), operator, SWAPS[operator])


def own_tests(file: str) -> list[str]:
    """The file itself, for its doctests, and test files by import, by name, or by folder."""
    path = Path(file).relative_to("src")
    module = ".".join(path.with_suffix("").parts)
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [test for test in tests if f"{module} import" in test.read_text() or test.stem == f"test_{path.stem}"]
    folder = ROOT / "tests" / path.parent.relative_to("isornn")
    while not found:
        found, folder = sorted(folder.glob("test_*.py")), folder.parent
    return [file, *(str(test.relative_to(ROOT)) for test in found)]


def fails(file: str, mutant: Mutant | None, minutes: float) -> bool:
    """Whether a test of the file's own fails in a copy of the repository with the mutant, or none ends in time."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "isornn"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "results", "__pycache__"), symlinks=True)
        if mutant is not None:
            mutant.applied(copy)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *own_tests(file)]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "NUMBA_CACHE_DIR": str(Path(name) / "cache")}
        try:
            ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            return True
        return ended.returncode != 0


@cache
def check_unchanged(file: str, minutes: float) -> None:
    """Tests that fail, or take too long, without a mutant would notice anything."""
    if fails(file, None, minutes):
        sys.exit(f"{file}: its own tests do not pass in {minutes:g} minutes without a mutant")


def noticed(mutant: Mutant, minutes: float) -> bool:
    check_unchanged(mutant.file, minutes)
    return fails(mutant.file, mutant, minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="", help="a folder of src/isornn")
    parser.add_argument("--minutes", type=float, default=5.0, help="at most, of the tests of each")
    parser.add_argument("-o", "--out", type=Path, help="results so far, a line each")
    arguments = parser.parse_args()
    files = sorted((ROOT / "src" / "isornn" / arguments.under).rglob("*.py"))
    population = [mutant for file in files if "experiments" not in file.parts for mutant in mutants(file)]
    drawn = random.Random(arguments.seed).sample(population, min(arguments.mutants, len(population)))
    known = {}
    if arguments.out is not None and arguments.out.exists():
        for line in arguments.out.read_text().splitlines():
            entry = json.loads(line)
            known[Mutant(**entry["mutant"])] = entry["noticed"]
    print(f"seed {arguments.seed}: {len(drawn)} of {len(population)} mutants")
    caught = 0
    for mutant in drawn:
        if mutant not in known:
            known[mutant] = noticed(mutant, arguments.minutes)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps({"mutant": asdict(mutant), "noticed": known[mutant]}) + "\n")
        caught += known[mutant]
        if not known[mutant]:
            where = f"{mutant.file}:{mutant.line}:{mutant.column + 1}"
            print(f"survived: {where}: {mutant.before!r} -> {mutant.after!r}", flush=True)
    print(f"{caught} of {len(drawn)} noticed")
    sys.exit(0 if caught >= BAR * len(drawn) else "the bar is NOT met")


if __name__ == "__main__":
    main()
