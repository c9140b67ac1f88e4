"""The verdicts about trained networks, on numbers made up so that one knows what must come out."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isornn.experiments.reproductions import _noise_padded as padded
from isornn.experiments.reproductions import _table2 as table
from isornn.experiments.reproductions import _two_starts as two
from isornn.experiments.target import UNTESTED, Bench, target_named

LENGTHS = [2, 4, 8, 16, 32]
XI = [1.0, 2.0, 4.0]


def _map(borders: list[float], xi: list[float]) -> dict[str, Any]:
    """All cells alike: accuracy .9 before the border and .1 beyond, so the middle is crossed between two lengths."""
    accuracy = [[[0.9 if length < border else 0.1] * 3 for border in borders] for length in LENGTHS]
    cells = [{"cell": cell, "xi": xi, "tied_xi": xi, "accuracy": accuracy} for cell in padded.CELLS]
    return {"lengths": LENGTHS, "bias_means": [0.0, 1.0, 2.0], "cells": cells}


@pytest.mark.parametrize(
    ("borders", "answer"),
    [
        ([4.5, 9.0, 18.0], "holds"),  # at 5.7 xi
        ([18.0, 9.0, 4.5], "does not hold"),  # the other way round
        ([9.0, 18.0, 31.0], "does not hold"),  # at 11 xi
        ([4.5, 4.5, 4.5], "does not hold"),  # xi grows by 4, and the border does not
        ([1.0, 1.0, 40.0], UNTESTED),  # beyond the lengths at both ends
    ],
)
def test_figure_2(borders: list[float], answer: str) -> None:
    assert target_named("gilboa-fig2").judge(_map(borders, XI)).answer == answer


def test_figure_2_is_not_satisfied_by_the_order_alone() -> None:
    assert target_named("gilboa-fig2").judge(_map([4.5, 9.0, 18.0], [0.1, 0.2, 0.4])).answer == "does not hold"


def test_figure_2_says_how_many_xi_the_lengths_reach_where_no_border_was_found() -> None:
    verdict = target_named("gilboa-fig2").judge(_map([4.5, 9.0, 40.0], XI))
    assert verdict.answer == UNTESTED
    assert "GRU, bias 2: the border is beyond 8.0 xi" in verdict.why
    assert "bias 1" not in verdict.why


def test_a_border_of_chance_does_not_keep_to_the_band_of_figure_2() -> None:
    """Log-uniform borders, with seeds that agree: by the earlier bars, a factor of two on either side of the band in
    most columns, a column passed with a probability above one half."""
    generator, xi = random.Random(0), [1.0, 2.0, 4.0, 8.0, 16.0]
    kept = 0
    for _ in range(500):
        middles = [math.exp(generator.uniform(math.log(2), math.log(128))) for _ in xi]
        lengths = [2 * 1.3**k for k in range(17)]
        accuracy = [[[0.9 if length < border else 0.1] * 3 for border in middles] for length in lengths]
        case = {"cell": "lstm", "xi": xi, "accuracy": accuracy}
        found = padded.follows({"lengths": lengths}, case)
        kept += found is not None and found.within is True
    assert kept < 0.05 * 500


def test_figure_6_wants_accuracy_that_grows_with_xi_wherever_the_border_lies() -> None:
    judge = target_named("gilboa-fig6").judge
    off = _map([9.0, 18.0, 31.0], XI)
    assert judge(off).answer == "holds"
    assert judge(_map([4.5, 9.0, 18.0], XI)).answer == "holds"
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
        (([0.1, 0.12, 0.15], [0.6, 0.65, 0.7]), "holds"),
        (([0.6, 0.65, 0.7], [0.1, 0.12, 0.15]), "does not hold"),
        (([0.1, 0.12, 0.71], [0.6, 0.65, 0.7]), UNTESTED),  # one seed of the standard start did it
        (([0.1, 0.3, 0.5], [0.8, 0.85, 0.9]), UNTESTED),  # the standard start is not sure to have failed
        (([0.3, 0.32, 0.35], [0.4, 0.45, 0.5]), "does not hold"),  # the standard one learns too
        (([0.08, 0.12, 0.11], [0.08, 0.1, 0.13]), UNTESTED),  # nobody learned
    ],
)
def test_two_starts(longest: tuple[list[float], list[float]], answer: str) -> None:
    assert two.judge(_sizes(([0.9, 0.9], [0.9, 0.9]), longest)).answer == answer


def test_a_standard_start_that_learns_nothing_at_all_proves_nothing() -> None:
    assert two.judge(_sizes(([0.1, 0.1], [0.9, 0.9]), ([0.1, 0.1], [0.9, 0.9]))).answer == UNTESTED


def test_the_standard_start_that_never_gets_there_is_slower_by_at_least_so_many_times() -> None:
    measured = _sizes(([0.9, 0.9], [0.9, 0.9]), ([0.1, 0.1], [0.9, 0.9]))
    measured["sizes"][1]["starts"]["critical"]["curves"] = [[0.9, 0.9]] * 2
    assert [two.speed_up(measured, one).value for one in measured["sizes"]] == [1.0, 2.0]
    assert "at least" in two.speed_up(measured, measured["sizes"][1]).what


def test_a_best_rate_at_the_end_of_the_scan_is_said() -> None:
    measured = _sizes(([0.9, 0.9], [0.9, 0.9]))
    for start in measured["sizes"][0]["starts"].values():
        start["scan"] = [{"rate": rate} for rate in (0.1, 0.01)]
    assert two.at_its_end(measured) == ["standard at T = 10", "critical at T = 10"]
    measured["sizes"][0]["starts"]["critical"]["rate"] = 0.05
    assert two.at_its_end(measured) == ["standard at T = 10"]


def test_other_seeds_run_at_the_first_ones_best_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores are made up: .01 is best for the standard start, .1 for the critical one."""
    best, planned = {"gilboa-peephole-standard": 0.01, "gilboa-peephole-critical": 0.1}, []

    def trained(bench: Bench, configurations: list[dict[str, Any]], after: Any = None) -> list[Any]:
        planned.extend(configurations)
        return [SimpleNamespace(length=7, test=None, fields=fields) for fields in configurations]

    def curve(bench: Bench, run: Any, chance: float, updates: int | None = None) -> list[float]:
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


