"""Single changes of an operator in the source, each tried against its own tests: how many are noticed.

    python benchmarks/mutants.py [--mutants 100] [--seed 0] [--under theory] [--minutes 2] [-o mutants.jsonl]

A mutant has one operator replaced (+ and -, * and /, < and <=, > and >=, == and !=, and and or, a minus sign dropped)
in a file drawn with the chance of its number of operators. Its own tests are the doctests of the file, the test files
that import its module or are named after it, and those of the nearest folder of tests, in this order, of each the
smallest file first, until one fails or the minutes of processor time are spent. Where none fails, the other tests of
its package have as many minutes. They run in a copy of the repository.
A test that fails has noticed the mutant if it passes without it, which is tried for all of them at the end. A mutant
that no test notices survives and is printed, to be looked at: some change nothing. One whose tests do not end is
printed too and not counted as noticed. With ``-o`` an interrupted call goes on where it was, and those that did not
end are tried again if they may take longer. Bar: 95 of 100 are noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SWAPS = {"+": "-", "-": "+", "*": "/", "/": "*", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
SWAPS |= {"and": "or", "or": "and"}
BAR = 0.95
MEMORY = 8 << 30


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


def own_tests(file: str) -> tuple[list[str], list[str]]:
    """The file itself, for its doctests, test files by import or by name, and by folder; the others of its package. Of
    each the smallest first."""
    path = Path(file).relative_to("src")
    module = ".".join(path.with_suffix("").parts)
    tests = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda test: test.stat().st_size)
    found = [test for test in tests if f"{module} import" in test.read_text() or test.stem == f"test_{path.stem}"]
    folder = ROOT / "tests" / path.parent.relative_to("isornn")
    while not any(test.parent == folder for test in tests):
        folder = folder.parent
    beside = [test for test in tests if test.parent == folder and test not in found]
    package = ROOT / "tests" / path.parts[1]
    further = [test for test in tests if package in test.parents and test not in (*found, *beside)]
    examples = [file] if ">>>" in (ROOT / file).read_text() else []
    own, others = ([str(test.relative_to(ROOT)) for test in part] for part in ((*found, *beside), further))
    return [*examples, *own], others


@dataclass(frozen=True)
class Result:
    """Of a mutant's tests: which has failed, if one has, and whether they ended within so many minutes."""

    failed: str | None
    ended: bool
    minutes: float


class Copy:
    """A copy of the repository, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "isornn"
        shutil.copytree(ROOT, self.folder, ignore=shutil.ignore_patterns(".*", "results", "__pycache__"), symlinks=True)
        path = os.pathsep.join((str(self.folder / "src"), os.environ.get("PYTHONPATH", "")))
        # Machine code is kept under names made of all of its source, so that mutants do not share any.
        self._environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(folder / "cache")}

    def failing(self, tests: Sequence[str], minutes: float, *more: str) -> list[str]:
        """The tests that fail, by name; ``subprocess.TimeoutExpired`` where they need more time of the processor."""
        seconds = math.ceil(60 * minutes)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *more, *tests]
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=20 * seconds,  # of a machine that may be shared
            preexec_fn=limit,
        )
        if ended.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            raise subprocess.TimeoutExpired(command, seconds)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?= - |$)", ended.stdout, re.MULTILINE)
        if ended.returncode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
            sys.exit(ended.stdout[-2000:] + ended.stderr[-2000:])
        crashed = [tests[0]] if ended.returncode < 0 else []
        return failed or crashed

    def failing_anyway(self, tests: set[str]) -> set[str]:
        """Those that fail without a mutant; a whole file stands for its import."""
        files = sorted(test for test in tests if "::" not in test)
        functions = sorted(tests.difference(files))
        found = self.failing(files, 60.0, "--collect-only") if files else []
        return {*found, *(self.failing(functions, 60.0) if functions else [])}

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """The mutant, within the block."""
        file = self.folder / mutant.file
        content, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        mutant.applied(self.folder)
        try:
            yield
        finally:
            file.write_bytes(content)
            os.utime(file, ns=times)

    def tried(self, mutant: Mutant, minutes: float) -> Result:
        with self.changed(mutant):
            for tests in filter(None, own_tests(mutant.file)):
                try:
                    failed = self.failing(tests, minutes, "-x")
                except subprocess.TimeoutExpired:
                    return Result(None, False, minutes)
                if failed:
                    return Result(failed[0], True, minutes)
        return Result(None, True, minutes)


def read(file: Path) -> dict[Mutant, Result]:
    """Results so far; of those of one mutant the last."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {Mutant(**line["mutant"]): Result(**line["result"]) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="", help="a folder of src/isornn")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the processor, at most, for each")
    parser.add_argument("-o", "--out", type=Path, default=Path(os.devnull), help="results so far, a line each")
    asked = parser.parse_args()
    files = sorted((ROOT / "src" / "isornn" / asked.under).rglob("*.py"))
    population = [mutant for file in files if "experiments" not in file.parts for mutant in mutants(file)]
    drawn = random.Random(asked.seed).sample(population, min(asked.mutants, len(population)))
    print(f"seed {asked.seed}: {len(drawn)} of {len(population)} mutants", flush=True)
    known = read(asked.out)
    with tempfile.TemporaryDirectory() as folder, asked.out.open("a") as out:
        copy = Copy(Path(folder))
        for mutant in drawn:
            if mutant not in known or not (known[mutant].ended or known[mutant].minutes >= asked.minutes):
                known[mutant] = copy.tried(mutant, asked.minutes)
                print(json.dumps({"mutant": asdict(mutant), "result": asdict(known[mutant])}), file=out, flush=True)
        without = copy.failing_anyway({failed for mutant in drawn if (failed := known[mutant].failed)})
    ways = {"noticed": 0, "survived": 0, "not ended": 0, "noticed by a test that fails without it": 0}
    for mutant in drawn:
        result = known[mutant]
        if result.failed is None:
            way = "survived" if result.ended else "not ended"
        else:
            way = "noticed by a test that fails without it" if result.failed in without else "noticed"
        ways[way] += 1
        if way != "noticed":
            print(f"{way}: {mutant.file}:{mutant.line}:{mutant.column + 1}: {mutant.before!r} -> {mutant.after!r}")
    print(", ".join(f"{count} {way}" for way, count in ways.items()))
    sys.exit(0 if ways["noticed"] >= BAR * len(drawn) else "the bar is NOT met")


if __name__ == "__main__":
    main()
