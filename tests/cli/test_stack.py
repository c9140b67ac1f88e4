"""``isornn analyze`` of several layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isornn.cells import Spec
from isornn.cli.app import app
from isornn.theory import analyze_stack

LAYER = {"cell": "vanilla", "gates": {"h": {"weight_var": 1.0, "input_var": 1.0}}}


@pytest.fixture
def layer(tmp_path: Path) -> str:
    file = tmp_path / "layer.json"
    file.write_text(json.dumps(LAYER))
    return str(file)


def test_files_are_layers_from_the_bottom(layer: str) -> None:
    result = CliRunner().invoke(app, ["analyze", layer, layer, "--input-variance", "2", "--json"])
    assert result.exit_code == 0
    spec = Spec.load(layer)
    answer = analyze_stack([spec.replace("input.variance", 2.0), spec])
    assert json.loads(result.stdout) == json.loads(json.dumps(answer.to_json()))


def test_the_tables_show_layers_and_the_stack(layer: str) -> None:
    result = CliRunner().invoke(app, ["analyze", layer, layer, "--tied", "--steps", "4"])
    assert result.exit_code == 0
    assert "1.088" in result.stdout and "1.441" in result.stdout and "after 4 steps" in result.stdout


@pytest.mark.parametrize(
    ("change", "arguments", "parts"),
    [
        ({"input": {"variance": 2.0}}, (), ("layers[1]", "input")),
        ({"cell": "minimal", "gates": {"u": {"weight_var": 1.0}}}, (), ("minimal",)),
        ({"gates": {"h": {"weight_var": 1.0, "ensemble": "identity"}}}, (), ("identity matrices",)),
        ({}, ("--plot", "figure.png"), ("--plot", "one layer")),
        ({}, ("--cell", "lstm"), ("--cell: 'lstm'", "SPEC.json")),
    ],
)
def test_stacks_that_cannot_be(
    layer: str, tmp_path: Path, change: dict[str, object], arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    above = tmp_path / "above.json"
    above.write_text(json.dumps(LAYER | change))
    result = CliRunner().invoke(app, ["analyze", layer, str(above), *arguments])
    assert result.exit_code == 2 and result.stdout == "", result.output
    assert all(part in result.stderr for part in parts), result.stderr
