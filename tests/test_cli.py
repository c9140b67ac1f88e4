"""The commands, as the shell calls them."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import isornn
from isornn.cells import CELLS, LSTM, Gate, Input, Peephole, Spec, SpecError, Vanilla
from isornn.cells.catalogue import OF_TORCH
from isornn.cells.starts import IN_USE, STARTS, TEXTBOOK, start
from isornn.cli import app, ask
from isornn.cli.reading import sentence
from isornn.formatting import with_error_of
from isornn.nn.kernels.numba_source import source_of
from isornn.nn.kernels.schedule import schedule_of
from isornn.theory.analysis import analyze
from isornn.theory.starts import compare, left_after, verdict

SIZES = ("--hidden", "128", "--inputs", "49")
KEYS = {"cell", "engine", "fixed_point", "chi", "xi", "chi_1", "reach", "jacobian", "stderr", "undefined", "spec"}
PEEPHOLE = {
    "cell": "peephole",
    "gates": {
        "i": {"weight_var": 2, "input_var": 0.5, "bias_mean": 0.5},
        "f": {"weight_var": 4, "input_var": 1, "bias_var": 0.1, "bias_mean": 2},
        "g": {"weight_var": 3, "input_var": 0.5},
    },
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def answer(*arguments: object) -> dict[str, Any]:
    """The one JSON object on stdout, from a call that says nothing else."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def refusal(*arguments: object) -> str:
    """The one line on stderr of a call that is refused."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith("isornn: ") and result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[Any], Path]:
    def write(data: Any) -> Path:
        file = tmp_path / "spec.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        return file

    return write


# -- the shell --------------------------------------------------------------------------------------------------------


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


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("analyse",), ("'analyse'", "analyze, compare")),
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
        (("analyze", "no/such/spec.json"), ("'no/such/spec.json'", "No such file")),
        (("analyze", "."), ("'.'", "readable")),
        (("analyze", "spec.json", "--cell", "lstm"), ("--cell: 'lstm'", "SPEC.json")),
        (("analyze", "spec.json", "--hidden", "4"), ("--hidden: 4", "SPEC.json")),
        (("compare", *SIZES, "--length", "9"), ("--cell is needed", "isornn cells")),
        (("compare", "--cell", "lstm", *SIZES), ("--length is needed", "steps to bridge")),
        (("compare", "--cell", "lstm", "--hidden", "0", "--inputs", "1", "--length", "9"), ("hidden: 0", "at least 1")),
        (("critical", "--length", "9"), ("--cell is needed", "isornn cells")),
        (("critical", "--cell", "peephole"), ("--length is needed", "steps to bridge")),
        (("critical", "--cell", "peephole", "--length", "1"), ("length: 1", "from 2")),
        (("critical", "--cell", "peephole", "--length", "9", "--fix", "f.bias_mean"), ("--fix", "FIELD=NUMBER")),
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
        (("demo", "--out", "/dev/null/demo"), ("--out", "'/dev/null/demo'", "folder")),
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


# -- cells ------------------------------------------------------------------------------------------------------------


def test_cells_lists_all_nine() -> None:
    result = run("cells")
    assert result.exit_code == 0
    for name, kind in CELLS.items():
        assert name in result.stdout
        for gate in kind.gates:
            assert f"{gate}: " in result.stdout
        for equation in kind.equations:
            assert equation in result.stdout
    for part in ("n: gated state, input", "u: state, input (also enters pointwise)", "f: input, previous input"):
        assert part in result.stdout
    assert "nonlinearity: tanh, sigmoid, relu, identity" in result.stdout


def test_cells_print_their_kernel_or_why_there_is_none() -> None:
    source = run("cells", "lstm", "--kernel").stdout
    compile(source, "kernel", "exec")
    assert source == source_of(schedule_of(LSTM()))
    pairs = run("cells", "isornn.cells.vanilla:Vanilla(nonlinearity='oplu')", "--kernel")
    assert (pairs.exit_code, pairs.stdout) == (0, "no kernel: vanilla is not pointwise\n")
    refused = run("cells", "--kernel")
    assert refused.exit_code == 2 and "it is for one cell, as isornn cells lstm --kernel" in refused.stderr


# -- analyze ----------------------------------------------------------------------------------------------------------


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
    assert "1/e of its first value in 2.715 steps, far fewer than the required 200" in result.stdout


def test_people_get_errors_and_reasons() -> None:
    result = run("analyze", "--cell", "gru", *SIZES)
    assert "± " in result.stdout and "known for cells with one state" in result.stdout


def test_the_figure_leaves_stdout_alone(tmp_path: Path) -> None:
    file = tmp_path / "figure.png"
    result = run("analyze", "--cell", "vanilla", *SIZES, "--json", "--plot", file)
    assert result.exit_code == 0 and json.loads(result.stdout)["cell"] == "vanilla"
    assert str(file) in result.stderr
    assert file.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [file]


# -- what numbers mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 5])
def test_fits_is_within_a_factor_of_2(length: int) -> None:
    """What a start promises of its length, and no more: a GRU's reach is 0.61 of the length."""
    memory = Spec(Vanilla("identity"), {"h": Gate(weight_var=0.7, ensemble="orthogonal")})
    answer = analyze(memory, length=10)  # its reach is -1 / ln 0.7 = 2.8 steps
    assert verdict(answer, length) == "fits"
    assert f"within a factor of 2 of the required {length}" in sentence(answer, length)


