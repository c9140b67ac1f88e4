"""``isornn spectrum``, as the shell calls it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app

SPEC = {"cell": "vanilla", "gates": {"h": {"weight_var": 0.5, "input_var": 1}}, "options": {"nonlinearity": "identity"}}
TYPED = {"cell": "t_rnn", "gates": {"f": {"input_var": 2}}, "options": {"gate": "hard_sigmoid"}}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["spectrum", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, spec in (("gaussian", SPEC), ("typed", TYPED), ("diverges", SPEC | {"gates": {"h": {"weight_var": 2}}})):
        (tmp_path / f"{name}.json").write_text(json.dumps(spec), encoding="utf-8")
    margin = {"cell": "vanilla", "gates": {"h": {"weight_var": 1, "input_var": 1, "ensemble": {"margin": 0.2}}}}
    (tmp_path / "margin.json").write_text(json.dumps(margin), encoding="utf-8")
    return tmp_path


def test_json_holds_the_density_and_its_moments(folder: Path) -> None:
    result = run(folder / "gaussian.json", "--json", "--plot", folder / "figure.png")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert len(answer["x"]) == len(answer["density"]) and answer["atoms"] == []
    assert answer["edges"] == [0.0, pytest.approx(2.0, rel=2e-3)]
    assert (answer["mean"], answer["variance"]) == (pytest.approx(0.5, rel=1e-3), pytest.approx(0.25, rel=2e-3))
    assert (folder / "figure.png").stat().st_size > 1000


def test_the_table_names_the_atoms(folder: Path) -> None:
    result = run(folder / "typed.json", "--plot", folder / "figure.svg")
    assert result.exit_code == 0 and "mass at 1" in result.stdout and "99.9 % lie below" in result.stdout


def test_a_start_instead_of_a_file() -> None:
    result = run("--cell", "t_rnn", "--hidden", 64, "--inputs", 8)
    assert result.exit_code == 0 and "t_rnn" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "--cell"),
        (("no/such.json",), "No such file"),
        (("gaussian.json", "--cell", "lstm"), "SPEC.json says that itself"),
        (("gaussian.json", "--plot", "figure.gif"), ".png"),
        (("diverges.json",), "no fixed point"),
        (("margin.json",), "gates.h.ensemble"),
        (("--cell", "lstm", "--hidden", 8, "--inputs", 8, "--init", "other"), "init: 'other'"),
    ],
)
def test_refusals_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str], why: str) -> None:
    monkeypatch.chdir(folder)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert why in result.stderr and result.stderr.count("\n") == 1
