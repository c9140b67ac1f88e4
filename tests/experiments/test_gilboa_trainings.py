"""The verdicts about trained networks, on numbers made up so that one knows what must come out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isornn.experiments.reproductions import _noise_padded as padded
from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import Bench, target_named

LENGTHS = [2, 4, 8, 16, 32]
XI = [1.0, 2.0, 4.0]


def _map(borders: list[float], xi: list[float]) -> dict[str, Any]:
    """All cells alike: accuracy .9 before the border and .1 beyond, so the middle is crossed between two lengths."""
    accuracy = [[[0.9 if length < border else 0.1] * 2 for border in borders] for length in LENGTHS]
    cells = [{"cell": cell, "xi": xi, "tied_xi": xi, "accuracy": accuracy} for cell in padded.CELLS]
    return {"lengths": LENGTHS, "bias_means": [0.0, 1.0, 2.0], "cells": cells}


@pytest.mark.parametrize(
    ("borders", "answer"),
    [
        ([4.5, 9.0, 18.0], "holds"),
        ([18.0, 9.0, 4.5], "does not hold"),  # the other way round
        ([4.5, 4.5, 4.5], "cannot tell"),  # no border that varies
        ([1.0, 1.0, 40.0], "cannot tell"),  # beyond the lengths at both ends
    ],
)
def test_figure_2(borders: list[float], answer: str) -> None:
    assert target_named("gilboa-fig2").judge(_map(borders, XI)).answer == answer


def test_figure_2_is_not_satisfied_by_the_order_alone() -> None:
    assert target_named("gilboa-fig2").judge(_map([4.5, 9.0, 18.0], [0.1, 0.2, 0.4])).answer == "does not hold"


def test_figure_6_wants_accuracy_that_grows_with_xi_and_a_border_that_is_off() -> None:
    judge = target_named("gilboa-fig6").judge
    off = _map([9.0, 18.0, 31.0], XI)
    assert judge(off).answer == "holds"
    assert judge(_map([4.5, 9.0, 18.0], XI)).answer == "does not hold"
    assert judge(_map([31.0, 18.0, 9.0], XI)).answer == "does not hold"


def test_a_border_is_where_the_middle_is_crossed_over_log_t() -> None:
    measured = _map([4.5, 1.0, 40.0], XI)
    assert padded.borders(measured, measured["cells"][0]) == [pytest.approx(32**0.5), 0.0, float("inf")]


def _sizes(*finals: tuple[list[float], list[float]]) -> dict[str, Any]:
    sizes = [
        {
            "size": number,
            "length": 10 * number,
            "chance": 0.1,
            "starts": {
                start: {"rate": 0.1, "curves": [[0.1, value] for value in values], "scan": []}
                for start, values in zip(two.STARTS, pair, strict=True)
            },
        }
        for number, pair in enumerate(finals, 1)
    ]
    return {"updates": [1, 2], "sizes": sizes}


@pytest.mark.parametrize(
    ("longest", "answer"),
    [
        (([0.1, 0.15], [0.6, 0.7]), "holds"),
        (([0.6, 0.7], [0.1, 0.15]), "does not hold"),
        (([0.1, 0.61], [0.6, 0.7]), "cannot tell"),  # one seed of the standard start did it
        (([0.3, 0.35], [0.4, 0.5]), "does not hold"),  # too little between the two
        (([0.1, 0.15], [0.15, 0.2]), "cannot tell"),  # nobody learned
    ],
)
def test_two_starts(longest: tuple[list[float], list[float]], answer: str) -> None:
    assert two.judge(_sizes(([0.9, 0.9], [0.9, 0.9]), longest)).answer == answer


def test_a_standard_start_that_learns_nothing_at_all_proves_nothing() -> None:
    assert two.judge(_sizes(([0.1, 0.1], [0.9, 0.9]), ([0.1, 0.1], [0.9, 0.9]))).answer == "does not hold"


def test_other_seeds_run_at_the_first_ones_best_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are made up: .01 is best for the standard start, .1 for the critical one."""
    best, planned = {"gilboa-peephole-standard": 0.01, "gilboa-peephole-critical": 0.1}, []

    def trained(bench: Bench, configurations: list[dict[str, Any]]) -> list[Any]:
        planned.extend(configurations)
        return [SimpleNamespace(length=7, fields=fields) for fields in configurations]

    def curve(bench: Bench, run: Any, chance: float) -> list[float]:
        rate, start, seed = run.fields["optimiser"]["rate"], run.fields["start"]["name"], run.fields["seed"]
        return [chance, (0.5 if rate == best[start] else 0.4) + 0.01 * seed]

    monkeypatch.setattr(two, "train_all", trained)
    monkeypatch.setattr(two, "_curve", curve)
    settings = {**target_named("gilboa-fig4-repeat").settings["small"], "sizes": [3], "rates": [0.01, 0.1], "seeds": 3}
    bench = Bench(settings, tmp_path, None, 0, lambda text, done, of: None)
    (one,) = two.measure(bench, lambda settings, size: {"size": size}, lambda size: 0.1)["sizes"]
    assert [(start["rate"], two.finals(one, name)) for name, start in one["starts"].items()] == [
        (0.01, [0.5, 0.51, 0.52]),
        (0.1, [0.5, 0.51, 0.52]),
    ]
    assert len(planned) == 8


def _rows(**tests: list[float]) -> dict[str, Any]:
    return {name: {"rate": 0.1, "test": values, "length": 100, "diverged": 0} for name, values in tests.items()}


@pytest.mark.parametrize(
    ("critical", "answer"),
    [([0.80, 0.81], "holds"), ([0.70, 0.71], "does not hold"), ([0.6, 0.98], "cannot tell")],
)
def test_table_2_mnist(critical: list[float], answer: str) -> None:
    rows = _rows(**{"standard LSTM": [0.80, 0.81], "critical peephole LSTM": critical})
    assert target_named("gilboa-table2-mnist").judge({"rows": rows}).answer == answer


@pytest.mark.parametrize(
    ("critical", "xi", "answer"),
    [
        ([0.60, 0.61], 10.0, "holds"),
        ([0.60, 0.61], 90.0, "does not hold"),  # not much shorter than 100 steps
        ([0.60, 0.61], None, "does not hold"),
        ([0.40, 0.41], 10.0, "does not hold"),
        ([0.4, 0.65], 10.0, "cannot tell"),
        ([0.51, 0.53], 10.0, "cannot tell"),  # ahead by 1.3 standard errors
    ],
)
def test_table_2_cifar(critical: list[float], xi: float | None, answer: str) -> None:
    rows = _rows(**{"1.0": critical, "standard": [0.50, 0.51]})
    measured = {"bias_means": [1.0], "xi": [xi], "rows": rows}
    assert target_named("gilboa-table2-cifar").judge(measured).answer == answer