@pytest.mark.parametrize(("length", "word"), [(30, "long"), (74, "fits"), (200, "short"), (1000, "blind")])
def test_verdicts(length: int, word: str) -> None:
    """xi is 74 steps: sigma(5)^2 = .98666."""
    analysis = analyze(Spec(Peephole(), {"f": Gate(bias_mean=5.0), "g": Gate(weight_var=1e-5, input_var=1.0)}))
    assert verdict(analysis, length) == word


def test_a_change_that_does_not_fade_is_endless() -> None:
    analysis = analyze(Spec(Vanilla("identity"), {"h": Gate(weight_var=1.0)}))
    assert verdict(analysis, 10) in ("endless", "unknown")
    assert sentence(analysis, 10).startswith("No number of steps can be given: ")


def test_what_is_left_is_continued_by_chi() -> None:
    spec = Spec(Peephole(), {"f": Gate(bias_mean=2.0), "g": Gate(weight_var=0.1, input_var=1.0)})
    whole, part = analyze(spec, length=60), analyze(spec, length=20)
    assert left_after(part, 60) == pytest.approx(left_after(whole, 60), rel=1e-6)


def test_what_is_left_is_a_norm_as_in_reports() -> None:
    """A single unit that keeps .9 of its state: .9^9 of a change's norm after 10 steps, relative to one step."""
    memory = Vanilla("identity")
    spec = Spec(memory, {"h": Gate(weight_var=0.81, ensemble="orthogonal")})
    assert left_after(analyze(spec, length=10), 10) == pytest.approx(0.9**9, rel=1e-6)


# -- compare ----------------------------------------------------------------------------------------------------------


def test_compare_puts_the_closest_reach_first() -> None:
    found = answer("compare", "--cell", "peephole", *SIZES, "--length", "100")
    names = [row["start"] for row in found["starts"]]
    assert set(names) == {*TEXTBOOK, "critical"}
    assert names[0] == "critical" and names[-1] == "identity"
    first, last = found["starts"][0], found["starts"][-1]
    assert first["reach"] == pytest.approx(100, rel=0.01) and first["verdict"] == "fits"
    assert last["reach"] is None and "identity" in last["reason"]


