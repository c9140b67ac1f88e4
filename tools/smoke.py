"""Every command once, in an environment where isornn is installed. Run in an empty folder:

python smoke.py core      # what `pip install isornn` gives
python smoke.py all       # and all commands, with `pip install 'isornn[all]'`
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np

COMMANDS: dict[str, list[str]] = {
    "analyze": [
        "--cell gru --hidden 8 --inputs 2 --init standard --plot profile.png",
        "--cell lstm --hidden 8 --inputs 2 --json",
    ],
    "cells": ["", "lstm"],
    "compare": ["--cell vanilla --hidden 8 --inputs 2 --length 20"],
    "critical": ["--cell lstm --length 100 -o spec.json"],
    "data": ["check data"],
    "demo": ["--length 5 --updates 2"],
    "diagnose": ["smoke_model:made --html report.html"],
    "isometric": ["--cell lstm --length 50"],
    "memory": ["data.npz --plot memory.png"],
    "pareto": ["--cell peephole --length 20 --specs 8 -o front.png"],
    "phase": ["--cell vanilla --x h.weight_var=0.5:2:3 --y h.bias_var=0:1:3 -o map.png"],
    "reproduce": ["list"],
    "spectrum": ["--cell vanilla --hidden 8 --inputs 2 --init orthogonal --plot density.png"],
    "sweep": ["sweep.toml --jobs 2", "status sweep"],
    "train": ["run.toml -o run"],
}
RUN = """
task = { name = "adding", length = 10, held_out = 20 }
model = { name = "torch.nn.GRU", hidden = 8 }
start = { name = "critical", length = 10 }
optimiser = { name = "adam", rate = 0.01 }
updates = 4
validate_every = 2
batch_size = 8
"""
MODEL = """
import torch

def made():
    return torch.nn.LSTM(3, 8, batch_first=True), torch.randn(4, 30, 3)
"""
NO_DATA = 1  # `data check` of a folder where nothing is


def core() -> None:
    """The library without an extra: a start, a diagnosis, the theory, a layer."""
    import torch

    import isornn

    model, batch = torch.nn.LSTM(3, 8, batch_first=True), torch.randn(4, 30, 3)
    isornn.init.critical_(model, batch=batch)
    print(isornn.diagnose(model, batch))
    answer = isornn.analyze(isornn.init.spec_of(torch.nn.GRU(49, 128)))
    assert 0.6 < answer.reach.number() < 1.0
    isornn.nn.LSTM(3, 8)(batch)[0].sum().backward()
    print(f"isornn {isornn.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}: the core works")


def commands() -> None:
    """Each command once. Fails where one fails, prints nothing, or is not listed above."""
    from typer.main import get_group

    from isornn.cli import app

    known = set(get_group(app).commands) - {"explore"}
    assert known == set(COMMANDS), f"commands without a line here, or lines without a command: {known ^ set(COMMANDS)}"
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(64, 12, 1))
    np.savez("data.npz", inputs=inputs, targets=inputs[:, -3:, 0].sum(1))
    Path("run.toml").write_text(RUN)
    Path("sweep.toml").write_text("[base]" + RUN + "[grid]\nseed = [0, 1]\n")
    Path("smoke_model.py").write_text(MODEL)
    Path("data").mkdir()
    for name, lines in COMMANDS.items():
        for line in lines:
            done = subprocess.run(_called(name, *line.split()), capture_output=True, text=True, check=False)
            right = done.returncode == (NO_DATA if name == "data" else 0) and done.stdout.strip()
            assert right, f"isornn {name} {line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
            print(f"isornn {name} {line}: works")
    explorer()


def explorer() -> None:
    """The page is served, and an interrupt ends it."""
    process = subprocess.Popen(_called("explore", "--no-browser"), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        words = process.stderr.readline().split()
        address = next(word.rstrip(".,") for word in words if word.startswith("http://"))
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"isornn" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    print("isornn explore: works")


def _called(*words: str) -> list[str]:
    return [os.path.join(os.path.dirname(sys.executable), "isornn"), *words]


if __name__ == "__main__":
    core()
    if sys.argv[1:] == ["all"]:
        commands()
