"""The recipes in docs/hosts, each executed in an environment of its own.

    make hosts [HOSTS="darts gluonts"]        or:  python benchmarks/hosts [NAME ...]

``NAME.txt`` pins a host package, first, and what it was tried with. For each host the environment ``.hosts/NAME`` is
made of these pins and this repository, once and again when either changes, and the ```python blocks of
``docs/hosts/NAME.md`` are executed in it (``execute.py``), in a temporary folder, within 300 seconds. A host that fails
does not stop the others. Progress goes to stderr and a table to stdout; the exit status is 1 if any host failed.

``measure_NAME.py`` beside it is the measurement that the page quotes; the environment's python runs it:

    .hosts/NAME/bin/python benchmarks/hosts/measure_NAME.py

Only the standard library is used here. ``PIP_ARGS`` in the environment: extra words for pip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ENVIRONMENTS = ROOT / ".hosts"
LIMIT = 300  # seconds of one recipe
NAMES = sorted(file.stem for file in HERE.glob("*.txt"))


class Failed(Exception):
    """A step of one host; the message is one line."""


@dataclass(frozen=True)
class Outcome:
    """A row of the table.

    Args:
        host: name and version.
        torch: its version.
        classes: of the host's models, in which isornn finds recurrent layers.
        seconds: of the recipe, without the installation.
        error: the error's last line; empty if there is none.
    """

    host: str
    torch: str = ""
    classes: str = ""
    seconds: str = ""
    error: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all unless given")
    names = parser.parse_args().names or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"NAME: {', '.join(unknown)} is not allowed; it is one of {', '.join(NAMES)}")
    outcomes = [outcome_of(name) for name in names]
    show(outcomes)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def outcome_of(name: str) -> Outcome:
    """Of the host's recipe, whatever goes wrong in it."""
    try:
        python = environment(name)
        return recipe(name, python)
    except (Failed, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return Outcome(name, error=str(error))


def environment(name: str) -> Path:
    """The python of ``.hosts/NAME``, made if its pins or this repository's requirements have changed.

    Raises:
        Failed: the environment cannot be made, or its packages cannot be installed.
    """
    folder = ENVIRONMENTS / name
    python, stamp = folder / "bin" / "python", folder / "made-from"
    pins = HERE / f"{name}.txt"
    wanted = hashlib.sha256(pins.read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"{name}: installing into {folder.relative_to(ROOT)}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    run([sys.executable, "-m", "venv", str(folder)])
    words = shlex.split(os.environ.get("PIP_ARGS", ""))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, *words, "-r", str(pins), "-e", str(ROOT)])
    stamp.write_text(wanted)
    return python


def recipe(name: str, python: Path) -> Outcome:
    """Execute the page's blocks.

    Raises:
        Failed: an exception or a false assertion in them, or more than 300 seconds.
    """
    page = ROOT / "docs" / "hosts" / f"{name}.md"
    print(f"{name}: {page.relative_to(ROOT)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="isornn-host-") as folder:
        answer = Path(folder) / "answer.json"
        work = Path(folder) / "work"
        work.mkdir()
        # -P: the scripts here must not be importable in place of packages.
        command = [str(python), "-P", str(HERE / "execute.py"), str(page), str(host_of(name)), str(answer)]
        begin = time.monotonic()
        run(command, cwd=work, limit=LIMIT)
        seconds = time.monotonic() - begin
        found = json.loads(answer.read_text())
    return Outcome(f"{name} {found['host']}", found["torch"], str(found["classes"]), f"{seconds:.0f}")


def host_of(name: str) -> str:
    """The distribution that the first line of ``NAME.txt`` pins."""
    return (HERE / f"{name}.txt").read_text().split("==")[0].split("[")[0].strip()


def run(command: list[str], *, cwd: Path | None = None, limit: float | None = None) -> None:
    """Run a command whose output goes to stderr, at once and whole.

    Raises:
        Failed: it ended with an error, of which the message is the last line, or it took longer than ``limit``.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1", **os.environ},  # the recipes' networks are too small for more
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {limit:g} seconds") from None
    finally:
        if process.poll() is None:  # with the workers that it may have started
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    sys.stderr.write(output)
    if process.returncode:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        raise Failed(lines[-1] if lines else f"{command[0]} ended with {process.returncode}")


def show(outcomes: list[Outcome]) -> None:
    """Print the table, as Markdown."""
    print("| host | torch | model classes | recipe, s | |\n|---|---|---|---|---|")
    for row in outcomes:
        print(f"| {row.host} | {row.torch} | {row.classes} | {row.seconds} | {row.error or 'ok'} |")


if __name__ == "__main__":
    sys.exit(main())
