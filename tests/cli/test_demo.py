"""``isornn demo``, as the shell calls it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isornn.cells import Vanilla
from isornn.cells.starts import start
from isornn.cli import ask
from isornn.formatting import with_error
from isornn.theory.analysis import analyze
from shell import refusal, run


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is short, and the predictions are a cheap cell's."""
    cheap = analyze(start("torch", Vanilla(), 128, 64))
    reach = replace(cheap.reach, stderr=torch.full_like(cheap.reach.stderr, 0.03))
    cheap = replace(cheap, reach=reach)
    monkeypatch.setattr(ask, "ask_start", lambda *_: cheap)
    result = run("demo", "--length", "4", "--updates", "2", "--output", tmp_path)
    assert result.exit_code == 0, result.output
    for part in ("torch", "standard", "chrono", "critical", with_error(reach), "UCI digits"):
        assert part in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert len(rows) == 4 and all(row.count(" ± ") == 2 for row in rows)  # of the reach and of the accuracy
    assert f"figure: {tmp_path / 'demo.png'}" in result.stdout
    said = result.stderr.splitlines()
    assert "torch: update 2 of 2, loss" in result.stderr
    assert all(with_error(reach) in line for line in said[:4])
    assert [line.partition(": predicted reach ")[0] for line in said[:4]] == ["torch", "standard", "chrono", "critical"]
    assert json.loads((tmp_path / "demo.json").read_text())["predicted"]["torch"] == cheap.reach.number()
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_a_folder_without_data(tmp_path: Path) -> None:
    said = refusal("demo", "--output", tmp_path / "demo", "--data", "nowhere")
    assert "--data: 'nowhere' is not allowed; it must be a folder" in said
    assert not any(tmp_path.iterdir())