def test_the_worse_half_of_both_starts_rates_ends_at_each_rung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies are made up: .03 is best at first, .01 by the end."""
    planned: list[tuple[str, float, int]] = []

    def trained(bench: Bench, configurations: list[dict[str, Any]], after: Any = None) -> list[Any]:
        kinds = [(one["start"]["name"], one["optimiser"]["rate"], one["updates"]) for one in configurations]
        planned.extend(kinds)
        if after is not None:
            assert [(run.start, run.rate) for run in after] == [kind[:2] for kind in kinds]
        return [
            SimpleNamespace(length=7, test=None, start=start, rate=rate, updates=updates)
            for start, rate, updates in kinds
        ]

    def curve(bench: Bench, run: Any, chance: float, updates: int | None = None) -> list[float]:
        ends = {0.03: [0.5, 0.5, 0.5], 0.01: [0.4, 0.6, 0.9], 0.003: [0.3, 0.3], 0.001: [0.2]}[run.rate]
        return ends[: run.updates // 10]

    monkeypatch.setattr(two, "train_all", trained)
    monkeypatch.setattr(two, "_curve", curve)
    small = target_named("gilboa-fig4-repeat").settings["small"]
    chosen = {"sizes": [3], "rates": [0.03, 0.01, 0.003, 0.001], "rungs": [10, 20, 30], "updates": 30, "seeds": 1}
    bench = Bench({**small, **chosen, "validate_every": 10}, tmp_path, None, 0, lambda text, done, of: None)
    (one,) = two.measure(bench, lambda settings, size: {"size": size}, lambda size: 0.1)["sizes"]
    for start in one["starts"].values():
        assert start["rate"] == 0.01
        assert [(each["rate"], each["updates"]) for each in start["scan"]] == [
            (0.03, 20),
            (0.01, 30),
            (0.003, 10),
            (0.001, 10),
        ]
    assert planned == [
        (start, rate, updates)
        for updates, rates in ((10, (0.03, 0.01, 0.003, 0.001)), (20, (0.03, 0.01)), (30, (0.01,)))
        for start in two.STARTS.values()
        for rate in rates
    ]


def _rows(**tests: list[float]) -> dict[str, Any]:
    return {name: {"rate": 0.1, "test": values, "length": 100, "diverged": 0} for name, values in tests.items()}


@pytest.mark.parametrize(
    ("critical", "answer"),
    [([0.82, 0.821], "holds"), ([0.70, 0.701], "does not hold"), ([0.6, 0.98], UNTESTED)],
)
def test_table_2_mnist(critical: list[float], answer: str) -> None:
    rows = _rows(**{"standard LSTM": [0.80, 0.801], "critical peephole LSTM": critical})
    assert target_named("gilboa-table2-mnist").judge({"rows": rows}).answer == answer


def test_table_2_compares_rates_by_some_seeds_and_runs_the_others_at_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[tuple[float, int, int]] = []

    def trained(bench: Bench, configurations: list[dict[str, Any]], after: Any = None) -> list[Any]:
        kinds = [(one["optimiser"]["rate"], one["seed"], one["updates"]) for one in configurations]
        planned.extend(kinds)
        return [
            SimpleNamespace(
                length=7, diverged=None, best={"accuracy": 0.5 + rate}, test={"accuracy": 0.4 + 0.01 * seed + rate}
            )
            for rate, seed, _ in kinds
        ]

    monkeypatch.setattr(table, "train_all", trained)
    medium = target_named("gilboa-table2-mnist").settings["medium"]
    chosen = {"rates": [0.01, 0.03], "rungs": [10, 20], "updates": 20, "seeds": 4, "scan_seeds": 2}
    bench = Bench({**medium, **chosen}, tmp_path, None, 0, lambda text, done, of: None)
    (row,) = table.rows_trained(bench, {}, {"LSTM": {"model": {}, "start": {}}}).values()
    assert row["rate"] == 0.03
    assert row["test"] == pytest.approx([0.43, 0.44, 0.45, 0.46])
    scan = [(rate, seed, 10) for rate in (0.01, 0.03) for seed in (0, 1)]
    assert planned == [*scan, (0.03, 0, 20), (0.03, 1, 20), (0.03, 2, 20), (0.03, 3, 20)]


@pytest.mark.parametrize(
    ("critical", "xi", "answer"),
    [
        ([0.60, 0.61], 10.0, "holds"),
        ([0.60, 0.61], 90.0, "does not hold"),  # not much shorter than 100 steps
        ([0.60, 0.61], None, "does not hold"),
        ([0.40, 0.41], 10.0, "does not hold"),
        ([0.4, 0.65], 10.0, UNTESTED),
        ([0.51, 0.53], 10.0, UNTESTED),  # ahead by 1.3 standard errors
    ],
)
def test_table_2_cifar(critical: list[float], xi: float | None, answer: str) -> None:
    rows = _rows(**{"1.0": critical, "standard": [0.50, 0.51]})
    measured = {"bias_means": [1.0], "xi": [xi], "rows": rows}
    assert target_named("gilboa-table2-cifar").judge(measured).answer == answer