def test_compare_from_python_is_the_command() -> None:
    found = compare(Vanilla(), 30, hidden=64, inputs=32, input=Input(2.0, 0.5))
    sizes, law = ("--hidden", "64", "--inputs", "32"), ("--input-variance", "2", "--input-correlation", ".5")
    assert found.to_json() == answer("compare", "--cell", "vanilla", *sizes, "--length", "30", *law)
    shown = str(found).splitlines()
    assert shown[0] == "vanilla, N = 64, D = 32, T = 30" and len(shown) == 2 + len(found.starts)
    assert all(line.split()[0] == one.name for line, one in zip(shown[2:], found.starts, strict=True))
    assert found._repr_html_().count("<tr>") == 1 + len(found.starts)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"length": 0}, "length: 0"),
        ({"length": 9.5}, "length: 9.5 is not allowed; it is a whole number"),
        ({"hidden": 0}, "hidden: 0"),
        ({"input": Input(torch.ones(2))}, "input: .* one law, not a batch"),
    ],
)
def test_compare_from_python_refuses(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        compare(Vanilla(), **{"length": 10, "hidden": 8, "inputs": 1, **changed})


def test_compare_lists_starts_that_a_cell_does_not_have() -> None:
    result = run("compare", "--cell", "vanilla", *SIZES, "--length", "10", "--in-use")
    assert all(name in result.stdout for name in IN_USE)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("vanilla has none") == 4


# -- critical ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("torchs", "ours"), OF_TORCH.items())
def test_a_cell_has_its_name_in_torch_too(torchs: str, ours: str, spec_file: Callable[[Any], Path]) -> None:
    found = answer("analyze", "--cell", torchs, "--hidden", "8", "--inputs", "3")
    assert found == answer("analyze", "--cell", ours, "--hidden", "8", "--inputs", "3")
    assert Spec.load(spec_file({"cell": torchs})) == Spec.load(spec_file({"cell": ours}))
    assert issubclass(getattr(torch.nn, torchs.rpartition(".")[2]), torch.nn.RNNBase)


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
    assert "isornn: input: mean 2.99 (root mean square over features), standard deviation 0.501 (where" in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("isornn.init")]
    assert line == "isornn.init.critical_(module, length=60, batch=batch)"
    module = torch.nn.LSTM(4, 500, batch_first=True)
    exec(line, {"isornn": isornn, "module": module, "batch": batch})
    spec = json.loads(done.stdout[: done.stdout.index("\n}\n") + 3])
    found = isornn.init.spec_of(module).gates
    for gate in "ifgo":
        assert spec["gates"][gate].get("input_var", 0.0) == pytest.approx(found[gate].input_var, rel=0.1)
    np.save(short, np.zeros((3, 4), np.float32))
    assert "(sequences, steps, features) of numbers, not (3, 4)" in refusal(
        "critical", "--cell", "lstm", "--data", short
    )
    both = ("critical", "--cell", "lstm", "--data", file, "--input-variance", "2")
    assert "--data has its own" in refusal(*both)
    torch.save(batch / 0, file)
    assert "all of its numbers are finite" in refusal("critical", "--cell", "lstm", "--data", file)
    torch.save(1e-20 * batch, file)
    assert "standard deviation of its input" in refusal("critical", "--cell", "lstm", "--data", file)


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
    assert (
        "isornn.init.critical_(module, length=50)" in result.stdout and "share of the first of T steps" in result.stdout
    )


# -- demo -------------------------------------------------------------------------------------------------------------


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is short, and the predictions are a cheap cell's."""
    cheap = analyze(start("torch", Vanilla(), 128, 64))
    monkeypatch.setattr(ask, "ask_start", lambda *_: cheap)
    result = run("demo", "--length", "4", "--updates", "2", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for part in ("torch", "standard", "chrono", "critical", with_error_of(cheap.reach.number()), "UCI digits"):
        assert part in result.stdout
    assert f"figure: {tmp_path / 'demo.png'}" in result.stdout
    said = result.stderr.splitlines()
    assert "torch: update 2 of 2, loss" in result.stderr
    assert [line.partition(": predicted reach ")[0] for line in said[:4]] == ["torch", "standard", "chrono", "critical"]
    assert json.loads((tmp_path / "demo.json").read_text())["predicted"]["torch"] == cheap.reach.number()
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_a_folder_without_data(tmp_path: Path) -> None:
    assert "no such folder" in refusal("demo", "--out", tmp_path, "--data", tmp_path / "nowhere")
