"""``isornn analyze``, as the shell calls it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isornn.cells import GRU, LSTM
from isornn.cells.starts import STARTS, start
from isornn.theory.compared_starts import compare
from shell import PEEPHOLE, SIZES, answer, run

KEYS = {"cell", "engine", "fixed_point", "chi", "xi", "chi_1", "reach", "jacobian", "stderr", "undefined", "spec"}


def test_analyze_torchs_lstm() -> None:
    found = answer("analyze", "--cell", "lstm", *SIZES, "--init", "torch")
    assert found.keys() >= KEYS
    assert found["engine"] == "population"
    assert found["chi"] == pytest.approx(0.275, abs=0.003)
    assert found["xi"] == pytest.approx(0.78, abs=0.01)
    assert 0 < found["stderr"]["chi"] < 0.01
    assert found["spec"] == start("torch", LSTM(), 128, 49).to_json()


def test_analyze_a_spec_file(spec_file: Callable[[Any], Path]) -> None:
    found = answer("analyze", spec_file(PEEPHOLE))
    assert found["engine"] == "quadrature"
    assert found["fixed_point"]["second_moment"] == pytest.approx(0.69356, rel=1e-4)
    assert found["jacobian"]["mean"] == pytest.approx(1.14694, rel=1e-4)
    assert found == answer("analyze", spec_file(found["spec"]))


def test_options_of_the_input_win_over_the_file(spec_file: Callable[[Any], Path]) -> None:
    file = spec_file({**PEEPHOLE, "input": {"variance": 2, "correlation": 0.25}})
    assert answer("analyze", file)["spec"]["input"] == {"variance": 2, "correlation": 0.25}
    found = answer("analyze", file, "--input-correlation", "0.5")
    assert found["spec"]["input"] == {"variance": 2, "correlation": 0.5}


@pytest.mark.parametrize("name", STARTS)
def test_every_start_is_analysed(name: str) -> None:
    found = answer("analyze", "--cell", "gru_cho", *SIZES, "--init", name, "--length", "30")
    assert found["fixed_point"]["converged"] is (name != "identity")


@pytest.mark.parametrize("cell", ["lru", "rg_lru"])
def test_torchs_start_of_cells_whose_units_differ_has_fixed_biases(cell: str) -> None:
    found = answer("analyze", "--cell", cell, *SIZES, "--init", "torch")
    assert found["spec"]["biases"] == "fixed"
    assert found["reach"] > 2


def test_what_does_not_settle_is_an_answer(spec_file: Callable[[Any], Path]) -> None:
    data = {"cell": "vanilla", "options": {"nonlinearity": "relu"}, "gates": {"h": {"weight_var": 4, "input_var": 1}}}
    found = answer("analyze", spec_file(data))
    assert found["fixed_point"]["converged"] is False
    assert [found[name] for name in ("chi", "xi", "chi_1", "reach", "jacobian")] == [None] * 5
    assert found["undefined"].keys() >= {"chi", "xi", "chi_1", "reach", "jacobian", "fixed_point.mean"}


def test_people_get_a_table_and_a_sentence() -> None:
    result = run("analyze", "--cell", "peephole", *SIZES, "--init", "standard", "--length", "200")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "exact (residual" in result.stdout
    assert "falls to 1/e in 2.715 steps, far fewer than the required 200" in result.stdout


def test_people_get_errors_and_reasons() -> None:
    result = run("analyze", "--cell", "gru", *SIZES)
    assert "± " in result.stdout and "known for cells with one state" in result.stdout
    values = re.findall(r"│ (\d+\.(\d+)) +│ ± \d+\.(\d+) ", result.stdout)
    assert values and all(len(digits) == len(of_error) for _, digits, of_error in values), values


def test_what_is_left_after_the_required_steps_has_the_error_of_a_time_scale_from_samples() -> None:
    said = run("analyze", "--cell", "gru", *SIZES, "--init", "standard", "--length", "20").stdout
    shown = re.findall(r"its norm is (\S+) ± (\S+) times", " ".join(said.split()))
    left, error = map(float, shown[0])
    found = next(one for one in compare(GRU(), 20, hidden=128, inputs=49).starts if one.name == "standard")
    assert found.left is not None and found.left_stderr is not None and error > 0
    assert left == pytest.approx(found.left, abs=3 * (error + found.left_stderr))


def test_the_figure_leaves_stdout_alone(tmp_path: Path) -> None:
    file = tmp_path / "figure.png"
    result = run("analyze", "--cell", "vanilla", *SIZES, "--json", "--plot", file)
    assert result.exit_code == 0 and json.loads(result.stdout)["cell"] == "vanilla"
    assert str(file) in result.stderr
    assert file.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [file]
