"""Random specs, configurations and files through the commands: each is answered or refused in a line.

    python benchmarks/fuzz.py [--seed 0] [--specs 1000] [--configurations 300] [--files 100]

Every case runs in a process of its own (forked, so that it starts at once) in an empty folder. A fault is a traceback,
a refusal of more than a line, an end by a signal, more than 30 s of the processor, or more than 4 GB. Case k of a kind
depends on the seed and k only; the folder of a fault is kept and its command printed, and ``--only KIND:K`` runs it
again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning_fabric  # noqa: F401  (loaded once, before the processes part)
import matplotlib.pyplot  # noqa: F401
import numpy as np
import torch
import torch.utils.tensorboard
from safetensors.torch import save_file
from torch import nn

import isornn.diagnosis
import isornn.reports
import isornn.theory.analysis
import isornn.training
import isornn.training.sweep
from isornn.cells import CELLS
from isornn.cells.random_specs import random_spec
from isornn.cli import main as command_line
from isornn.training.configuration import MODELS, OPTIMISERS, PENALTIES, SCHEDULES, STARTS
from isornn.training.fields import NEEDED
from isornn.training.run import run

SECONDS, MEMORY, PATIENCE = 30, 4 << 30, 300
SAMPLED = ("lstm", "gru")  # answered by population, which is slower by two orders
NUMBERS = (0, -0.0, 1, -1, 0.5, 1e-300, 5e-324, 1e12, 1e13, 1e300, math.nan, math.inf, 2**63, 10**20, 10**400, 7)
ODD = (*NUMBERS, True, None, "", "x", "1", [], [1], {}, {"a": 1}, [[[]]], "\x1b[2J", "é\n", {"margin": 1e300})

Case = Callable[[random.Random], Sequence[str]]
"""Writes its files into the current folder and says the command."""


# -- specs ------------------------------------------------------------------------------------------------------------


def spec(draw: random.Random) -> dict[str, Any]:
    """A random spec, of which half have a field or two that are anything."""
    names = [name for name in CELLS if name not in SAMPLED] if draw.random() < 0.95 else SAMPLED
    generator = torch.Generator().manual_seed(draw.getrandbits(60))
    content = random_spec(CELLS[draw.choice(names)](), generator).to_json()
    for _ in range(draw.choice((0, 0, 1, 2))):
        spoil(content, draw)
    return content


def spoil(content: dict[str, Any], draw: random.Random) -> None:
    """Change, remove or add a value somewhere in nested tables."""
    table = content
    while (inner := [value for value in table.values() if isinstance(value, dict) and value]) and draw.random() < 0.7:
        table = draw.choice(inner)
    names = [*table, "bias_law", "ensemble", "zz", "name", "length"]
    way = draw.random()
    if way < 0.15 and table:
        del table[draw.choice([*table])]
    else:
        table[draw.choice(names)] = draw.choice(NUMBERS if way < 0.7 else ODD)


def specs(draw: random.Random) -> Sequence[str]:
    Path("spec.json").write_text(json.dumps(spec(draw)), encoding="utf-8")
    more = ["--json"] if draw.random() < 0.5 else []
    way = draw.random()
    if way < 0.7:
        return ["analyze", "spec.json", "--length", str(draw.choice((1, 20, 500))), *more]
    if way < 0.8:
        return ["analyze", "spec.json", "--tied", "--steps", "5", *more]
    if way < 0.9:
        Path("upper.json").write_text(json.dumps(spec(draw)), encoding="utf-8")
        return ["analyze", "spec.json", "upper.json", *more]
    if way < 0.95:
        return ["analyze", "spec.json", "--plot", "figure.png"]
    length, size = draw.choice(("0", "2", "50", str(10**20))), draw.choice(("0", "8", str(10**20)))
    cell = draw.choice([*CELLS, "spectral", "os:system('x')"])
    return ["compare", "--cell", cell, "--hidden", size, "--inputs", "2", "--length", length, *more]


# -- configurations ---------------------------------------------------------------------------------------------------


def chosen(kinds: Any, draw: random.Random) -> dict[str, Any]:
    """A kind with its needed fields, and now and then others, of values that are allowed."""
    name = draw.choice([*kinds])
    values: dict[str, Any] = {"name": name}
    for option, field in kinds[name].items():
        if field.default is NEEDED or draw.random() < 0.1:
            of_kind = [choices for words, choices in _ALLOWED.items() if words in field.allowed]
            if "one of" in field.allowed:
                values[option] = draw.choice(field.allowed.removeprefix("it is one of ").split(", "))
            elif of_kind:
                values[option] = draw.choice(of_kind[0])
    return values


_ALLOWED = {
    "whole number": (1, 2, 3),
    "number above": (0.01, 0.5),
    "number from": (0.0, 0.5),
    "true or false": (True, False),
    "growing list": ([1, 2], [3]),
}


def configuration(draw: random.Random) -> dict[str, Any]:
    """A run of a second; half have a field or two that are anything."""
    task = draw.choice(("adding", "copy", "noise_padded", "sequential_images", "repeated_pixels"))
    options: dict[str, Any] = {"name": task, "held_out": draw.choice((1, 5))}
    options |= {"length": draw.choice((2, 3, 9))} if task in ("adding", "copy", "noise_padded") else {}
    options |= {"repeats": 1} if task == "repeated_pixels" else {}
    content: dict[str, Any] = {
        "task": options,
        "model": {**chosen(MODELS, draw), "hidden": draw.choice((1, 2, 5)), "layers": draw.choice((1, 2))},
        "optimiser": {**chosen(OPTIMISERS, draw), "rate": draw.choice((1e-3, 0.1, 1e30))},
        "updates": draw.choice((1, 3)),
        "batch_size": draw.choice((1, 4)),
        "validate_every": draw.choice((1, 2)),
    }
    for section, kinds in (("start", STARTS), ("schedule", SCHEDULES), ("penalty", PENALTIES)):
        if draw.random() < 0.3:
            content[section] = chosen(kinds, draw)
    for _ in range(draw.choice((0, 0, 1, 2))):
        spoil(content, draw)
    return content


def toml(value: Any) -> str:
    """A value as TOML has it inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return '""' if value is None else json.dumps(value)


