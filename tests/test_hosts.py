"""benchmarks/hosts: what is read off pairs of runs, and how the blocks of a page are executed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOSTS = Path(__file__).parent.parent / "benchmarks" / "hosts"


def script(name: str) -> Any:
    """Its module, which is none of a package."""
    spec = importlib.util.spec_from_file_location(name, HOSTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # where dataclasses look their module up
        spec.loader.exec_module(module)
    return module


def race(
    without: Sequence[float | None], with_start: Sequence[float | None], *, last: bool = False, higher: bool = False
) -> Any:
    """To the best or the last score of the run without the start."""
    compared = script("compared")
    pair = compared.Pair(0, without, with_start, 1.0, 1.0)
    score = compared.last_of(without) if last else compared.best_of(without, higher)
    return compared.reached(pair, score, 10, higher)


def test_the_first_time_that_each_run_has_the_defaults_score() -> None:
    without, with_start = [3.0, 2.0, 1.0, 1.5, 1.4], [2.5, 1.3, 0.5, 0.7, 0.6]
    to_best, to_last = race(without, with_start), race(without, with_start, last=True)
    assert (to_best.score, to_best.updates_without, to_best.updates_with_start, to_best.ratio) == (1.0, 30, 30, 1.0)
    assert (to_last.score, to_last.updates_without, to_last.updates_with_start, to_last.ratio) == (1.4, 30, 20, 2 / 3)


def test_rewards_are_better_when_higher() -> None:
    found = race([1.0, 3.0, 2.0], [3.0, 2.0, 4.0], higher=True)
    assert (found.score, found.updates_without, found.updates_with_start) == (3.0, 20, 10)


def test_not_reached_counts_as_above_all_others() -> None:
    never, soon = race([3.0, 1.0], [2.0, 1.5]), race([3.0, 1.0], [0.5, 0.4])
    assert (never.updates_with_start, never.ratio) == (None, None)
    summary_of = script("compared").summary_of
    assert summary_of([never, soon, soon]) == {"ratio_median": 0.5, "ratio_min": 0.5, "ratio_max": None}
    assert summary_of([never, never, soon])["ratio_median"] is None


def test_a_score_that_is_not_finite_is_none() -> None:
    compared = script("compared")
    runs = {False: [3.0, math.nan, 2.0], True: [math.nan, math.inf, 1.0]}
    pair = compared.pair_of(compared.Task("", "", 5, 10, {}, lambda seed, start: runs[start]), 0)
    assert (pair.without, pair.with_start) == ([3.0, None, 2.0], [None, None, 1.0])
    found = race(pair.without, pair.with_start, last=True)
    assert (found.score, found.updates_without, found.updates_with_start) == (2.0, 30, 30)
    with pytest.raises(ValueError, match="the first has none"):
        race([None], [1.0])
    with pytest.raises(ValueError, match="not as many"):
        race([1.0], [1.0, 2.0])


def test_an_interrupted_measurement_trains_what_its_record_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = script("compared")
    monkeypatch.setattr(compared, "RESULTS", tmp_path)
    trained = []

    def run(seed: int, start: bool) -> list[float]:
        trained.append((seed, start))
        if len(trained) == 5:
            raise KeyboardInterrupt
        return [2.0, 1.0, 1.5] if not start else [1.0, 0.9, 0.8]

    tasks = [compared.Task("toy", "loss", 5, 10, {"rate": 0.1}, run)]
    with pytest.raises(KeyboardInterrupt):
        compared.measured("toy", ["numpy"], tasks)
    compared.measured("toy", ["numpy"], tasks)
    assert trained == [(0, False), (0, True), (1, False), (1, True), (2, False)] + [
        (seed, start) for seed in (2, 3, 4) for start in (False, True)
    ]
    (task,) = json.loads((tmp_path / "toy.json").read_text())["tasks"]
    assert [pair["to_best"]["ratio"] for pair in task["pairs"]] == [0.5] * 5
    assert "ratio to the default's last score: median 0.5" in capsys.readouterr().out


def test_blocks_share_a_namespace_and_errors_name_the_pages_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n```python\na = 1\n```\n```\nnot python\n```\n```python\nb = a + 1\n\nassert a == b\n```\n")
    module = ModuleType("recipe")
    with pytest.raises(AssertionError) as caught:
        script("execute").execute(page, module)
    assert (module.a, module.b) == (1, 2)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (str(page), 11, "assert a == b")
