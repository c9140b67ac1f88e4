"""What every command has: help, errors of one line, refusals of bad options and specs."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import isornn
from isornn.cli import ask
from shell import SIZES, refusal, run


def test_help_comes_without_torch() -> None:
    script = "import sys, isornn.cli; print({'torch', 'scipy', 'matplotlib'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    "command", ["", "cells", "analyze", "compare", "critical", "demo", "isometric", "pareto", "phase", "spectrum"]
)
def test_help(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0 and "Usage" in result.stdout


def test_version() -> None:
    assert run("--version").stdout == f"isornn {isornn.__version__}\n" == f"isornn {version('isornn')}\n"


@pytest.mark.parametrize("module", ["isornn.cli", "isornn.cli.app", "isornn.cli.train"])
def test_an_interrupt_while_the_commands_are_imported_is_one_line(module: str) -> None:
    program = f"""
import sys, signal
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["isornn", "cells"]
from isornn.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "isornn: interrupted\n")


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ask, "analyze", interrupted)
    result = run("analyze", "--cell", "vanilla", *SIZES)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "isornn: interrupted\n")


def test_a_fault_of_ours_is_not_taken_for_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("shapes differ")

    monkeypatch.setattr(ask, "analyze", broken)
    result = run("analyze", "--cell", "vanilla", *SIZES)
    assert result.exit_code == 1 and isinstance(result.exception, ValueError)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("analyse",), ("did you mean analyze? 'analyse'", "analyze, compare")),
        (("Train",), ("did you mean train?",)),
        (("data", "fetsh"), ("did you mean fetch? 'fetsh' is not one of check, fetch",)),
        (("analyze", "--cell", "LSTM", *SIZES), ("did you mean lstm?",)),
        (("analyze", "--cell", "lstm", *SIZES, "--init", "chronos"), ("did you mean chrono? starts are",)),
        (("critical", "--cell", "lstm", "--length", "9", "--fix", "f.input_vra=1"), ("did you mean f.input_var?",)),
        (("critical", "--cell", "lstm", "--data", "none.npy"), ("'none.npy'", "there is no such file")),
        (("reproduce", "lst"), ("did you mean list? targets are",)),
        (("reproduce", "gilboa-fig11"), ("did you mean gilboa-fig",)),
        (("analyze",), ("SPEC.json or --cell is needed", "a cell's name")),
        (("analyze", "--cell", "lstm", "--hidden", "4"), ("--inputs is needed", "per step")),
        (("spectrum", "--cell", "lstm"), ("--hidden is needed", "units")),
        (("phase", "--x", "f.bias_mean=0:1:2", "--y", "i.bias_mean=0:1:2"), ("SPEC.json or --cell is needed",)),
        (("isometric", "--cell", "lstm"), ("--length is needed", "steps to bridge")),
        (("compare", "--cell", "lstm", "--length", "9"), ("--hidden is needed", "units")),
        (("analyze", "--nonsense"), ("--nonsense",)),
        (("analyze", "--cell", "lstn", *SIZES), ("'lstn'", "vanilla, minimal")),
        (("analyze", "--cell", "lstm"), ("--hidden is needed", "units")),
        (("analyze", "--cell", "lstm", "--hidden", "0", "--inputs", "4"), ("hidden: 0", "at least 1")),
        (("analyze", "--cell", "lstm", "--hidden", "4", "--inputs", "-4"), ("inputs: -4", "at least 1")),
        (("analyze", "--cell", "lstm", "--hidden", "many", "--inputs", "4"), ("--hidden", "'many'", "whole number")),
        (("analyze", "--cell", "lstm", "--hidden", "1.5", "--inputs", "4"), ("--hidden", "'1.5'", "whole number")),
        (("analyze", "--cell", "lstm", *SIZES, "--init", "magic"), ("init", "'magic'", "doubled_chrono, critical")),
        (("analyze", "--cell", "lstm", *SIZES, "--init", "chrono"), ("--length is needed", "above 2")),
        (("analyze", "--cell", "lstm", *SIZES, "--init", "chrono", "--length", "2"), ("length: 2", "above 2")),
        (("analyze", "--cell", "lstm", *SIZES, "--init", "critical"), ("--length is needed", "steps to bridge")),
        (
            ("analyze", "--cell", "vanilla", *SIZES, "--init", "chrono", "--length", "9"),
            ("'chrono'", "vanilla has none"),
        ),
        (("analyze", "--cell", "lstm", *SIZES, "--length", "0"), ("length: 0", "from 1 to")),
        (("analyze", "--cell", "lstm", *SIZES, "--input-variance", "-1"), ("input.variance: -1.0", "from 0")),
        (("analyze", "--cell", "lstm", *SIZES, "--input-variance", "nan"), ("input.variance: nan", "finite")),
        (("analyze", "--cell", "lstm", *SIZES, "--input-mean", "-1"), ("input.mean: -1.0", "from 0")),
        (
            ("analyze", "--cell", "lstm", *SIZES, "--input-autocorrelation", "1"),
            ("input.autocorrelation: 1.0", "below 1"),
        ),
        (("analyze", "--cell", "lstm", *SIZES, "--input-correlation", "1.01"), ("1.01", "from -1 to 1")),
        (("analyze", "--cell", "lstm", *SIZES, "--input-correlation", "x"), ("--input-correlation", "'x'", "number")),
        (("analyze", "--cell", "lstm", *SIZES, "--plot", "figure.gif"), ("--plot", "'figure.gif'", ".png")),
        (("analyze", "--cell", "lstm", *SIZES, "--plot", "no/such/figure.png"), ("--plot", "folder that exists")),
        (("analyze", "--cell", "lstm", *SIZES, "--plot", f"{__file__}/figure.png"), ("--plot", "folder that exists")),
        (("analyze", "no/such/spec.json"), ("'no/such/spec.json'", "No such file")),
        (("analyze", "."), ("'.'", "a file that can be read")),
        (("analyze", "spec.json", "--cell", "lstm"), ("--cell: 'lstm'", "SPEC.json")),
        (("analyze", "spec.json", "--hidden", "4"), ("--hidden: 4", "SPEC.json")),
        (("compare", *SIZES, "--length", "9"), ("--cell is needed", "isornn cells")),
        (("compare", "--cell", "lstm", *SIZES), ("--length is needed", "steps to bridge")),
        (("compare", "--cell", "lstm", "--hidden", "0", "--inputs", "1", "--length", "9"), ("hidden: 0", "at least 1")),
        (("critical", "--length", "9"), ("--cell is needed", "isornn cells")),
        (("critical", "--cell", "peephole"), ("--length is needed", "steps to bridge")),
        (("critical", "--cell", "peephole", "--length", "1"), ("length: 1", "from 2")),
        (("critical", "--cell", "peephole", "--length", "9", "--fix", "f.bias_mean"), ("--fix", "FIELD=NUMBER")),
        (("critical", "--cell", "peephole", "--length", "9", "--fix", "=1"), ("--fix: '=1'", "FIELD=NUMBER")),
        (("critical", "--cell", "peephole", "--length", "9", "--fix", "q.bias_mean=1"), ("q.bias_mean", "i, f, g, o")),
        (("critical", "--cell", "peephole", "--length", "9", "--fix", "f.weight_var=-1"), ("-1.0", "from 0")),
        (("isometric", "--cell", "peephole", "--length", "9", "--biases", "some"), ("biases: 'some'", '"redrawn"')),
        (("critical", "--cell", "peephole", "--length", "9", "-o", "spec.txt"), ("--output", "'spec.txt'", ".json")),
        *(
            ((command, "--cell", "gru", "--length", "9", size, "0"), (f"{size[2:]}: 0", "at least 1"))
            for command in ("critical", "isometric", "pareto")
            for size in ("--hidden", "--inputs")
        ),
        (("demo", "--length", "2"), ("--length: 2", "at least 3")),
        (("demo", "--updates", "0"), ("--updates: 0", "at least 1")),
        (("demo", "--seed", "-1"), ("--seed: -1", "at least 0")),
        (("demo", "--output", "/dev/null/demo"), ("--output", "'/dev/null/demo'", "folder")),
    ],
)
def test_bad_options(
    arguments: tuple[str, ...], parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(*arguments)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ([], ("spec", "an object")),
        ({}, ("cell", "names its cell")),
        ({"cell": "lstm", "gates": {"q": {}}}, ("gates.q", "i, f, g, o")),
        ({"cell": "lstm", "gates": {"f": {"weight": 1}}}, ("gates.f.weight", "weight_var")),
        ({"cell": "lstm", "gates": {"f": {"weight_var": -1}}}, ("gates.f.weight_var: -1", "from 0")),
        ({"cell": "lstm", "gates": {"f": {"weight_var": "1"}}}, ("gates.f.weight_var: '1'", "number")),
        ({"cell": "lstm", "gates": {"f": {"weight_var": float("nan")}}}, ("gates.f.weight_var: nan", "finite")),
        ({"cell": "lstm", "gates": {"f": {"weight_var": 10**400}}}, ("gates.f.weight_var", "from 0")),
        ({"cell": "lstm", "gates": {"f": {"bias_law": {"chrono": 10**400}}}}, ("gates.f.bias_law", "chrono")),
        ({"cell": "t_rnn", "gates": {"f": {"weight_var": 1}}}, ("gates.f.weight_var: 1", "does not read")),
        ({"cell": "lstm", "options": {"gate": "relu"}}, ("options.gate: 'relu'", "hard_sigmoid")),
        ({"cell": "lstm", "options": {"speed": 1}}, ("options.speed", "gate")),
        ({"cell": "lstm", "input": {"correlation": -2}}, ("input.correlation: -2", "from -1 to 1")),
        ({"cell": "lstm", "biases": "often"}, ("biases: 'often'", "redrawn")),
        ({"cell": "lstm", "a\nb\ud800": 1}, ("fields are",)),
        ({"cell": "vanilla", "gates": {"h": {"weight_vra": 1}}}, ("did you mean weight_var? fields are",)),
    ],
)
def test_bad_specs(data: Any, parts: tuple[str, ...], spec_file: Callable[[Any], Path]) -> None:
    line = refusal("analyze", spec_file(data))
    for part in parts:
        assert part in line


def test_a_file_that_is_not_json(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_bytes(b"\xff\xfe{")
    assert "it must be JSON" in refusal("analyze", file)