def configurations(draw: random.Random) -> Sequence[str]:
    content = configuration(draw)
    if draw.random() < 0.75:
        Path("run.toml").write_text("".join(f"{name} = {toml(value)}\n" for name, value in content.items()))
        return ["train", "run.toml", "-o", "out", "--device", "cpu"]
    sweep: dict[str, Any] = {"base": content, "grid": {draw.choice([*content, "seed"]): [draw.choice(ODD), 3]}}
    if draw.random() < 0.3:
        spoil(sweep, draw)
    Path("runs.toml").write_text("".join(f"{name} = {toml(value)}\n" for name, value in sweep.items()))
    return ["sweep", "runs.toml", "-o", "out", "--jobs", "1"]


# -- files ------------------------------------------------------------------------------------------------------------

RUN = {
    "task": {"name": "adding", "length": 5, "held_out": 5},
    "model": {"name": "torch.nn.LSTM", "hidden": 3},
    "optimiser": {"name": "adam", "rate": 0.1},
    "updates": 4,
    "validate_every": 2,
    "batch_size": 2,
}


class _Stop(Exception):
    """Ends a run half-way."""


def _spec() -> tuple[str, Sequence[str]]:
    Path("spec.json").write_text(json.dumps({"cell": "vanilla", "gates": {"h": {"weight_var": 1, "bias_mean": 0.1}}}))
    return "spec.json", ["analyze", "spec.json", "--json"]


def _toml(command: str) -> tuple[str, Sequence[str]]:
    base = "".join(f"{name} = {toml(value)}\n" for name, value in RUN.items())
    Path("run.toml").write_text(base if command == "train" else f"[base]\n{base}[grid]\nseed = [0, 1]\n")
    return "run.toml", [command, "run.toml", "-o", "out", *(("--jobs", "1") if command == "sweep" else ())]


