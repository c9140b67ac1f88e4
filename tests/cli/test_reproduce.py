"""``isornn reproduce``: what there is, one target, and refusals of one line."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from isornn.cli import app
from isornn.cli import reproduce as command
from isornn.experiments.target import target_ids
from isornn.tasks import DataError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_the_list_has_every_target_with_its_claim() -> None:
    listed = json.loads(run("list", "--json").stdout)["targets"]
    assert [one["id"] for one in listed] == target_ids()
    assert all(one["claim"] for one in listed)


def test_without_a_target_it_is_the_list() -> None:
    assert run().stdout == run("list").stdout != ""


def test_one_target_leaves_its_record_and_its_figure(tmp_path: Path) -> None:
    result = run("chensupp-hyper", "-o", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["reproductions"]
    assert found["verdict"]["answer"] == "holds"
    assert sorted(file.name for file in tmp_path.glob("small/chensupp-hyper.*")) == [
        "chensupp-hyper.json",
        "chensupp-hyper.png",
    ]
    reported = run("report", "-o", tmp_path)
    assert reported.exit_code == 0 and "### chensupp-hyper" in reported.stdout


def test_all_goes_on_past_targets_whose_data_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reproduced(target: object, *rest: object) -> object:
        raise DataError(f"{target.id} needs ptb.train.txt")  # type: ignore[attr-defined]

    monkeypatch.setattr(command, "_reproduced", reproduced)
    result = run("all", "-o", tmp_path, "--json")
    assert json.loads(result.stdout) == {"reproductions": []}
    assert result.stderr.count("not measured") == len(target_ids())


def test_in_a_log_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 30.0, 61.0, 61.0])
    said: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(command, "say", said.append)
    progress = command._lines("a-target")
    for done in (1, 2, 3):
        progress("training, ends about 01 Jan 12:00", done, 9)
    assert said == [f"a-target: training, ends about 01 Jan 12:00, {done} of 9" for done in (1, 3)]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("gilboa-fig99",), "target: 'gilboa-fig99'"),
        (("gilboa-fig3", "--scale", "huge"), "scale: 'huge'"),
        (("list", "--scale", "huge"), "scale: 'huge'"),
        (("all", "--data", "nowhere"), "--data: 'nowhere' is not allowed; it must be a folder"),
        (("gilboa-fig3", "--seed", "-1"), "seed: -1"),
        (
            ("gilboa-fig3", "--seed", str(2**63)),
            "seed: 9223372036854775808 is not allowed; it must be at least 0 and below",
        ),
        (("gilboa-fig3", "--jobs", "0"), "jobs: 0"),
        (
            ("report", "-o", "nowhere"),
            "--output: 'nowhere' is not allowed; it must be a folder with records in small, ",
        ),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], why: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert why in result.stderr and result.stderr.count("\n") == 1
