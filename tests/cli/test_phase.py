"""``isornn phase``."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app

AXES = ("--x", "z.bias_mean=0:3:6", "--y", "n.weight_var=0.5:4:5:log")
CHO = ("--cell", "gru_cho", *AXES)


def phase(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["phase", *map(str, arguments)], env={"COLUMNS": "200"})


def test_sums_a_map_up() -> None:
    result = phase(*CHO)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "30 specs by quadrature" in result.stdout and "xi: from " in result.stdout
    assert "fixed point" not in result.stdout


def test_the_spec_is_not_replaced_by_its_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = Path("spec.json")
    spec.write_text('{"cell": "vanilla"}', encoding="utf-8")
    axes = ("--x", "h.weight_var=0.5:1:2", "--y", "h.bias_var=0:1:2")
    result = phase(spec, *axes, "-o", tmp_path / "spec.json")
    assert result.exit_code == 2 and "it must be another file than SPEC.json" in result.stderr, result.output
    assert spec.read_text(encoding="utf-8") == '{"cell": "vanilla"}'


def test_says_how_many_have_no_fixed_point(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    linear = {"cell": "vanilla", "options": {"nonlinearity": "identity"}, "gates": {"h": {"input_var": 1}}}
    spec.write_text(json.dumps(linear), encoding="utf-8")
    result = phase(spec, "--x", "h.weight_var=0.55:1.45:10", "--y", "h.bias_mean=0:1:2", "--show", "m1")
    assert result.exit_code == 0, result.output
    assert "without a fixed point: 50 % of the specs" in result.stdout
    assert "no finite m1" in result.stdout and "grows without bound" in result.stdout


@pytest.mark.parametrize("ending", [".png", ".npz", ".json"])
def test_writes_a_file(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"map{ending}"
    result = phase(*CHO, "--show", "reach", "-o", file, "--overlay", "6:10")
    assert result.exit_code == 0 and str(file) in result.stderr.replace("\n", ""), result.output
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_picture_and_the_numbers_at_once(tmp_path: Path) -> None:
    files = [tmp_path / "map.png", tmp_path / "map.json"]
    result = phase(*CHO, "-o", files[0], "-o", files[1])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.json", "map.png"]


def test_a_start_is_the_base() -> None:
    result = phase(*CHO, "--hidden", "64", "--inputs", "8", "--init", "torch")
    assert result.exit_code == 0 and "30 specs" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*AXES,), "SPEC.json or --cell is needed"),
        (("--cell", "gru_cho", *AXES[:2]), "--y is needed"),
        ((*CHO, "--show", "colour"), "--show: 'colour' is not allowed; it must be one of xi, chi"),
        ((*CHO, "-o", "map.txt"), "--output: 'map.txt'"),
        ((*CHO, "-o", "nowhere/map.png"), "--output: 'nowhere/map.png'"),
        ((*CHO, "--overlay", "6"), "--overlay: '6' is not allowed; it must be K:T"),
        ((*CHO, "--overlay", "6:-1"), "--overlay: '6:-1' .* above 0"),
        ((*CHO, "--init", "nonsense"), "init: 'nonsense'"),
        ((*CHO, "--init", "torch"), "--hidden is needed"),
        (("--cell", "gru_cho", "--x", "z.bias_mean", *AXES[2:]), "--x: 'z.bias_mean' .* FIELD=FROM:TO:COUNT"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=a:1:3", *AXES[2:]), "--x: 'z.bias_mean=a:1:3'"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=0:1:3:cube", *AXES[2:]), "--x: 'z.bias_mean=0:1:3:cube'"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=0:1:1", *AXES[2:]), "COUNT is a whole number from 2"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=1:0:3", *AXES[2:]), "FROM is below TO"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=0:inf:3", *AXES[2:]), "both are finite"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=0:1:3:log", *AXES[2:]), "FROM is above 0"),
        (("--cell", "gru_cho", "--x", "z.bias_mean=0:1:2000", "--y", "r.bias_mean=0:1:2000"), "at most 1000000 specs"),
        (("--cell", "gru_cho", "--x", "f.bias_mean=0:1:3", *AXES[2:]), "axis: 'f.bias_mean' .* GATE of r, z, n"),
        (("--cell", "gru_cho", "--x", "n.weight_var=-1:1:3", *AXES[2:]), "n.weight_var: -1.0"),
        (("spec.json", *CHO), "--cell: 'gru_cho' .* SPEC.json says that itself"),
        (("no_such.json", *AXES), "SPEC.json: 'no_such.json'"),
    ],
)
def test_refusals(arguments: tuple[str, ...], words: str) -> None:
    result = phase(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1
    assert re.search(words, result.stderr), result.stderr


def test_a_line_that_runs_nowhere_is_said(tmp_path: Path) -> None:
    result = phase(*CHO, "--overlay", "6:1e9", "-o", tmp_path / "map.png", "-o", tmp_path / "map.npz")
    assert result.exit_code == 0 and result.stderr.count("--overlay 6:1e+09: no line; xi = 1.667e+08 is nowhere") == 1


def test_tied_networks(tmp_path: Path) -> None:
    file = tmp_path / "map.png"
    axes = ("--x", "h.weight_var=0.5:1.2:2", "--y", "h.bias_mean=0:1:2")
    result = phase("--cell", "vanilla", *axes, "--tied", "--steps", 20, "--show", "lyapunov", "-o", file)
    assert result.exit_code == 0 and file.exists(), result.output
    assert "4 specs by tied" in result.stdout and "relative standard error" in result.stdout
    few = phase("--cell", "vanilla", *axes, "--tied", "--steps", 3, "-o", file)
    assert "steps: 3 is not allowed; it must be a number of steps from 4 to 1000" in few.stderr
    assert "tied_steps" not in few.stderr
    refused = phase("--cell", "vanilla", *axes, "--tied", "--show", "m1")
    assert refused.exit_code == 2 and "--show: 'm1'" in refused.stderr and "lyapunov" in refused.stderr


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a map: one line, no traceback, and the same call goes on from what is kept."""
    command = [sys.executable, "-m", "isornn", "phase", "--cell", "peephole", "--x", "f.bias_mean=0:6:20000"]
    command += ["--y", "g.weight_var=1:2:2", "-o", str(tmp_path / "map.npz")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    kept = tmp_path.glob
    while not list(kept(".map.npz.*.begun.npz")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors
    assert "resumes from there" in errors and not (tmp_path / "map.npz").exists()
    # Of another map with the same output nothing is taken, and nothing is lost.
    (first,) = kept(".map.npz.*.begun.npz")
    shorter = ("--x", "f.bias_mean=0:6:2", "--y", "g.weight_var=1:2:2", "-o", tmp_path / "map.npz")
    assert phase("--cell", "peephole", *shorter).exit_code == 0
    assert first.exists() and (tmp_path / "map.npz").exists()
