"""The page of reproductions says what holds at which size, and every number with its record and command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isornn.experiments.papers import NOT_MEASURED, PAPERS
from isornn.experiments.report import report
from isornn.experiments.reproduce import Reproduction
from isornn.experiments.target import UNTESTED, Scale, target_ids, target_named

NAME = "gilboa-table2-mnist"


def _save(results: Path, scale: Scale, critical: float, **changed: Any) -> None:
    rows = {
        name: {"test": [accuracy, accuracy + 0.001, accuracy + 0.002], "rate": 0.1, "length": 196}
        for name, accuracy in (("standard LSTM", 0.5), ("critical peephole LSTM", critical))
    }
    target, measured = target_named(NAME), {"rows": rows}
    record = Reproduction(
        target=NAME,
        scale=scale,
        settings=target.settings[scale],
        seed=0,
        data="MNIST",
        measured=measured,
        verdict=target.verdict(scale, measured),
        command=f"isornn reproduce {NAME} --scale {scale}",
        seconds=100.4,
        hardware={"processor": "a processor", "machine": "", "cores": 2},
        versions={"isornn": "0.1.0", "torch": "2"},
        **changed,
    )
    record.save(results / scale / f"{NAME}.json")


def test_the_first_line_counts_by_kind_and_by_the_size_that_decides(tmp_path: Path) -> None:
    _save(tmp_path, "small", 0.9)
    page = report(tmp_path)
    trained = sum(target_named(name).kind == "training" for name in target_ids())
    assert f"training ({trained}): 1 not tested at a size that decides, {trained - 1} not measured" in page
    assert f"Not run yet at a size that can decide: `isornn reproduce {NAME} --scale medium`" in page
    _save(tmp_path, "medium", 0.4)
    page = report(tmp_path)
    assert f"training ({trained}): 1 does not hold at scale medium, {trained - 1} not measured" in page
    assert f"reproduce {NAME} --scale medium`.\n" not in page


def test_a_number_stands_beside_the_published_one_with_its_interval_record_and_command(tmp_path: Path) -> None:
    _save(tmp_path, "medium", 0.9, processor_seconds=50.0, date="2026-11-23T07:00:00+00:00", commit="abc1234")
    page = report(tmp_path)
    assert "| test accuracy %, critical peephole LSTM | 98.9 | 90.1 (89.85 to 90.35) | 3 |" in page
    assert f"[Record](../results/medium/{NAME}.json): `isornn reproduce {NAME} --scale medium`, seed 0" in page
    assert "100 s, 50 s of processors on a processor, 2 cores" in page
    assert "2026-11-23, commit abc1234" in page
    assert "1 of them are of 2026-11-23, commits abc1234." in page


def test_a_record_of_an_earlier_version_is_read_and_said_to_be_one(tmp_path: Path) -> None:
    _save(tmp_path, "small", 0.9)
    kept = Reproduction.load(tmp_path / "small" / f"{NAME}.json")
    assert (kept.date, kept.commit, kept.processor_seconds) == (None, None, None)
    assert kept.verdict.answer == UNTESTED and kept.verdict.effects
    assert "1 are of earlier versions" in report(tmp_path)


def test_every_target_stands_under_its_paper() -> None:
    page = report(Path("nothing-here"))
    for prefix, paper in PAPERS.items():
        section = page.partition(f"## {paper.title}\n")[2].partition("\n## ")[0]
        assert f"arXiv:{paper.arxiv}" in section
        assert all(f"### {name}\n" in section for name in target_ids() if name.startswith(prefix))
        assert all(f"| {one.what} | {one.why} |" in section for one in NOT_MEASURED if one.paper == prefix)


@pytest.mark.parametrize("one", NOT_MEASURED, ids=lambda one: one.what[:30])
def test_what_is_not_measured_has_its_paper_and_a_reason(one: Any) -> None:
    assert one.paper in PAPERS and one.what and one.why
