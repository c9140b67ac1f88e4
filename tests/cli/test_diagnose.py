"""``isornn diagnose``: a factory of the user's, a file of weights, and what is refused in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import shell
from isornn.diagnosis import Predicted
from isornn.diagnosis.measurement import NOT_ASKED
from isornn.training import Configuration, run

MODELS = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.GRU(3, 8))

def both():
    return model(), torch.randn(20, 2, 3)

def misfit():
    return model(), torch.randn(20, 2, 5)

def misfit_below():
    return nn.Sequential(nn.Linear(5, 3), nn.GRU(3, 8)), torch.randn(20, 2, 3)

def broken():
    raise KeyError("the vocabulary")

def number():
    return 3

def empty():
    return model(), torch.randn(20, 0, 3)

def lazy():
    return nn.Sequential(model(), nn.LazyLinear(2)), torch.randn(20, 2, 3)

def on_meta():
    return model().to("meta"), torch.randn(20, 2, 3)

feedforward = lambda: (nn.Linear(3, 3), torch.randn(2, 3))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    # The theory takes seconds, and what it says is not what is asked for here.
    monkeypatch.setattr("isornn.diagnosis.measurement.predicted", lambda *_: Predicted(None, None, "asked"))
    (tmp_path / "my_models.py").write_text(MODELS)
    return tmp_path


called = partial(shell.run, "diagnose")
refused = partial(shell.refusal, "diagnose")


def test_a_factory_of_model_and_batch(folder: Path) -> None:
    done = called("my_models:both", "--length", 30, "--html", "report.html")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("Sequential, T = 30: 1 finding\n") and "0 l0" in done.stdout
    assert done.stderr == "isornn: page in report.html\n"
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("ending", ["npy", "pt"])
def test_data_in_a_file(folder: Path, ending: str) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2, 3))
    if ending == "npy":
        np.save("x.npy", x)
    else:
        torch.save((torch.tensor(x, dtype=torch.float32),), "x.pt")
    done = called("my_models:model", "--data", f"x.{ending}", "--json")
    assert done.exit_code == 0, done.stderr
    read = json.loads(done.stdout)
    (layer,) = read["layers"]
    assert (layer["info"]["sequences"], layer["info"]["steps"], read["length"]) == (2, 20, 20)
    assert layer["inputs"]["second_moment"] == pytest.approx((x**2).mean(), rel=1e-6)


def test_the_theory_is_computed_on_request(folder: Path) -> None:
    torch.save(nn.GRU(3, 8).state_dict(), "gru.pt")
    for what in (("my_models:both",), ("gru.pt", "--cell", "gru", "--length", 20)):
        reasons = [
            json.loads(called(*what, "--json", *flag).stdout)["layers"][0]["predicted"]["reason"]
            for flag in ((), ("--theory",))
        ]
        assert reasons == [NOT_ASKED, "asked"]


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_alone(folder: Path, ending: str) -> None:
    state = nn.ModuleDict({"encoder": nn.LSTM(3, 8), "head": nn.Linear(8, 2)}).state_dict()
    torch.save({"epoch": 1, "state_dict": state}, "a.pt")
    save_file(state, "a.safetensors")
    done = called(f"a.{ending}", "--cell", "lstm", "--length", 50, "--json")
    assert done.exit_code == 0, done.stderr
    read = json.loads(done.stdout)
    assert [layer["info"]["name"] for layer in read["layers"]] == ["encoder l0"] and read["length"] == 50
    assert "variance 1" in " ".join(read["notes"])
    in_torch = called(f"a.{ending}", "--cell", "torch.nn.LSTM", "--length", 50, "--json")
    assert in_torch.stdout == done.stdout


def test_both_files_of_a_training_run_are_read(folder: Path) -> None:
    """``checkpoint.pt`` has the model's latest weights, ``weights.safetensors`` the best: here they are the same."""
    model = {"name": "mgu", "hidden": 4, "layers": 2}
    table = {"task": {"name": "copy", "length": 2, "held_out": 4}, "model": model, "updates": 1, "batch_size": 2}
    run(Configuration.from_mapping({**table, "optimiser": {"name": "adam", "rate": 0.1}}), folder / "run", device="cpu")
    found = [
        called(f"run/{file}", "--cell", "mgu", "--length", 10, "--json")
        for file in ("checkpoint.pt", "weights.safetensors")
    ]
    assert [done.exit_code for done in found] == [0, 0], found[0].stderr
    latest, best = (json.loads(done.stdout)["layers"] for done in found)
    assert latest == best and [layer["info"]["name"] for layer in latest] == ["recurrent l0", "recurrent l1"]
    whole = (folder / "run" / "checkpoint.pt").read_bytes()
    (folder / "run" / "checkpoint.pt").write_bytes(whole[:-1])
    assert "truncated or changed" in refused("run/checkpoint.pt", "--cell", "mgu")


