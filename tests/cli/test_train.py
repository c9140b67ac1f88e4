"""``isornn train``: a file, changes to it, a folder to go on in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

import shell
from dropped_interrupts import dropped_interrupt
from isornn.formatting import with_error_of
from isornn.training import Configuration, RunRecord

FILE = """
updates = 20
validate_every = 10
batch_size = 4

[task]
name = "copy"
length = 2
held_out = 8

[model]
name = "torch.nn.GRU"
hidden = 6

[optimiser]
name = "adam"
rate = 1e-2
"""


called = partial(shell.run, "train")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(FILE)
    return file


def test_a_run_from_its_file(file: Path, tmp_path: Path) -> None:
    done = called(file, "-o", tmp_path / "run", "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("update 20 of 20, loss ")]
    record = RunRecord.load(tmp_path / "run" / "record.json")
    assert record.test is not None
    assert with_error_of(record.test["accuracy"], record.test["accuracy_error"]) in done.stdout
    assert str(tmp_path / "run" / "record.json") in done.stdout
    again = called(file, "-o", tmp_path / "run", "--device", "cpu")
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert " ".join(again.stderr.split()) == f"isornn: no update was left to do: the run in {tmp_path}/run had ended"


def test_the_answer_names_the_whole_model(file: Path, tmp_path: Path) -> None:
    changes = ("--set", "model.layers=2", "--set", "model.bidirectional=true", "--set", "updates=1")
    done = called(file, *changes, "--set", "task.name=adding", "--set", "task.length=10", "-o", tmp_path / "run")
    assert done.exit_code == 0, done.stderr
    title = done.stdout.splitlines()[0].rstrip()  # in one line, though the table below is narrower
    assert title.startswith(
        "torch.nn.GRU(6, 2 layers, bidirectional), adding(10) (data: drawn at random by the task, no"
    )
    assert "loss without memory" in title


def test_without_a_folder_the_hash_names_it(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(
        file, "--set", "optimiser.rate=0.5", "--set", "seed=3", "--set", "model.name=torch.nn.RNN", "--device", "cpu"
    )
    assert done.exit_code == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    configuration = Configuration.from_mapping(json.loads((folder / "configuration.json").read_text()))
    assert configuration.hash == folder.name
    assert (configuration.optimiser["rate"], configuration.seed, configuration.model.name) == (0.5, 3, "torch.nn.RNN")


def test_divergence_is_one_line_and_code_1(file: Path, tmp_path: Path) -> None:
    changes = ("--set", "optimiser.name=sgd", "--set", "optimiser.rate=3e38")
    done = called(file, "-o", tmp_path / "run", "--device", "cpu", *changes)
    assert done.exit_code == 1
    assert "isornn: training diverged: update " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "optimiser.rate=fast"), "optimiser.rate: 'fast' is not allowed; it must be a finite number above 0"),
        (
            ("--set", "optimizer.rate=1"),
            "optimizer: {'rate': 1} is not allowed; did you mean optimiser? fields are task",
        ),
        (("--set", "model.hiden=6"), "model.hiden: 6 is not allowed; did you mean hidden? fields are hidden"),
        (
            ("--set", "start.name=critcal"),
            "start.name: 'critcal' is not allowed; did you mean critical? it must be one of",
        ),
        (("--set", "schedule.name=exp"), "schedule.name: 'exp' is not allowed; it must be one of constant"),
        (("--set", "rate"), "--set: 'rate' is not allowed; it must be FIELD=VALUE"),
        (("--set", "seed=1", "--set", "seed=2"), "--set: 'seed=2' is not allowed; seed is set once, and seed is 1"),
        (
            ("--set", "task.length=3", "--set", "task={name='adding'}"),
            "--set: \"task={name='adding'}\" is not allowed; task is set once, and task.length is 3 already",
        ),
        (("--set", "task={name='adding'}"), "task.length is needed"),
        (("--set", "task.length.x=1"), "--set.task.length.x: 1 is not allowed; length is no table but "),
        (("--device", "tpu"), "--device: 'tpu' is not allowed; it must be auto, cpu or cuda"),
        (("--devices", "0"), "--devices: 0 is not allowed"),
        (("--devices", "3"), "devices: 3 is not allowed; it must divide the batch size, 4"),
        (("--set", "task.name=words", "--set", "task.unroll=3"), "task.length: 2 is not allowed; fields are unroll"),
    ],
)
def test_what_is_refused_is_one_line(file: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = called(file, "-o", tmp_path / "run", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"isornn: {message}") and done.stderr.count("\n") == 1


def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # of a long path the message shows the beginning
    (tmp_path / "bad.toml").write_text("updates = ")
    for name, message in (("bad.toml", "it must be TOML"), ("gone.toml", "No such file")):
        done = called(name)
        assert done.exit_code == 2 and name in done.stderr and message in done.stderr


def test_a_folder_of_another_run_is_refused(file: Path, tmp_path: Path) -> None:
    assert called(file, "-o", tmp_path / "run", "--device", "cpu").exit_code == 0
    done = called(file, "-o", tmp_path / "run", "--set", "seed=1")
    assert done.exit_code == 2 and "holds a run with another seed (0, not 1)" in done.stderr


def test_help() -> None:
    assert "FILE.toml" in called("--help").stdout


def processor_seconds(process: int) -> float:
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="times of processes are read as Linux has them")
def test_an_interrupt_ends_a_training_at_once(file: Path, tmp_path: Path) -> None:
    """In a tenth of the processor time that was spent on imports."""
    run = ["train", str(file), "-o", str(tmp_path / "run"), "--device", "cpu", "--set", "updates=100000"]
    process = subprocess.Popen([sys.executable, "-m", "isornn", *run], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.02)
    before = processor_seconds(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)  # its own times, where those of all children may have another's
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 130
    assert "the same call resumes from there" in said
    assert used.ru_utime + used.ru_stime - before < before / 10


def test_an_interrupt_that_python_drops_before_the_training_ends_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one may be that comes while modules are imported, which takes longer than a short training."""
    monkeypatch.setattr(sys.modules["isornn.training.run"], "check_installed", dropped_interrupt)
    done = called(file, "-o", tmp_path / "run", "--device", "cpu")
    assert (done.exit_code, done.stderr) == (130, "isornn: interrupted\n")
    assert not (tmp_path / "run" / "record.json").exists()


def test_folders_are_folders(file: Path, tmp_path: Path) -> None:
    for option in ("--output", "--data"):
        result = called(file, option, file)
        assert (
            result.exit_code == 2
            and result.stderr == f"isornn: {option}: {str(file)!r} is not allowed; it must be a folder\n"
        )
    assert "--data" in called(file, "--data", tmp_path / "nowhere", "-o", tmp_path / "run").stderr


def test_a_run_that_ends_before_its_first_validation_has_no_table(file: Path, tmp_path: Path) -> None:
    changes = ("--set", "optimiser.name=sgd", "--set", "optimiser.rate=3e38", "--set", "validate_every=1000")
    done = called(file, *changes, "-o", tmp_path / "run", "--device", "cpu")
    assert done.exit_code == 1 and "it ended before its first validation" in " ".join(done.stdout.split())
