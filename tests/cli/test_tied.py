"""``isornn analyze --tied``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isornn.cli.app import app
from shell import PEEPHOLE


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(PEEPHOLE))
    return str(file)


def test_json_has_the_lines_and_their_errors(spec: str) -> None:
    """E[h^2] at steps 1, 3, 6: .108, .391, 1.376 in six networks of N = 1500, .109, .386, 1.342 in 32 of N = 1000."""
    result = CliRunner().invoke(app, ["analyze", spec, "--tied", "--steps", "6", "--json"])
    assert result.exit_code == 0
    tied = json.loads(result.stdout)["tied"]
    assert len(tied["second_moment"]) == len(tied["correlation"]) == len(tied["stderr"]["second_moment"]) == 6
    assert [tied["second_moment"][t - 1] for t in (1, 3, 6)] == pytest.approx([0.108, 0.387, 1.36], rel=0.015)
    assert tied["lyapunov"] > 0 and tied["stderr"]["lyapunov"] < 0.05 * tied["lyapunov"]
    assert tied["differs_from"] == 3 and tied["xi"] is None and "xi" in tied["undefined"]


def test_the_table_shows_both_and_says_where_they_part(spec: str, tmp_path: Path) -> None:
    figure = tmp_path / "figure.svg"
    result = CliRunner().invoke(app, ["analyze", spec, "--tied", "--steps", "6", "--plot", str(figure)])
    assert result.exit_code == 0 and figure.exists()
    assert "untied E[h^2]" in result.stdout and "From step 3 on" in result.stdout
    assert "grows by a factor 1." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--steps", "5"), ("--steps: 5", "--tied")),
        (("--tied", "--steps", "1"), ("steps: 1", "from 2 to 1000")),
        (("--tied", "--steps", "1001"), ("steps: 1001", "from 2 to 1000")),
    ],
)
def test_steps_that_cannot_be(spec: str, arguments: tuple[str, ...], parts: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["analyze", spec, *arguments])
    assert result.exit_code == 2 and result.stdout == ""
    assert all(part in result.stderr for part in parts)


def test_identity_matrices_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"cell": "vanilla", "gates": {"h": {"weight_var": 1, "ensemble": "identity"}}}))
    result = CliRunner().invoke(app, ["analyze", str(file), "--tied"])
    assert result.exit_code == 2 and "identity matrices" in result.stderr