def _weights(ending: str) -> tuple[str, Sequence[str]]:
    state = nn.Sequential(nn.GRU(2, 4)).state_dict()
    if ending == "pt":
        torch.save({"state_dict": state}, "weights.pt")
    else:
        save_file(state, "weights.safetensors")
    return f"weights.{ending}", ["diagnose", f"weights.{ending}", "--cell", "gru", "--length", "5"]


def _batch(ending: str) -> tuple[str, Sequence[str]]:
    Path("their.py").write_text("from torch import nn\nmodel = lambda: nn.Sequential(nn.GRU(2, 4))\n")
    if ending == "npy":
        np.save("x.npy", np.zeros((5, 3, 2)))
    else:
        torch.save((torch.zeros(5, 3, 2),), "x.pt")
    return f"x.{ending}", ["diagnose", "their:model", "--data", f"x.{ending}"]


def _in_a_run(name: str) -> tuple[str, Sequence[str]]:
    """A file of a run that was interrupted, or of one that has ended."""
    _, command = _toml("train")

    def stop(state: Any) -> None:
        if name != "record.json" and state.update == 3:
            raise _Stop

    with suppress(_Stop):
        run(isornn.training.Configuration.from_mapping(RUN), Path("out"), device="cpu", on_update=[stop])
    return f"out/{name}", [*command, "--device", "cpu"]


def _in_a_sweep(name: str) -> tuple[str, Sequence[str]]:
    from isornn.training.sweep import LocalWorkers, run_sweep

    run_sweep({"a": RUN}, Path("out"), lambda *_: {"best": {"loss": 1.0}}, LocalWorkers(1))
    return f"out/a/{name}", ["sweep", "status", "out"]


_DATA = {
    "train-images-idx3-ubyte.gz": gzip.compress(bytes.fromhex("00000803 00000001 00000002 00000002 01020304")),
    "A_TRAIN.ts": b"@classLabel true a b\n@data\n1,2,3:a\n4,5,6:b\n",
    "A_TRAIN.tsv": b"a\t1\t2\nb\t3\t4\n",
    "ptb.train.txt": b"a b c\nc b a\n",
    "test_batch.bin": bytes(3073),
}


def _data(name: str) -> tuple[str, Sequence[str]]:
    Path(name).write_bytes(_DATA[name])
    return name, ["data", "check", "."]


READ = (
    _spec,
    *(partial(_toml, command) for command in ("train", "sweep")),
    *(partial(_weights, ending) for ending in ("pt", "safetensors")),
    *(partial(_batch, ending) for ending in ("npy", "pt")),
    *(partial(_in_a_run, name) for name in ("checkpoint.pt", "metrics.jsonl", "configuration.json", "record.json")),
    *(partial(_in_a_sweep, name) for name in ("outcome.json", "claim.json", "configuration.json")),
    *(partial(_data, name) for name in _DATA),
)
WAYS = ("cut", "insert", "repeat", "text", "empty", "pipe", "endless", "folder", "sparse", "gone", *["flip"] * 3)
TEXTS = ("[" * 5000, "{" * 5000, "a." * 5000 + "a=1", "null", "[]", '{"a": 1, "a": 2}', "\x1b[2J")


def files(draw: random.Random) -> Sequence[str]:
    name, command = draw.choice(READ)()
    file = Path(name)
    data = file.read_bytes()
    place = draw.randrange(len(data))
    way = draw.choice(WAYS)
    if way in ("pipe", "endless", "folder", "gone"):
        file.unlink()
    match way:
        case "flip":
            for _ in range(draw.choice((1, 1, 20))):
                place = draw.randrange(len(data))
                data = data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
            file.write_bytes(data)
        case "cut":
            file.write_bytes(data[:place])
        case "insert":
            file.write_bytes(data[:place] + draw.randbytes(draw.choice((1, 100))) + data[place:])
        case "repeat":
            file.write_bytes(data * draw.choice((2, 1000)))
        case "text":
            text = draw.choice(
                ("[" * 5000, "{" * 5000, "a." * 5000 + "a=1", "null", "[]", '{"a": 1, "a": 2}', "\x1b[2J")
            )
            file.write_text(text)
        case "empty":
            file.write_bytes(b"")
        case "pipe":
            os.mkfifo(file)
        case "endless":
            file.symlink_to("/dev/zero")
        case "folder":
            file.mkdir()
        case "sparse":
            os.truncate(file, draw.choice((1 << 33, 1 << 42)))
    return command


