"""Cells of the tests' own, not in the catalogue, through every command: each works, or says in one line why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from joblib.externals.loky import get_reusable_executor

from isornn.cells import Gate, Spec
from isornn.nn import RNN
from own_cells import MGU, Leaky
from shell import refusal, run

OWN = ("own_cells:MGU", "own_cells:Leaky(rate=0.25)")
CELLS = {"own_cells:MGU": MGU(), "own_cells:Leaky(rate=0.25)": Leaky(0.25)}
SIZES = ("--hidden", 16, "--inputs", 4)
every = pytest.mark.parametrize("name", OWN)

MODULE = """
from dataclasses import dataclass
from pathlib import Path
from own_cells import Leaky, MGU
from isornn.nn import RNN
import torch

Path("imported").touch()

@dataclass(frozen=True)
class Mine(Leaky):
    name = "mine"

@dataclass(frozen=True)
class Mistaken(MGU):
    name = "mistaken"
    def update(self, s, u, x):
        return {}

@dataclass(frozen=True)
class Failing(MGU):
    name = "failing"
    def update(self, s, u, x):
        return {"h": torch.tanh(u.n) * int("not a number")}

def model():
    torch.manual_seed(0)
    return RNN(Mine(), 3, 8), torch.randn(20, 2, 3)
