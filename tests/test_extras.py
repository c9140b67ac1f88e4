"""What works without the extras, and that whatever needs one names it in a line."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from isornn.extras import EXTRAS


def python(code: str, without: set[str], *, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``code`` in a fresh Python that has not the packages."""
    program = f"import sys\nsys.modules.update(dict.fromkeys({sorted(without)}))\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=at, check=False)


def command(words: str, without: set[str], *, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    return python(f"sys.argv = ['isornn', *{words.split()}]\nfrom isornn.__main__ import main\nmain()", without, at=at)


def test_extras_are_those_of_the_package() -> None:
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    for package, extra in EXTRAS.items():
        name = {"stable_baselines3": "sb3-contrib"}.get(package, package.replace("_", "-"))
        assert any(line.startswith(name) for line in extras[extra]), (package, extra)
        assert not any(line.startswith(name) for line in declared["dependencies"]), package
    assert {*EXTRAS.values()} == {*extras} - {"all", "dev", "docs", "release"}
    assert all(extra in extras["all"][0] for extra in EXTRAS.values())


def test_the_core_needs_no_extra(tmp_path: Path) -> None:
    done = python(
        """
import isornn, torch
isornn.training, isornn.tasks, isornn.simulation, isornn.lookback, isornn.optim
model = torch.nn.LSTM(3, 8, batch_first=True)
batch = torch.randn(4, 30, 3)
isornn.init.critical_(model, batch=batch)
print(isornn.diagnose(model, batch))
print(isornn.analyze(isornn.init.spec_of(torch.nn.GRU(3, 8))))
isornn.nn.LSTM(3, 8)(batch)[0].sum().backward()
""",
        set(EXTRAS),
        at=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "LSTM, T = 30" in done.stdout


@pytest.mark.parametrize(
    ("code", "missing", "extra"),
    [
        ("import isornn.present\nisornn.present.draw_watch", "matplotlib", "plot"),
        ("from isornn.reports import Report\nReport.figure(None)", "plotly", "report"),
        ("from isornn.reports import Report\nReport.to_html(None, 'report.html')", "jinja2", "report"),
        ("import isornn.training.sweep", "joblib", "train"),
    ],
)
def test_what_is_missing_is_named_in_python(code: str, missing: str, extra: str) -> None:
    done = python(code, {missing})
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {missing} is not installed: pip install 'isornn[{extra}]'"
    )


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        ("--version", "typer", "cli"),
        ("analyze --cell gru --hidden 8 --inputs 2 --plot picture.png", "matplotlib", "plot"),
        ("reproduce list", "joblib", "train"),
        ("train run.toml", "lightning_fabric", "train"),
    ],
)
def test_what_is_missing_is_named_by_the_commands(words: str, missing: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'task = { name = "adding", length = 30 }\nmodel = { name = "torch.nn.LSTM", hidden = 8 }\n'
        'optimiser = { name = "adam", rate = 0.01 }\nupdates = 1\n'
    )
    done = command(words, {missing}, at=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        f"isornn: {missing} is not installed: pip install 'isornn[{extra}]'\n",
    ), done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"]