# -- running them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a case ended: its command, what is wrong with that, if anything, and its exit code."""

    command: Sequence[str]
    fault: str | None
    code: int
    seconds: float


def ran(kind: str, case: Case, number: int, seed: int, folder: Path) -> Ended:
    """A case in a process of its own."""
    folder.mkdir()
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        _child(case, random.Random(f"{seed} {kind} {number}"), folder)
    code, seconds = _waited(child, begun)
    said = (folder / "stderr").read_text(errors="replace")
    command = json.loads((folder / "command").read_text()) if (folder / "command").exists() else []
    if "Traceback" in said:
        fault = f"a traceback, {said.strip().splitlines()[-1][:200]}"
    elif code in (-signal.SIGXCPU, -signal.SIGKILL):
        fault = f"no answer within {SECONDS} s"
    elif code < 0:
        fault = f"ended by {signal.Signals(-code).name}"
    elif code not in (0, 1, 2):
        fault = f"exit code {code}"
    elif code == 2 and said.count("\n") != 1:
        fault = f"{said.count(chr(10))} lines: {said[:200]!r}"
    elif any(not c.isprintable() and c != "\n" for c in said + (folder / "stdout").read_text(errors="replace")):
        fault = "control characters"
    else:
        fault = None
    return Ended(command, fault, code, seconds)


def _child(case: Case, draw: random.Random, folder: Path) -> None:
    """Ends the process."""
    code = 99
    try:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        command = case(draw)
        Path("command").write_text(json.dumps(command))
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
        used = math.ceil(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 5))
        sys.argv = ["isornn", *command]
        command_line()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(child: int, begun: float) -> tuple[int, float]:
    """The exit code, and how long it took; killed if it waits for something that does not come."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), time.perf_counter() - begun
        if time.perf_counter() - begun > PATIENCE:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


KINDS: dict[str, Case] = {"specs": specs, "configurations": configurations, "files": files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    for kind, count in (("specs", 1000), ("configurations", 300), ("files", 100)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--only", metavar="KIND:K", help="one case")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    print(f"seed {asked.seed}", flush=True)
    cases = [(kind, number) for kind in KINDS for number in range(getattr(asked, kind))]
    if asked.only:
        kind, _, number = asked.only.partition(":")
        cases = [(kind, int(number))]
    codes: dict[str, Counter[int]] = {kind: Counter() for kind in KINDS}
    faults, slowest = 0, dict.fromkeys(KINDS, 0.0)
    kept = Path(tempfile.mkdtemp(prefix="isornn-fuzz-"))
    for kind, number in cases:
        folder = kept / f"{kind}-{number}"
        ended = ran(kind, KINDS[kind], number, asked.seed, folder)
        codes[kind][ended.code] += 1
        slowest[kind] = max(slowest[kind], ended.seconds)
        if ended.fault is not None:
            faults += 1
            print(f"{kind}:{number}: isornn {' '.join(ended.command)}: {ended.fault} ({folder})", flush=True)
        if ended.fault is None or ended.code == 0:
            shutil.rmtree(folder, ignore_errors=True)
    for kind in KINDS:
        told = f"{codes[kind][0]} answered, {codes[kind][2]} refused, {codes[kind][1]} failed"
        print(f"{kind}: {codes[kind].total()}: {told}; slowest {slowest[kind]:.1f} s")
    print(f"faults: {faults}")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
