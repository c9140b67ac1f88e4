"""``isornn spectrum``, as the shell calls it."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

import shell
from isornn.cells import Spec
from isornn.theory import analyze

SPEC = {"cell": "vanilla", "gates": {"h": {"weight_var": 0.5, "input_var": 1}}, "options": {"nonlinearity": "identity"}}
HAAR = {"cell": "vanilla", "gates": {"h": {"weight_var": 1.2, "input_var": 0.1, "ensemble": "orthogonal"}}}
TYPED = {"cell": "t_rnn", "gates": {"f": {"input_var": 2}}, "options": {"gate": "hard_sigmoid"}}


run = partial(shell.run, "spectrum")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, spec in (
        ("gaussian", SPEC),
        ("haar", HAAR),
        ("typed", TYPED),
        ("diverges", SPEC | {"gates": {"h": {"weight_var": 2}}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(spec), encoding="utf-8")
    identity = {"cell": "vanilla", "gates": {"h": {"weight_var": 1, "input_var": 1, "ensemble": "identity"}}}
    (tmp_path / "identity.json").write_text(json.dumps(identity), encoding="utf-8")
    return tmp_path


def test_json_holds_the_density_and_its_moments(folder: Path) -> None:
    result = run(folder / "haar.json", "--json", "--plot", folder / "figure.png")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert len(answer["x"]) == len(answer["density"]) and answer["atoms"] == [] and answer["steps"] == 1
    known = analyze(Spec.from_json(HAAR)).jacobian
    assert answer["edges"][1] == pytest.approx(1.2, rel=2e-3)
    assert answer["mean"] == pytest.approx(known.mean.number(), rel=1e-3)
    assert answer["variance"] == pytest.approx(known.variance.number(), rel=2e-3)
    assert (folder / "figure.png").stat().st_size > 1000


def test_the_table_names_the_atoms(folder: Path) -> None:
    result = run(folder / "typed.json", "--plot", folder / "figure.svg")
    assert result.exit_code == 0 and "mass at 1" in result.stdout and "99.9 % are below" in result.stdout


def test_quantiles_of_sampled_units_are_said_to_be() -> None:
    lines = run("--cell", "lstm", "--hidden", "64", "--inputs", "4").stdout.splitlines()
    assert "Quantiles are of sampled units, without standard errors" in lines[-1]
    assert "sampled" not in run("--cell", "vanilla", "--hidden", "64", "--inputs", "4").stdout


def test_the_table_says_where_the_density_ends(folder: Path) -> None:
    ends = {}
    for name in ("haar", "gaussian"):
        result = run(folder / f"{name}.json")
        assert result.exit_code == 0, result.output
        (ends[name],) = re.findall(r"upper edge\W+(\d[.\d]*)", result.stdout)
    assert float(ends["haar"]) == pytest.approx(1.2, rel=2e-3)
    assert float(ends["gaussian"]) == pytest.approx(4 * 0.5, rel=2e-3)  # Marchenko and Pastur's, of a square matrix


def test_products_of_several_steps(folder: Path) -> None:
    result = run(folder / "typed.json", "--steps", 2, "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout, parse_constant=pytest.fail)
    assert answer["steps"] == 2 and [atom["place"] for atom in answer["atoms"]] == [0.0, 1.0]


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
        (("identity.json",), "identity"),
        (("typed.json", "--steps", "0"), "steps: 0"),
        (("typed.json", "--steps", "two"), "'two' is not a whole number"),
        (("--cell", "lstm", "--hidden", 8, "--inputs", 8, "--init", "other"), "init: 'other'"),
    ],
)
def test_refusals_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str], why: str) -> None:
    monkeypatch.chdir(folder)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert why in result.stderr and result.stderr.count("\n") == 1