"""
TRAINING = """
updates = 4
validate_every = 2
batch_size = 4
task = { name = "adding", length = 5, held_out = 8 }
model = { name = "mine:Mine(rate=0.25)", hidden = 3 }
optimiser = { name = "adam", rate = 0.01 }
"""


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module ``mine`` in the current folder, which nothing has imported; the file that it leaves when it is."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "imported"
    sys.modules.pop("mine", None)


def spec_file(folder: Path, name: str) -> Path:
    cell, file = CELLS[name], folder / "spec.json"
    gates = {gate: Gate(0.5 if reads.state else 0.0, 0.5) for gate, reads in cell.gates.items()}
    file.write_text(json.dumps(Spec(cell, gates).to_json()))
    return file


# -- the theory's commands --------------------------------------------------------------------------------------------


@every
def test_cells_in_detail(name: str) -> None:
    shown = done("cells", name)
    for gate in CELLS[name].gates:
        assert f"gate {gate} reads" in shown
    assert "typing" in shown and "engine of the theory" in shown
    if name == OWN[0]:
        assert "W (sigma(u_f)*h), U x_t, b" in shown and "(1 - sigma(u_f))*h + sigma(u_f)*tanh(u_n)" in shown
    else:
        assert "sigma(u_o)*tanh(c')" in shown and "scale, one per unit" in shown and "rate: 0.5" in shown


def test_a_cell_that_is_not_traced_says_why() -> None:
    shown = done("cells", "own_cells:Branching")
    assert "update is not traced" in shown and "population" in shown


@every
def test_analyze(name: str, tmp_path: Path) -> None:
    found = json.loads(done("analyze", "--cell", name, *SIZES, "--init", "torch", "--length", 20, "--json"))
    assert found["spec"]["cell"] == name.partition("(")[0] and found["chi"] is not None
    assert found["spec"]["options"] == ({"rate": 0.25} if "rate" in name else {})
    again = json.loads(done("analyze", spec_file(tmp_path, name), "--json"))
    assert again["spec"]["cell"] == found["spec"]["cell"]


@every
def test_tied(name: str, tmp_path: Path) -> None:
    result = run("analyze", spec_file(tmp_path, name), "--tied", "--steps", 5)
    assert result.exit_code == 0 or (result.exit_code == 2 and result.stderr.count("\n") == 1), result.output


@every
def test_a_stack(name: str, tmp_path: Path) -> None:
    file = spec_file(tmp_path, name)
    result = run("analyze", file, file, "--length", 5)
    assert result.exit_code == 0 or (result.exit_code == 2 and result.stderr.count("\n") == 1), result.output


@every
def test_compare(name: str) -> None:
    found = json.loads(done("compare", "--cell", name, *SIZES, "--length", 20, "--json"))
    assert found["cell"] == name.partition("(")[0]
    assert all(row["reach"] is not None or row["reason"] for row in found["starts"])


@every
def test_critical(name: str, tmp_path: Path) -> None:
    result = run("critical", "--cell", name, "--length", 20, "-o", tmp_path / "found.json", "--json")
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1 and "remember" in result.stderr, result.output
        return
    assert result.exit_code == 0, result.output
    assert Spec.load(tmp_path / "found.json").cell == CELLS[name]


def test_pareto() -> None:
    result = run("pareto", "--cell", OWN[0], "--length", 20, "--specs", 8, "--json")
    if result.exit_code == 2:
        assert result.stderr.count("\n") == 1, result.output
        return
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["spec"]["cell"] == OWN[0]


@every
def test_phase(name: str, tmp_path: Path) -> None:
    axes = ("--x", "n.weight_var=0.1:2:2", "--y", "f.bias_mean=0:2:2")
    shown = done("phase", "--cell", name, *axes, "-o", tmp_path / "map.json")
    assert "4 specs" in shown
    assert json.loads((tmp_path / "map.json").read_text())["spec"]["cell"] == name.partition("(")[0]


@every
def test_spectrum(name: str, tmp_path: Path) -> None:
    result = run("spectrum", spec_file(tmp_path, name))
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exit_code == 0 or result.stderr.count("\n") == 1


# -- files that name a module -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("spectrum",),
        ("phase", "--x", "n.weight_var=0.1:2:2", "--y", "f.bias_mean=0:2:2"),
        ("explore", "--no-browser"),
    ],
)
def test_a_spec_file_that_names_a_module(mine: Path, arguments: tuple[str, ...]) -> None:
    Path("spec.json").write_text(json.dumps({"cell": "mine:Mine", "gates": {"n": {"weight_var": 0.5}}}))
    said = refusal(arguments[0], "spec.json", *arguments[1:])
    assert "'mine' is not imported" in said and "--allow-import mine" in said and not mine.exists()
    assert str(Path.cwd()) not in sys.path
    if arguments[0] in ("analyze", "phase"):  # the others take long, and read the file as these do
        result = run(arguments[0], "spec.json", *arguments[1:], "--allow-import", "other", "--allow-import", "mine")
        assert mine.exists() and "not imported" not in result.output


def test_a_stack_of_files_that_name_a_module(mine: Path) -> None:
    Path("spec.json").write_text(json.dumps({"cell": "lstm"}))
    Path("above.json").write_text(json.dumps({"cell": "mine:Mine"}))
    assert "'mine' is not imported" in refusal("analyze", "spec.json", "above.json") and not mine.exists()


@pytest.mark.parametrize("package", ["a b", "../mine", ""])
def test_what_is_no_package_is_refused(mine: Path, package: str) -> None:
    Path("spec.json").write_text(json.dumps({"cell": "lstm"}))
    assert "--allow-import: " in refusal("analyze", "spec.json", "--allow-import", package)


@pytest.mark.parametrize("command", ["analyze", "critical", "compare", "pareto", "spectrum", "explore", "cells"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.cells:MGU", "'absent.cells' does not import: ModuleNotFoundError"),
        ("mine:Absent", "no such class"),
        ("mine:Path", "no cell"),
        ("mine:Mistaken", "mistaken.update: the state 'h' is not returned"),
    ],
)
def test_what_is_typed_and_is_no_cell(mine: Path, command: str, name: str, said: str) -> None:
    option = () if command == "cells" else ("--cell",)
    length = ("--length", 20) if command not in ("cells", "explore") else ()
    assert said in refusal(command, *option, name, *length)


def test_what_fails_within_a_cell_is_one_line(mine: Path) -> None:
    said = refusal("analyze", "--cell", "own_cells:Leaky(rate='abc')", *SIZES)
    assert said.startswith("isornn: own_leaky: mul of values (batch, units) failed: only integer tensors")
    said = refusal("analyze", "--cell", "mine:Failing", *SIZES)
    assert said.startswith("isornn: mine:Failing.update: ValueError: invalid literal") and "(mine.py:" in said


def test_a_module_here_is_found_by_the_shell(mine: Path) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "import sys; sys.path.remove(''); from isornn.cli import main; main()"]
    called = subprocess.run([*command, "cells", "mine:Mine"], capture_output=True, text=True, env=path, check=True)
    assert "mine:Mine" in called.stdout and mine.exists()


# -- training ---------------------------------------------------------------------------------------------------------


def test_train_and_go_on(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TRAINING)
    calls = ("train", "run.toml", "-o", "run", "--device", "cpu")
    assert "'mine' is not imported" in refusal(*calls) and not mine.exists()
    shown = done(*calls, "--allow-import", "mine")
    assert "mine:Mine(3)" in shown
    known = json.loads(Path("run/configuration.json").read_text())["model"]
    assert (known["name"], known["rate"]) == ("mine:Mine", 0.25)
    assert "mine:Mine" in done("diagnose", "run/weights.safetensors", "--cell", "mine:Mine")
    sys.modules.pop("mine")
    assert "'mine' is not imported" in refusal(*calls)
    assert done(*calls, "--allow-import", "mine") == shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.name=mine:Absent", "no such class"),
        ("model.name=mine:Mistaken", "mistaken.update: the state 'h' is not returned"),
        ("model.rate=0.5", "options.rate: it is given twice"),
        ("model.slope=0.5", "model.slope: 0.5 is not allowed; fields are hidden"),
        ("model.name=mine", "model.name: 'mine' is not allowed"),
    ],
)
def test_a_configuration_with_a_mistake(mine: Path, tmp_path: Path, change: str, said: str) -> None:
    (tmp_path / "run.toml").write_text(TRAINING)
    assert said in refusal("train", "run.toml", "--set", change, "--allow-import", "mine")


def test_a_sweep_on_processes(mine: Path, tmp_path: Path) -> None:
    get_reusable_executor().shutdown()  # workers of an earlier test's sweep import from where that one ran
    lines = "\n".join(f"{line}" for line in TRAINING.strip().splitlines())
    (tmp_path / "sweep.toml").write_text(f"[base]\n{lines}\n[grid]\nseed = [0, 1]\n")
    calls = ("sweep", "sweep.toml", "-o", "runs", "--jobs", 2)
    assert "'mine' is not imported" in refusal(*calls) and not mine.exists()
    assert "2 finished" in done(*calls, "--allow-import", "mine")
    assert "2 finished" in done("sweep", "status", "runs")


# -- diagnose ---------------------------------------------------------------------------------------------------------


def test_diagnose_a_model_with_a_layer_of_the_cell(mine: Path) -> None:
    found = json.loads(done("diagnose", "mine:model", "--json"))
    (layer,) = found["layers"]
    assert layer["info"]["cell"] == "mine:Mine"


@pytest.mark.parametrize("wrapped", [False, True])
@every
def test_diagnose_a_checkpoint(name: str, wrapped: bool, tmp_path: Path) -> None:
    model = RNN(CELLS[name], 3, 8, num_layers=2, bidirectional=True)
    tensors = {f"encoder.rnn.{key}": value for key, value in model.state_dict().items()}
    torch.save({"model": tensors} if wrapped else tensors, tmp_path / "checkpoint.pt")
    arguments = ("diagnose", tmp_path / "checkpoint.pt", "--cell", name, "--length", 10)
    found = json.loads(done(*arguments, "--json"))
    assert [layer["info"]["cell"] for layer in found["layers"]] == [name.partition("(")[0]] * 4
    assert f"isornn.nn.RNN of {name.partition('(')[0]}" in done(*arguments)


def test_a_checkpoint_of_another_cell(tmp_path: Path) -> None:
    torch.save(torch.nn.LSTM(3, 8).state_dict(), tmp_path / "checkpoint.pt")
    said = refusal("diagnose", tmp_path / "checkpoint.pt", "--cell", "own_cells:Leaky")
    assert "bias_ih_l0: [32] is not allowed; a layer of own_leaky that fits the others has it of shape [48]" in said
