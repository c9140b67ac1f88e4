"""``isornn sweep``."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app
from isornn.training import Configuration, run

FILE = """
[base]
task = {{ name = "adding", length = 5, held_out = 10 }}
model = {{ name = "torch.nn.LSTM", hidden = 3 }}
optimiser.name = "adam"
updates = {updates}
validate_every = 2
batch_size = 4

[grid]
optimiser.rate = {rates}
"""


def sweep(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return written(tmp_path / "rates.toml")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("configuration.json", "null", "configuration.json: None is not allowed; it must be a table"),
        ("configuration.json", "[[1]]", r"configuration.json: [[1]] is not allowed; it must be a table"),
        ("outcome.json", "7", "outcome.json: 7 is not allowed; it must be a table"),
        (
            "outcome.json",
            '{"state": "done"}',
            "outcome.json: state: 'done' is not allowed; it must be one of finished, ",
        ),
        ("outcome.json", '{"record": [1]}', "outcome.json: record: [1] is not allowed; it must be a table or null"),
        ("outcome.json", '{"reason": {}}', "outcome.json: reason: {} is not allowed; it must be a text or null"),
        ("outcome.json", '{"takes": "x"}', "outcome.json: takes: 'x' is not allowed; it must be a whole number"),
        (
            "outcome.json",
            '{"done": [1, "x"]}',
            "outcome.json: done: [1, 'x'] is not allowed; it must be two whole numbers",
        ),
        ("claim.json", '{"done": 3}', "claim.json: done: 3 is not allowed; it must be a list"),
    ],
)
def test_files_of_runs_that_somebody_edited(name: str, content: str, said: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "configuration.json").write_text("{}")
    (run / name).write_text(content)
    result = sweep("status", tmp_path / "runs")
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    assert said in result.output and result.output.count("\n") == 1


@pytest.mark.parametrize("best", ['"x"', "[1]", '{"loss": "low"}', '{"loss": null}', "{}"])
def test_a_record_without_a_loss_has_none_in_the_table(best: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "configuration.json").write_text("{}")
    (run / "outcome.json").write_text(f'{{"state": "finished", "record": {{"best": {best}}}}}')
    result = sweep("status", tmp_path / "runs")
    assert result.exit_code == 0, result.exception
    assert "1 finished" in result.output and "best so far" not in result.output


def test_single_runs_are_as_their_records_say(tmp_path: Path) -> None:
    """Those of ``isornn train``, which no sweep has asked for."""
    ends = {
        "good": {"best": {"loss": 0.5}, "diverged": None},
        "bad": {"best": None, "diverged": "update 3: the loss is NaN"},
    }
    for name, record in ends.items():
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "configuration.json").write_text("{}")
        (run / "record.json").write_text(json.dumps(record))
    begun = tmp_path / "runs" / "begun"
    begun.mkdir()
    (begun / "configuration.json").write_text("{}")
    damaged = tmp_path / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "configuration.json").write_text("{}")
    (damaged / "record.json").write_text("")
    edited = tmp_path / "runs" / "edited"
    edited.mkdir()
    (edited / "configuration.json").write_text('{"updates": "many"}')
    result = sweep("status", tmp_path / "runs")
    assert result.exit_code == 0, result.exception
    assert "1 finished, 0 running, 3 failed, 1 waiting" in result.stdout
    said = " ".join(result.stdout.split())
    assert "record.json: not JSON" in said
    assert "configuration.json: updates: 'many' is not allowed; it must be a whole number" in said
    assert "best so far: good, validation loss 0.5" in result.stdout
    assert "bad failed: diverged: update 3: the loss is NaN" in result.stdout


def test_an_interrupted_single_run_is_shown_with_its_updates(tmp_path: Path) -> None:
    one = {
        "task": {"name": "adding", "length": 5, "held_out": 4},
        "model": {"name": "gru", "hidden": 2},
        "optimiser": {"name": "sgd", "rate": 0.1},
        "updates": 4,
        "validate_every": 2,
    }
    run(Configuration.from_mapping(one), tmp_path / "runs" / "whole")
    shutil.copytree(tmp_path / "runs" / "whole", tmp_path / "runs" / "cut")
    (tmp_path / "runs" / "cut" / "record.json").unlink()
    result = sweep("status", tmp_path / "runs")
    assert result.exit_code == 0, result.exception
    assert "1 finished, 0 running, 0 failed, 1 waiting" in result.stdout
    assert result.stdout.count("4 of 4") == 2
    alone = sweep("status", tmp_path / "runs" / "whole").stdout
    assert "1 finished, 0 running, 0 failed, 0 waiting" in alone and "best so far: whole" in alone


def written(file: Path, updates: int = 4, rates: str = "[0.1, 0.01, 1e30]") -> Path:
    file.write_text(FILE.format(updates=updates, rates=rates), encoding="utf-8")
    return file


def test_a_sweep_and_its_status(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    result = sweep(file, "-o", out, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "2 finished, 0 running, 1 failed, 0 waiting" in result.stdout and "best so far: " in result.stdout
    assert "optimiser.rate" in result.stdout and " failed: diverged: " in result.stdout
    assert "batch_size" not in result.stdout  # as it is the same in all runs
    for told in (sweep("status", out), sweep("run", file, "-o", out, "--jobs", 1)):  # nothing is run again
        assert (told.exit_code, told.stdout) == (0, result.stdout), told.output

    answer = json.loads(sweep("status", out, "--json").stdout, parse_constant=pytest.fail)
    assert (answer["finished"], answer["failed"], answer["waiting"]) == (2, 1, 0)
    losses = {run["run"]: run["record"]["best"]["loss"] for run in answer["runs"] if run["state"] == "finished"}
    assert answer["best"] == min(losses, key=losses.__getitem__)
    assert all(run["takes"] == 1 for run in answer["runs"])


def test_nothing_finished_is_no_success(tmp_path: Path) -> None:
    file = written(tmp_path / "rates.toml", rates="[1e30]")
    result = sweep(file, "-o", tmp_path / "runs", "--jobs", 1)
    assert result.exit_code == 1 and "1 failed" in result.stdout


def interrupted(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C, and again if nothing comes of it: Python drops what is raised while an object is being deleted."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=30)[1]
    process.kill()
    pytest.fail(f"three interrupts did not end it: {process.communicate()[1]}")


def test_an_interrupt_leaves_everything_to_be_taken_up(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: one line, no traceback, and the same call goes on from its checkpoint."""
    file, out = written(tmp_path / "rates.toml", updates=3000, rates="[0.1]"), tmp_path / "runs"
    command = [sys.executable, "-m", "isornn", "sweep", str(file), "-o", str(out), "--jobs", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not list(out.glob("*/checkpoint.pt")) and process.poll() is None:
        time.sleep(0.05)
    said = interrupted(process)
    assert process.returncode == 130 and "Traceback" not in said and "resumes from there" in said, said
    assert "1 waiting" in sweep("status", out).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no_such.toml",), "FILE.toml: 'no_such.toml'"),
        (("{file}", "--backend", "dask"), "--backend: 'dask' .* loky, ray"),
        (("{file}", "--address", "auto"), "--address: 'auto' .* --backend ray"),
        (("{file}", "-o", "{file}"), "--output: .* is not allowed; it must be a folder"),
        (("{file}", "--jobs", "0"), "jobs: 0 is not allowed; it must be at least 1"),
        (("{file}", "--backend", "ray", "--jobs", "1"), "jobs: 1 is not allowed; it must be at least 2"),
        (("{file}", "--threads", "0"), "threads: 0"),
        (("{file}", "--jobs", "many"), "'many' is not a whole number"),
        (("{file}", "--data", "nowhere"), "--data: 'nowhere' is not allowed; it must be a folder"),
        (("status", "nowhere"), "folder: 'nowhere' .* a folder that holds runs"),
    ],
)
def test_refusals(file: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    result = sweep(*(argument.format(file=file) for argument in arguments))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1
    assert re.search(words, result.stderr), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rates.toml"]


def test_alone_it_says_how_it_is_called() -> None:
    for told in (sweep(), sweep("--help")):
        assert (told.exit_code, told.stderr) == (0, "") and "isornn sweep FILE.toml" in told.stdout
        assert "--jobs" in told.stdout and "--retry-failed" in told.stdout and "sweep status DIR" in told.stdout


def test_fields_are_refused_by_name(tmp_path: Path) -> None:
    result = sweep(written(tmp_path / "rates.toml", rates="[0.1, -1]"))
    assert result.exit_code == 2 and "optimiser.rate: -1 is not allowed" in result.stderr


def test_what_is_missing_is_said_before_a_run_is_failed(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    result = sweep(file, "-o", tmp_path / "runs", "--jobs", 1)
    assert result.exit_code == 2 and "pip install 'isornn[train]'" in result.stderr, result.output
    assert not (tmp_path / "runs").exists()
