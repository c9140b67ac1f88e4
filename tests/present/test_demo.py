"""The demo's figure, from a record alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from isornn.experiments.demo_record import DemoResult, DemoRun, DemoSettings
from isornn.present import draw_demo
from isornn.records import RecordError

REACH = {"torch": 0.8, "standard": 1.7, "chrono": 60.0, "critical": 110.0}
ACCURACY = {"torch": 0.1, "standard": 0.12, "chrono": 0.8, "critical": 0.9}


def saved(folder: Path, predicted: dict[str, float | None]) -> Path:
    runs = tuple(
        DemoRun(start, tuple(2.3 * math.exp(-accuracy * t / 50) for t in range(200)), (accuracy,) * 3, 1.0, "")
        for start, accuracy in ACCURACY.items()
    )
    settings = DemoSettings(200, 200, 0, "UCI digits 8x8", "")
    DemoResult(settings, runs, predicted, "demo", {}, "cpu").save(folder / "demo.json")
    return folder / "demo.json"


def drawn(monkeypatch: pytest.MonkeyPatch, record: Path) -> Figure:
    """The figure that would be saved."""
    caught: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: caught.append(self))
    draw_demo(record, record.parent / "demo.png")
    return caught[0]


def test_a_picture_is_written(tmp_path: Path) -> None:
    draw_demo(saved(tmp_path, REACH), tmp_path / "demo.png")
    pixels = matplotlib.image.imread(tmp_path / "demo.png")
    assert pixels.shape[:2] == (600, 1500)
    assert pixels[..., :3].std() > 0.01


def test_losses_are_of_each_start_and_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, _ = drawn(monkeypatch, saved(tmp_path, {})).axes
    assert losses.get_legend_handles_labels()[1] == [
        "torch's default",
        "standard",
        "chrono",
        "critical",
        "chance",
    ]
    chance = np.asarray(losses.get_lines()[-1].get_ydata())
    assert chance.tolist() == pytest.approx([math.log(10)] * 2)


def test_accuracy_stands_over_the_predicted_reach_where_all_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, accuracies = drawn(monkeypatch, saved(tmp_path, REACH)).axes
    containers: list[Any] = accuracies.containers
    points = [container.lines[0].get_xydata()[0] for container in containers]
    assert [tuple(point) for point in points] == [pytest.approx((REACH[s], ACCURACY[s])) for s in ACCURACY]


@pytest.mark.parametrize("predicted", [{}, {**REACH, "critical": None}, {**REACH, "critical": math.inf}])
def test_bars_where_a_reach_is_missing(
    predicted: dict[str, float | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, accuracies = drawn(monkeypatch, saved(tmp_path, predicted)).axes
    bars: Any = accuracies.patches
    assert [bar.get_height() for bar in bars] == pytest.approx(list(ACCURACY.values()))


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="gone.json"):
        draw_demo(tmp_path / "gone.json", tmp_path / "demo.png")
