"""``isornn critical`` and ``isornn isometric``, as the shell calls them."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import isornn
from shell import SIZES, answer, refusal, run

_FOR_DATA = ("critical", "--cell", "lstm", "--data")


def test_critical_reaches_the_length(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    result = run("critical", "--cell", "peephole", "--length", "100", "-o", file, "--json")
    found = json.loads(result.stdout)
    assert found.keys() == {"spec", "length", "achieved", "conditions", "python"}
    assert found["achieved"]["reach"] == pytest.approx(100, rel=0.01) and "spec" not in found["achieved"]
    assert all(condition.keys() == {"name", "wanted", "found", "met"} for condition in found["conditions"])
    assert json.loads(file.read_text()) == found["spec"] and list(tmp_path.iterdir()) == [file]
    assert answer("analyze", file)["reach"] == pytest.approx(100, rel=0.01)


def test_critical_takes_sizes_as_other_commands_do() -> None:
    asked = ("critical", "--cell", "lstm", "--length", "50")
    assert answer(*asked, *SIZES) == answer(*asked)


def test_each_number_that_was_found_has_its_error_or_is_exact() -> None:
    sampled = answer("critical", "--cell", "lstm", "--length", "50", "--fix", "f.weight_var=1e-3")["conditions"]
    assert all("±" in condition["found"] for condition in sampled)
    exact = answer("critical", "--cell", "peephole", "--length", "50", "--fix", "f.weight_var=0")["conditions"]
    assert exact[1]["found"].endswith(" (exact)")


def test_a_long_length_has_a_reach_and_lines_say_that_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isornn.cli.progress.PATIENCE", 0.2)
    result = run("critical", "--cell", "lstm", "--length", "20000", "--json")
    found = json.loads(result.stdout)
    assert found["achieved"]["reach"] == pytest.approx(1.02 * 20000, rel=0.01)
    assert all(condition["met"] for condition in found["conditions"])
    assert re.fullmatch(r"(isornn: analysing, for \d+ s so far\n)+", result.stderr)


def test_critical_keeps_what_is_fixed() -> None:
    found = answer(
        "critical", "--cell", "peephole", "--length", "50", "--fix", "g.input_var=0.5", "--fix", "o.bias_mean=1"
    )
    assert found["spec"]["gates"]["g"]["input_var"] == 0.5
    assert found["spec"]["gates"]["o"]["bias_mean"] == 1.0


def test_critical_for_a_batch(tmp_path: Path) -> None:
    batch = 3 + 0.5 * torch.randn(40, 60, 4, generator=torch.Generator().manual_seed(0))
    file, short = tmp_path / "batch.pt", tmp_path / "short.npy"
    torch.save(batch, file)
    done = run("critical", "--cell", "torch.nn.LSTM", "--data", file)
    assert (
        "isornn: input: mean 2.99 (root mean square over features), standard deviation 0.501 (input weights"
        in done.stderr
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("isornn.init")]
    assert line == "isornn.init.critical_(module, length=60, batch=batch)"
    module = torch.nn.LSTM(4, 500, batch_first=True)
    exec(line, {"isornn": isornn, "module": module, "batch": batch})
    spec = json.loads(done.stdout[: done.stdout.index("\n}\n") + 3])
    found = isornn.init.spec_of(module).gates
    for gate in "ifgo":
        assert spec["gates"][gate].get("input_var", 0.0) == pytest.approx(found[gate].input_var, rel=0.1)
    np.save(short, np.zeros((3, 4), np.float32))
    assert "(sequences, steps, features) of real numbers, not (3, 4) of float32" in refusal(
        "critical", "--cell", "lstm", "--data", short
    )
    np.save(short, np.zeros((3, 4, 5), np.complex64))
    assert "of real numbers, not (3, 4, 5) of complex64" in refusal("critical", "--cell", "lstm", "--data", short)
    np.save(short, np.random.default_rng(0).normal(size=(64, 1, 4)))
    one = ("critical", "--cell", "lstm", "--data", short)
    assert "is not allowed; its sequences have one step; give --length" in refusal(*one)
    assert run(*one, "--length", "20").exit_code == 0
    other = ("critical", "--cell", "lstm", "--data", file, "--inputs", "3")
    assert "--inputs: 3 is not allowed; it must be 4, as many as --data has" in refusal(*other)
    both = ("critical", "--cell", "lstm", "--data", file, "--input-variance", "2")
    assert "--data has its own" in refusal(*both)
    torch.save(batch / 0, file)
    assert "all of its numbers must be finite" in refusal("critical", "--cell", "lstm", "--data", file)
    torch.save(1e-20 * batch, file)
    assert "standard deviation of its input" in refusal("critical", "--cell", "lstm", "--data", file)


@pytest.mark.parametrize(
    ("mean", "last", "words"),
    [(500.0, 1.0, "have means of up to 5.. times their"), (0.0, 1e4, "have standard deviations of .* to 1e\\+04")],
)
def test_data_that_are_not_normalised_are_named(tmp_path: Path, mean: float, last: float, words: str) -> None:
    file, noise = tmp_path / "batch.npy", np.random.default_rng(0).normal(size=(20, 60, 4))
    np.save(file, mean + noise * [1, 1, 1, last])
    assert re.search(rf"isornn: the features of '.*batch\.npy' {words}", run(*_FOR_DATA, file).stderr)
    np.save(file, noise)
    assert "standardise" not in run(*_FOR_DATA, file).stderr


def test_isometric_with_biases_redrawn_sets_xi() -> None:
    found = answer("isometric", "--cell", "peephole", "--length", "50", "--biases", "redrawn")
    assert found["spec"]["biases"] == "redrawn"
    assert found["achieved"]["xi"] == pytest.approx(50, rel=0.01)


def test_people_get_the_line_that_applies_it() -> None:
    result = run("isometric", "--cell", "peephole", "--length", "50")
    assert result.exit_code == 0
    assert "isornn.init.isometric_(module, length=50)" in result.stdout
    assert "reach = T" in result.stdout


def test_critical_gives_the_line_of_the_default_start() -> None:
    result = run("critical", "--cell", "peephole", "--length", "50")
    assert result.exit_code == 0
    assert "isornn.init.critical_(module, length=50)" in result.stdout
    assert "T times the first step's share of the state" in result.stdout


def test_a_start_without_conditions_has_no_table_of_them() -> None:
    told = run("critical", "--cell", "vanilla(nonlinearity='relu')", "--length", "50").stdout
    assert '"ensemble": "identity"' in told and "identity matrices" in told and "condition" not in told


def test_a_field_is_fixed_once() -> None:
    asked = ("critical", "--cell", "lstm", "--length", "50", "--fix", "f.input_var=1", "--fix", "f.input_var=2")
    assert "--fix: 'f.input_var=2' is not allowed; f.input_var is fixed once, and is 1 already" in refusal(*asked)


def test_lengths_of_starts_have_one_range() -> None:
    for length in ("-5", "1", "2000000"):
        assert "it must be a number of steps from 2 to 1000000" in refusal(
            "critical", "--cell", "lstm", "--length", length
        )


def test_options_of_an_objective_need_one() -> None:
    for specs in ("0", "7"):
        said = refusal("isometric", "--cell", "lstm", "--length", "50", "--specs", specs)
        assert said.endswith("it is for --objective, without which no specs are searched\n")


@pytest.mark.parametrize("command", ["critical", "isometric"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_the_law_of_the_input_is_checked_by_name(command: str, value: str) -> None:
    said = refusal(command, "--cell", "lstm", "--length", "50", "--input-variance", value)
    assert said.startswith("isornn: input.variance: ")
