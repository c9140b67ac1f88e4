"""Trainings and sweeps that are ended by each signal at random times, and go on: what is lost, and who lives on.

    python benchmarks/kills.py [--seed 0] [--kills 50] [--commands train sweep] [--signals TERM HUP KILL INT]

By each signal so many kills of ``isornn train`` and of ``isornn sweep --jobs 2``, as many as it
takes one after another in one folder, each at a random time of the calling process's life. Bars: 5 s after the kill no
process of its session is left; the next call finds no lock held; when a folder's runs are finished, ``metrics.jsonl``
and the best weights are, byte for byte, those of runs that nobody disturbed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from table import show

SIGNALS = {"TERM": signal.SIGTERM, "HUP": signal.SIGHUP, "KILL": signal.SIGKILL, "INT": signal.SIGINT}
PATIENCE = 5.0
_LOCKED = b"another process is at work"
FILES = ("metrics.jsonl", "weights.safetensors")
RUN = """
task = { name = "adding", length = 30, held_out = 50 }
model = { name = "torch.nn.LSTM", hidden = 8, layers = 2, dropout = 0.2 }
optimiser = { name = "adam", rate = 0.01 }
updates = 300
validate_every = 5
batch_size = 8
"""
COMMANDS = {"train": RUN, "sweep": "[base]" + RUN + "[grid]\nseed = [0, 1, 2]\n"}


@dataclass
class Count:
    """Of one command and one signal."""

    kills: int = 0
    left: int = 0
    locked: int = 0
    different: int = 0
    slowest: float = 0.0


def started(command: str, file: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The command in a session of its own."""
    arguments = [sys.executable, "-m", "isornn", command, str(file), "-o", str(folder)]
    arguments += ["--jobs", "2"] if command == "sweep" else ["--device", "cpu"]
    return subprocess.Popen(
        arguments,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=_heed,
    )


def _heed() -> None:
    # A shell gives commands in the background an interrupt that is ignored, and nohup a hang-up; a terminal does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def alive(session: int) -> list[int]:
    """The processes of a session but zombies."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, own = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found.append(int(place.name))
    return found


def killed(process: subprocess.Popen[bytes], kind: signal.Signals, delay: float, count: Count) -> bool:
    """Send the signal after a while, and see who is there 5 s later; whether the process had ended by itself."""
    with suppress(subprocess.TimeoutExpired):
        count.locked += _LOCKED in process.communicate(timeout=delay)[1]
        return True
    process.send_signal(kind)
    begun = time.perf_counter()
    while alive(process.pid) and time.perf_counter() - begun < PATIENCE:
        time.sleep(0.05)
    count.kills += 1
    count.slowest = max(count.slowest, time.perf_counter() - begun)
    left = alive(process.pid)
    count.left += bool(left)
    for one in left:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    count.locked += _LOCKED in process.communicate()[1]
    return False


def same(whole: Path, folder: Path) -> bool:
    """Whether the files of all runs are the same to the byte."""
    runs = [file.parent.relative_to(whole) for file in whole.rglob(FILES[0])]
    return bool(runs) and all(
        (whole / run / name).read_bytes() == (folder / run / name).read_bytes() for run in runs for name in FILES
    )


def measured(command: str, kind: signal.Signals, kills: int, place: Path, file: Path, draw: random.Random) -> Count:
    """So many kills, in as many folders as they take."""
    begun = time.perf_counter()
    whole = place / f"{command}-whole"
    if not whole.exists():
        assert started(command, file, whole).wait() == 0
        (place / f"{command}-seconds").write_text(str(time.perf_counter() - begun))
    seconds, count, number = float((place / f"{command}-seconds").read_text()), Count(), 0
    while count.kills < kills:
        number += 1
        folder, ended = place / f"{command}-{kind.name}-{number}", False
        while count.kills < kills and not ended:
            ended = killed(started(command, file, folder), kind, draw.uniform(0.2, 0.9) * seconds, count)
        process = started(command, file, folder)
        count.locked += _LOCKED in process.communicate()[1]
        count.different += process.returncode != 0 or not same(whole, folder)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=50, help="of each command by each signal")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    asked = parser.parse_args()
    rows, failed = [], False
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        for command in asked.commands:
            file = place / f"{command}.toml"
            file.write_text(COMMANDS[command])
            for kind in map(SIGNALS.__getitem__, asked.signals):
                draw = random.Random(f"{asked.seed} {command} {kind.name}")
                count = measured(command, kind, asked.kills, place, file, draw)
                rows.append(
                    (command, kind.name, count.kills, count.different, count.left, count.locked, f"{count.slowest:.1f}")
                )
                failed |= bool(count.different or count.left or count.locked)
                print(*rows[-1], flush=True)
    print()
    show(("command", "signal", "kills", "not the same bytes", "left after 5 s", "locked", "slowest end, s"), rows)
    sys.exit(failed)


if __name__ == "__main__":
    main()
