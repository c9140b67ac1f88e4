"""Sweep files."""

from pathlib import Path
from typing import Any

import pytest

from isornn.training.sweep import SweepError, expand, load_sweep

FILE = """
[base]
seed = 0
task = { name = "copy", length = 100 }

[grid]
"optimizer.learning_rate" = [1e-2, 1e-3]
optimizer.momentum = [0.0, 0.9]

[[runs]]

[[runs]]
task.length = 200
cell = "gru"
"""


def test_the_order_is_that_of_nested_loops(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(FILE, encoding="utf-8")
    expected: list[Any] = []
    for length, cell in ((100, {}), (200, {"cell": "gru"})):
        for rate in (1e-2, 1e-3):
            for momentum in (0.0, 0.9):
                optimizer = {"learning_rate": rate, "momentum": momentum}
                task = {"name": "copy", "length": length}
                expected.append({"seed": 0, "task": task, "optimizer": optimizer, **cell})
    assert load_sweep(tmp_path / "sweep.toml") == expected


def test_runs_share_nothing() -> None:
    first, second = expand({"base": {"margins": [0.1], "task": {"name": "copy"}}, "grid": {"seed": [0, 1]}})
    first["margins"].append(1.0)
    first["task"]["name"] = "adding"
    assert second == {"margins": [0.1], "task": {"name": "copy"}, "seed": 1}


def test_a_table_in_the_grid_replaces_that_of_the_base() -> None:
    base = {"start": {"name": "chrono", "length": 9}}
    first, second = expand({"base": base, "grid": {"start": [{"name": "critical"}, {"name": "uniform", "bound": 1}]}})
    assert first == {"start": {"name": "critical"}} and second == {"start": {"name": "uniform", "bound": 1}}


@pytest.mark.parametrize("order", [("task", "task.length"), ("task.length", "task")])
def test_a_table_and_a_field_in_it_are_varied_together(order: tuple[str, str]) -> None:
    lists = {"task": [{"name": "copy"}, {"name": "adding"}], "task.length": [5, 9]}
    tasks = [one["task"] for one in expand({"grid": {field: lists[field] for field in order}})]
    assert len(tasks) == 4
    assert all({"name": name, "length": length} in tasks for name in ("copy", "adding") for length in (5, 9))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "sweep: {} is not allowed; it must have at least one of base, grid, runs"),
        ({"bases": {}}, "sweep: 'bases' is not allowed"),
        ({"base": [1]}, "base: .* it must be a table"),
        ({"grid": {"seed": 3}}, "grid.seed: 3 .* it must be a list of at least one value"),
        ({"grid": {"task.length": []}}, "grid.task.length: .* list of at least one value"),
        ({"runs": {"seed": 0}}, "runs: .* list of tables"),
        ({"runs": []}, "runs: .* list of tables"),
        ({"grid": {"seed": [0]}, "runs": [{}, {"seed": 1}]}, r"runs\[1\]: 'seed' .* the grid varies it already"),
        ({"grid": {"task": [{}]}, "runs": [{"task.length": 1}]}, r"runs\[0\]: 'task.length' .* varies it already"),
        (
            {"base": {"task": "copy"}, "grid": {"task.length": [1]}},
            "grid.task.length: 1 .* task is no table but 'copy'",
        ),
    ],
)
def test_refusals(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SweepError, match=words):
        expand(table)


@pytest.mark.parametrize(("content", "words"), [(None, "FILE.toml: .* be read"), (b"\xff", "TOML"), (b"a =", "TOML")])
def test_files_that_are_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "sweep.toml").write_bytes(content)
    with pytest.raises(SweepError, match=words):
        load_sweep(tmp_path / "sweep.toml")
