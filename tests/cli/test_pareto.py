"""``isornn pareto`` and ``isornn isometric --objective``."""

import json
import re
import time
from pathlib import Path

import pytest

from isornn.cli.pareto import _number
from isornn.theory import COSTS
from shell import run

QUICK = ("--cell", "peephole", "--length", "50", "--biases", "redrawn", "--specs", "24")


def test_shows_the_front_and_what_to_take() -> None:
    begun = time.perf_counter()
    result = run("pareto", *QUICK)
    assert (result.exit_code, result.stderr) == (0, "")
    taken = re.search(r"24 specs in (\d+\.\d) s", result.stdout)
    assert taken is not None and float(taken[1]) <= time.perf_counter() - begun + 0.05
    assert "the chosen point" in result.stdout
    assert all(f"{cost}: " in result.stdout for cost in COSTS)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [(2.0, 0.0011, "2.0000 ± 0.0011"), (2.0, 0.0009, "2"), (0.0, 0.1, "0 ± 0.10"), (0.5, 0.0, "0.5")],
)
def test_an_error_is_shown_where_it_reaches_the_digits_of_a_cost(value: float, error: float, shown: str) -> None:
    assert _number(value, error) == shown


def test_json() -> None:
    result = run("pareto", *QUICK, "--objective", "saturation=2", "--json")
    found = json.loads(result.stdout)
    assert found["weights"] == {"isometry": 1.0, "variance": 1.0, "time_scales": 1.0, "saturation": 2.0}
    assert len(found["points"]) == 24 and found["points"][found["taken"]]["front"] and found["undefined"] == {}
    taken = found["points"][found["taken"]]
    assert taken["score"] == pytest.approx(sum(found["weights"][c] * taken["costs"][c] for c in found["weights"]))
    assert found["spec"]["gates"]["f"]["bias_mean"] == taken["fields"]["f.bias_mean"]
    better = [p["score"] for p in found["points"] if p["costs"]["sight"] == 0]
    assert taken["score"] == pytest.approx(min(better))


def test_a_cell_without_gates_says_why() -> None:
    result = run("pareto", "--cell", "vanilla", "--length", "20", "--specs", "8", "--json")
    found = json.loads(result.stdout)
    assert found["points"][0]["costs"]["saturation"] is None
    assert found["undefined"]["saturation"] == {"the cell has no gates": 8}


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_draws(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"front{ending}"
    result = run("pareto", *QUICK, "-o", file, "--y", "f.input_var", "--show", "variance")
    assert result.exit_code == 0 and list(tmp_path.iterdir()) == [file], result.output


def test_ranges_of_ones_own(tmp_path: Path) -> None:
    own = ("--range", "f.bias_mean=2:7", "--range", "g.weight_var=1e-3:1:log", "--fix", "i.input_var=0.5")
    found = json.loads(run("pareto", *QUICK, *own, "--json").stdout)
    assert list(found["ranges"]) == ["f.bias_mean", "g.weight_var"] and found["ranges"]["g.weight_var"]["log"]
    assert found["spec"]["gates"]["i"]["input_var"] == 0.5


def test_isometric_takes_the_same_point(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    result = run("isometric", *QUICK, "--objective", "equal", "-o", file)
    assert result.exit_code == 0 and "xi >= T" in result.stdout and "isornn.init.apply_(module" in result.stdout
    assert json.loads(file.read_text()) == json.loads(run("pareto", *QUICK, "--json").stdout)["spec"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pareto", "--length", "50"), "--cell is needed"),
        (("pareto", "--cell", "peephole"), "--length is needed"),
        (("pareto", *QUICK, "--objective", "beauty=1"), "--objective: 'beauty=1' .* isometry, variance"),
        (("pareto", *QUICK, "--objective", "isometry=much"), "--objective: .* a number of at least 0"),
        (("pareto", *QUICK, "--objective", "isometry=-1"), "objective.isometry: -1.0"),
        (("pareto", *QUICK, "--objective", "isometry=1,isometry=2"), "--objective"),
        (("pareto", *QUICK[:-1], "3"), "specs: 3 .* from 8"),
        (("pareto", *QUICK, "--range", "f.bias_mean"), "--range: 'f.bias_mean' .* FIELD=LOW:HIGH"),
        (("pareto", *QUICK, "--range", "f.bias_mean=1:2:cube"), "--range: 'f.bias_mean=1:2:cube'"),
        (("pareto", *QUICK, "--range", "f.bias_mean=2:1"), "ranges.f.bias_mean: .* LOW is below HIGH"),
        (("pareto", *QUICK, "--range", "q.bias_mean=1:2"), "ranges: 'q.bias_mean' .* GATE of i, f, g, o"),
        (("pareto", *QUICK, "--x", "g.bias_mean"), "--x: 'g.bias_mean' .* fields that vary are f.bias_mean"),
        (("pareto", *QUICK, "--show", "colour"), "--show: 'colour'"),
        (("pareto", *QUICK, "-o", "front.txt"), "--output: 'front.txt'"),
        (("pareto", *QUICK, "--range", "f.bias_mean=1:2", "-o", "front.png"), "--output: .* two fields that vary"),
        (
            ("pareto", *QUICK, "--x", "f.input_var", "--y", "f.input_var", "-o", "front.png"),
            "--y: .* must differ from --x",
        ),
        (("pareto", *QUICK, "--biases", "some"), "biases: 'some'"),
        (("pareto", *QUICK, "--fix", "f.bias_mean=1"), "f.bias_mean: 1.0 .* what sets the length"),
        (("pareto", "--cell", "vanilla", "--length", "9", "--specs", "8", "--show", "saturation"), "has no such cost"),
        (("isometric", *QUICK), "--specs: 24 .* is for --objective"),
        (("isometric", *QUICK[:-2], "--range", "f.bias_mean=1:2"), "--range: .* is for --objective"),
        (("isometric", *QUICK, "--objective", "beauty=1"), "--objective: 'beauty=1'"),
    ],
)
def test_refusals(arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1
    assert re.search(words, result.stderr), result.stderr


@pytest.mark.parametrize("command", [("pareto",), ("isometric", "--objective", "equal")])
def test_an_interrupt_ends_it_in_one_line(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isornn.theory.critical_points.front.costs", interrupted)
    result = run(*command, *QUICK)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "isornn: interrupted\n")
