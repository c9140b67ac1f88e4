"""A target is measured once, judged on its numbers, and can come out against its claim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isornn.experiments.report import report
from isornn.experiments.reproduce import Reproduction, reproduce
from isornn.experiments.target import Bench, Measured, Target, TargetError, Verdict, target_ids, target_named
from isornn.figures import Curve, HeatMap, Histogram, Mark, Panel
from isornn.present import draw_panels
from isornn.records import RecordError

ROOT = Path(__file__).parents[2]


def _target(calls: list[int]) -> Target:
    def measure(bench: Bench) -> Measured:
        calls.append(bench.seed)
        bench.progress("measuring", 1, 1)
        return {"slope": bench.settings["slope"]}

    def judge(measured: Measured) -> Verdict:
        return Verdict("holds" if measured["slope"] > 0 else "does not hold", f"slope {measured['slope']}")

    return Target(
        id="a-target",
        source="A paper, figure 1",
        claim="It grows.",
        published="none",
        choices="None.",
        settings={"small": {"slope": 1.0}, "paper": {"slope": -1.0}},
        measure=measure,
        judge=judge,
        panels=lambda measured: [Panel("t", "x", "y", [Curve([0, 1], [0, measured["slope"]])])],
        data=lambda folder: "nothing" if folder is None else folder.name,
    )


def test_a_record_is_measured_once_and_again_only_for_other_seeds_scales_and_data(tmp_path: Path) -> None:
    calls: list[int] = []
    target = _target(calls)
    first = reproduce(target, "small", tmp_path)
    assert first.verdict == Verdict("holds", "slope 1.0")
    assert reproduce(target, "small", tmp_path) == first == Reproduction.load(tmp_path / "a-target.json")
    assert calls == [0]
    assert reproduce(target, "paper", tmp_path).verdict.answer == "does not hold"
    reproduce(target, "paper", tmp_path, seed=1)
    reproduce(target, "paper", tmp_path, seed=1, data=tmp_path)
    assert calls == [0, 0, 1, 1]


def test_a_record_has_the_verdict_of_todays_judge(tmp_path: Path) -> None:
    calls: list[int] = []
    target = _target(calls)
    first = reproduce(target, "small", tmp_path)
    other = Verdict("does not hold", "the bar is higher now")
    again = reproduce(replace(target, judge=lambda measured: other), "small", tmp_path)
    assert again == replace(first, verdict=other) == Reproduction.load(tmp_path / "a-target.json")
    assert calls == [0]


def test_the_seconds_of_interrupted_calls_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 100.0, 1000.0, 1007.0, 2000.0, 2005.0])
    monkeypatch.setattr("isornn.experiments.reproduce.time.perf_counter", lambda: next(clock))
    target = _target([])

    def interrupted(bench: Bench) -> Measured:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(target, measure=interrupted), "small", tmp_path)
    assert reproduce(target, "small", tmp_path).seconds == 107.0
    assert reproduce(target, "paper", tmp_path).seconds == 5.0
    assert not list(tmp_path.glob("**/*interrupted*"))


def test_the_command_of_a_record_names_data_only_where_files_of_the_users_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISORNN_DATA", raising=False)
    target = _target([])
    plain = "isornn reproduce a-target --scale small --seed 2"
    assert reproduce(target, "small", tmp_path / "a", seed=2).command == plain
    assert reproduce(target, "small", tmp_path / "b", seed=2, data=tmp_path).command == f"{plain} --data DATA"
    monkeypatch.setenv("ISORNN_DATA", str(tmp_path))
    assert reproduce(target, "small", tmp_path / "c", seed=2).command == f"{plain} --data DATA"
    assert reproduce(replace(target, data=None), "small", tmp_path / "d", seed=2).command == plain


def test_a_scale_or_a_target_that_is_not_there_is_named(tmp_path: Path) -> None:
    target = _target([])
    with pytest.raises(TargetError, match="scale: 'huge' is not allowed; a-target has small, paper"):
        reproduce(target, "huge", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="target: 'gilboa-fig99' is not allowed"):
        target_named("gilboa-fig99")


def test_something_else_under_the_records_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a-target.json").write_text('{"record": "a recipe"}')
    with pytest.raises(RecordError, match="not a reproduction"):
        reproduce(_target([]), "small", tmp_path)
    assert "recipe" in (tmp_path / "a-target.json").read_text()


@pytest.mark.parametrize("name", target_ids())
def test_every_target_says_what_it_claims_and_has_a_small_scale(name: str) -> None:
    target = target_named(name)
    assert target.id == name
    assert "small" in target.settings
    assert all((target.source, target.claim, target.published, target.choices))


RECORDS = sorted((ROOT / "results").glob("*/*.json"))


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_record_that_is_kept_gives_its_verdict_and_its_figure(file: Path, tmp_path: Path) -> None:
    kept = Reproduction.load(file)
    target = target_named(kept.target)
    assert kept.scale == file.parent.name
    assert kept.settings == target.settings[kept.scale]  # type: ignore[index]
    assert target.verdict(kept.scale, kept.measured) == kept.verdict  # type: ignore[arg-type]
    assert target.panels(kept.measured)
    assert file.with_suffix(".png").exists()


def test_the_page_of_reproductions_is_made_from_the_records() -> None:
    assert (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8") == report(ROOT / "results") + "\n"


def test_every_kind_of_panel_is_drawn(tmp_path: Path) -> None:
    panels = [
        Panel("curves", "x", "y", [Curve([1, 2, 3], [1, None, 3], "gap", "points", [0.1, 0.1, 0.1])], log=("x",)),
        Panel(
            "bars",
            "x",
            "density",
            histograms=[Histogram([0, 1, 2], [0.2, 0.8], "bars")],
            marks=[Mark("x", 1.0, "mean")],
        ),
        Panel("map", "x", "y", heat=HeatMap([0, 1], [0, 1], [[1.0, None], [0.5, 2.0]], "value")),
    ]
    draw_panels("a title", panels, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