def test_bad_input_is_refused_in_a_line(folder: Path) -> None:
    torch.save({"a": 1}, "other.pt")
    torch.save(nn.GRU(2, 2), "whole.pt")
    Path("no.pt").write_text("nothing")
    Path("no.safetensors").write_text("nothing")
    np.save("objects.npy", np.array([{}], dtype=object))
    assert "it must be package.module:factory" in refused("my_models")
    assert "module that Python finds from here" in refused("missing:model")
    assert "nothing must be a function in my_models" in refused("my_models:nothing")
    assert "not int" in refused("my_models:number")
    assert "--data is needed; it is the batch, unless my_models:model returns" in refused("my_models:model")
    assert "without pickle" in refused("my_models:model", "--data", "objects.npy")
    assert "must end in .npy, .npz or .pt" in refused("my_models:model", "--data", "x.csv")
    assert "there is no such file" in refused("my_models:model", "--data", "missing.pt")
    assert "a tuple of tensors" in refused("my_models:model", "--data", "other.pt")
    assert "holds no recurrent layer" in refused("my_models:feedforward")
    assert "--length: 1 is not allowed" in refused("my_models:both", "--length", 1)
    assert "must end in .html" in refused("my_models:both", "--html", "report.png")
    assert "--cell" in refused("my_models:both", "--cell", "lstm")
    assert "--cell is needed; " in refused("other.pt")
    assert "there is no such file" in refused("missing.pt")
    assert "tensors only" in refused("no.pt")
    assert "weight_ih_l0" in refused("other.pt", "--cell", "lstm")
    assert "tensors only" in refused("whole.pt", "--cell", "gru")
    assert "tensors only" in refused("no.pt", "--cell", "gru")
    assert "a file of safetensors" in refused("no.safetensors", "--cell", "gru")
    assert "--data" in refused("other.pt", "--cell", "lstm", "--data", "objects.npy")


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("empty", "batch: shape (20, 0, 3) is not allowed; it must hold at least one sequence of one step"),
        ("lazy", "model: it has lazy parameters that no run has created yet; run it once before"),
        ("on_meta", "model: it is on the meta device, so it has no values"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(factory: str, why: str) -> None:
    assert why in refused(f"my_models:{factory}")


def test_errors_of_the_users_own_code_are_told_as_such(folder: Path) -> None:
    (folder / "wrong.py").write_text("import not_there_either\n")
    (folder / "worse.py").write_text("1 / 0\n")
    assert "my_models:broken: KeyError: 'the vocabulary'" in refused("my_models:broken")
    assert "wrong: ModuleNotFoundError: No module named 'not_there_either'" in refused("wrong:model")
    assert "worse: ZeroDivisionError" in refused("worse:model")
    for factory in ("misfit", "misfit_below"):
        assert f"my_models:{factory}: when the model ran on the batch: " in refused(f"my_models:{factory}")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install 'isornn[report]'" in refused("my_models:both", "--html", "report.html")


def test_from_the_shell(folder: Path) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "isornn", "diagnose", "my_models:broken"]
    done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "isornn: my_models:broken: KeyError: 'the vocabulary'\n"


def test_two_reports_are_compared(folder: Path) -> None:
    for name in ("model", "both"):
        (folder / f"{name}.json").write_text(called("my_models:both", "--json").stdout)
    result = called("--compare", "model.json", "both.json", "--html", "page.html")
    assert result.exit_code == 0 and "model.json and both.json" in result.stdout
    assert "GRU" in (folder / "page.html").read_text() or "0 l0" in (folder / "page.html").read_text()
    assert set(json.loads(called("--compare", "model.json", "both.json", "--json").stdout)["reports"]) == {
        "model.json",
        "both.json",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "WHAT is needed"),
        (("--compare", "a.json", "a.json"), "--compare: 'a.json' is not allowed; it must be another file"),
        (("--compare", "a.json", "b.json"), "a.json: not readable"),
        (("my_models:both", "--compare", "a.json", "b.json"), "WHAT: 'my_models:both' is not allowed"),
    ],
)
def test_a_comparison_that_cannot_be_made(arguments: tuple[str, ...], message: str) -> None:
    result = called(*arguments)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.output


def test_what_the_users_code_prints_or_ends_is_not_the_answer(folder: Path) -> None:
    (folder / "loud.py").write_text(
        "print('imported')\nfrom my_models import both\n\ndef model():\n    print('made')\n    return both()\n"
    )
    result = shell.run("diagnose", "loud:model", "--json")
    assert json.loads(result.stdout)["length"] == 20 and "imported" in result.stderr and "made" in result.stderr
    for code in (0, 3):
        (folder / f"ends{code}.py").write_text(f"import sys\nsys.exit({code})\n")
        result = shell.run("diagnose", f"ends{code}:model")
        assert result.exit_code == 2 and f"ends{code}: SystemExit: {code}" in result.stderr


def test_lengths_have_a_range(folder: Path) -> None:
    torch.save(nn.GRU(3, 8).state_dict(), "w.pt")
    result = shell.run("diagnose", "w.pt", "--cell", "gru", "--length", "10000000000000")
    assert result.exit_code == 2 and "--length: 10000000000000 is not allowed; " in result.stderr
