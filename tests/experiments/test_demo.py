"""The demo at a tiny size: its record, what is repeated and what is taken over."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from isornn.experiments import demo
from isornn.experiments.demo import STARTS, run_demo
from isornn.experiments.demo_record import DemoResult
from isornn.records import RecordError
from isornn.tasks import DataError, load_digits

tiny = partial(run_demo, length=4, updates=3, command="demo")


def told_by(out: Path, **options: Any) -> tuple[DemoResult, list[str]]:
    """The result, and the start of each update that was told."""
    told: list[str] = []
    result = tiny(out=out, progress=lambda start, update, loss: told.append(start), **options)
    return result, told


def test_the_record_holds_all_that_is_needed_to_run_it_again(tmp_path: Path) -> None:
    result = tiny(out=tmp_path, seed=5, predicted={"torch": 0.8, "critical": float("inf")})
    assert [run.start for run in result.runs] == list(STARTS)
    saved = json.loads((tmp_path / "demo.json").read_text())
    assert saved["command"] == "demo"
    assert saved["device"].startswith("cpu, denormal numbers flushed to 0")
    assert saved["versions"]["torch"] == torch.__version__.partition("+")[0] or saved["versions"]["torch"]
    assert (saved["settings"]["seed"], saved["settings"]["length"], saved["settings"]["updates"]) == (5, 4, 3)
    assert saved["settings"]["data"] == "UCI digits 8x8"
    assert saved["predicted"] == {"torch": 0.8, "critical": None}
    loaded = DemoResult.load(tmp_path / "demo.json")
    assert loaded.runs == result.runs
    assert loaded.settings == result.settings
    for run in loaded.runs:
        assert len(run.losses) == 3 and len(run.accuracies) == 3 and 0 <= run.accuracy <= 1


def test_two_runs_with_one_seed_are_identical_and_with_another_are_not(tmp_path: Path) -> None:
    first, again, other = (
        [(run.losses, run.accuracies) for run in tiny(out=tmp_path / name, seed=seed).runs]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert all(one[0] != two[0] for one, two in zip(first, other, strict=True))


def test_starts_differ_and_one_does_not_depend_on_which_came_before(tmp_path: Path) -> None:
    runs = tiny(out=tmp_path / "all").runs
    assert len({run.initial for run in runs}) == len(runs)
    (alone,) = tiny(out=tmp_path / "one", starts=["chrono"]).runs
    assert alone.losses == next(run.losses for run in runs if run.start == "chrono")


def test_an_interrupt_keeps_what_is_finished_and_the_next_call_goes_on(tmp_path: Path) -> None:
    def interrupt(start: str, update: int, loss: float) -> None:
        if (start, update) == ("chrono", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(out=tmp_path, progress=interrupt)
    assert [run.start for run in DemoResult.load(tmp_path / "demo.json").runs] == ["torch", "standard"]
    result, told = told_by(tmp_path)
    # Taken over starts are told once, the others three times.
    assert told == ["torch", "standard", *["chrono"] * 3, *["critical"] * 3]
    whole = tiny(out=tmp_path / "whole")
    assert [run.losses for run in result.runs] == [run.losses for run in whole.runs]


def test_other_settings_or_another_start_under_the_same_name_are_trained_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = ["torch", "standard"]
    tiny(out=tmp_path, starts=starts)
    assert told_by(tmp_path, starts=starts)[1] == starts
    monkeypatch.setattr(demo, "STARTS", {**STARTS, "standard": STARTS["chrono"]})
    assert told_by(tmp_path, starts=starts)[1] == ["torch", *["standard"] * 3]
    assert told_by(tmp_path, starts=starts, seed=1)[1] == [*["torch"] * 3, *["standard"] * 3]


def test_a_call_for_one_start_leaves_the_others_in_the_record(tmp_path: Path) -> None:
    tiny(out=tmp_path)
    result, _ = told_by(tmp_path, starts=["chrono"])
    assert [run.start for run in result.runs] == ["chrono"]
    assert {run.start for run in DemoResult.load(tmp_path / "demo.json").runs} == set(STARTS)


def test_a_file_that_is_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "demo.json"
    for text in ('{"mine": 1}', "not json", '{"record": "isornn demo"}'):
        file.write_text(text)
        with pytest.raises(RecordError, match="demo.json: not .* move it away or name another folder"):
            tiny(out=tmp_path)
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 2}, "length: 2"),
        ({"updates": 0}, "updates: 0"),
        ({"seed": -1}, "seed: -1"),
        (
            {"starts": ["torch", "kaiming"]},
            "starts: 'kaiming' is not allowed; it must be one of torch, standard, chrono",
        ),
    ],
)
def test_bad_arguments_are_named(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        run_demo(out=tmp_path, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images-idx3-ubyte"):
        tiny(out=tmp_path, data=tmp_path)


def test_a_large_test_set_is_thinned_evenly() -> None:
    digits = load_digits()
    large = replace(digits, test_images=digits.test_images.repeat(5, 1), test_labels=torch.arange(2550))
    thinned = demo._thinned(large)
    assert torch.equal(thinned.test_labels, torch.arange(0, 2550, 3))
    assert len(thinned.test_images) == 850
    assert len(demo._thinned(digits).test_labels) == 510
