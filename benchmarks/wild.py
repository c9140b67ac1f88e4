"""Models from real packages: is what is wrong with each found, and nothing in a sound one?

    python benchmarks/wild.py --environments FOLDER [--half first] [--host darts]

FOLDER has an environment for each host, FOLDER/darts/bin/python and so on, with the package and what isornn needs, as
``make hosts`` leaves them in .hosts; this checkout is put on their path. A host without one, as transformers, runs in
this Python. Cases and the verdicts expected of them are in wild_hosts, first.py and second.py:
30 on which rules were fixed, 30 that were tried afterwards. A case is right if the expected kind is found and none but
what follows from it; a sound model if nothing is found. Wanted: 95 % right, no finding in a sound model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COLUMNS = ("case", "expected", "found", "start", "s")
HALVES = ("first", "second")


def cases(half: str) -> Any:
    """Those of one half."""
    from importlib import import_module

    return getattr(import_module(f"wild_hosts.{half}"), half.upper())


def tried(half: str, host: str, only: str) -> None:
    """Every case of one host, a line of JSON each; runs in the host's own environment."""
    import torch

    from isornn.diagnosis import findings, measure

    for case in cases(half):
        if case.host != host or only not in case.name:
            continue
        started, row = time.perf_counter(), {"case": case.name, "expected": case.expected, "also": sorted(case.also)}
        try:
            torch.manual_seed(0)
            model, batch = case.spoil(*case.build())
            diagnosis = measure(model, batch, case.length)
            found = [one for one in findings(diagnosis) if one.kind != "denormals"]
            starts = sorted({"-" if layer.start is None else layer.start.name for layer in diagnosis.layers})
            row |= {
                "found": sorted({one.kind for one in found} - {"cannot_tell"}),
                "unsure": sorted({one.layer or "" for one in found if one.kind == "cannot_tell"}),
                "starts": starts,
                "sentences": [f"{one.layer}: {one.sentence}" for one in found],
            }
        except Exception as error:
            row |= {"found": ["error"], "unsure": [], "starts": [], "sentences": [f"{type(error).__name__}: {error}"]}
            traceback.print_exc()
        print("CASE " + json.dumps({**row, "seconds": round(time.perf_counter() - started, 1)}), flush=True)


def is_right(row: dict[str, Any]) -> bool:
    """Whether the expected kind is found, and no other than what follows from it."""
    found, expected = set(row["found"]), row["expected"]
    return not found if expected is None else expected in found and found <= {expected, *row["also"]}


def in_environment(python: Path, half: str, host: str, only: str) -> list[dict[str, Any]]:
    """The rows of one host."""
    path = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    command = [str(python), str(HERE / "wild.py"), "--inside", host, "--half", half, "--only", only]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    rows = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("CASE ")]
    if done.returncode or any("error" in row["found"] for row in rows):
        print(done.stderr[-2000:], file=sys.stderr)
    return rows


def python_of(environments: Path, host: str) -> Path:
    """The host's own environment's, or this one."""
    own = environments / host / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path)
    parser.add_argument("--half", choices=HALVES, nargs="+", default=HALVES)
    parser.add_argument("--host")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="file for all rows")
    arguments = parser.parse_args()
    if arguments.inside:
        tried(arguments.half[0], arguments.inside, arguments.only)
        return
    from table import heading, show

    heading("isornn.diagnosis on models of real packages")
    everything = {}
    for half in arguments.half:
        hosts = list(dict.fromkeys(case.host for case in cases(half) if arguments.host in (None, case.host)))
        rows = [
            row
            for host in hosts
            for row in in_environment(python_of(arguments.environments, host), half, host, arguments.only)
        ]
        everything[half] = rows
        shown = [
            (
                row["case"],
                row["expected"] or "-",
                ", ".join(row["found"]) or "-",
                ", ".join(row["starts"]),
                f"{row['seconds']:.1f}" + ("" if is_right(row) else "  WRONG"),
            )
            for row in rows
        ]
        print(f"\n{half} half")
        show(COLUMNS, shown)
        right = sum(map(is_right, rows))
        flagged = sum(bool(row["found"]) for row in rows if row["expected"] is None)
        sound = sum(row["expected"] is None for row in rows)
        print(f"{right} of {len(rows)} right; {flagged} of {sound} sound ones have findings")
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
