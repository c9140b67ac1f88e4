"""benchmarks/hosts: what is read off pairs of runs, and how the blocks of a page are executed."""

from __future__ import annotations

import importlib.util
import math
import sys
import traceback
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


def pair(without: list[float], with_start: list[float], **options: Any) -> Any:
    return script("compared").compared(0, without, with_start, 10, (1.0, 1.0), **options)


def test_the_first_time_that_each_run_has_the_defaults_best_score() -> None:
    found = pair([3.0, 2.0, 1.0, 1.5, 1.0], [2.5, 1.0, 0.5, 0.7, 0.6])
    assert (found.updates_without, found.updates_with_start, found.ratio) == (30, 20, 2 / 3)
    assert (found.default_score, found.best_with_start) == (1.0, 0.5)


def test_rewards_are_better_when_higher() -> None:
    found = pair([1.0, 3.0, 2.0], [3.0, 2.0, 4.0], higher=True)
    assert (found.updates_without, found.updates_with_start, found.best_with_start) == (20, 10, 4.0)


def test_not_reached_counts_as_above_all_others() -> None:
    compared = script("compared")
    never = pair([3.0, 1.0], [2.0, 1.5])
    assert (never.updates_with_start, never.ratio) == (None, None)
    soon = pair([3.0, 1.0], [0.5, 0.4])
    assert compared.summary_of([never, soon, soon]) == {"ratio_median": 0.5, "ratio_min": 0.5, "ratio_max": None}
    assert compared.summary_of([never, never, soon])["ratio_median"] is None


def test_a_score_that_is_not_finite_is_none() -> None:
    diverged = pair([3.0, math.nan, 2.0], [math.nan, math.inf, 1.0])
    assert (diverged.without, diverged.with_start) == ([3.0, None, 2.0], [None, None, 1.0])
    assert (diverged.default_score, diverged.updates_with_start, diverged.ratio) == (2.0, 30, 1.0)
    with pytest.raises(ValueError, match="the first has none"):
        pair([math.nan], [1.0])
    with pytest.raises(ValueError, match="not as many"):
        pair([1.0], [1.0, 2.0])


def test_blocks_share_a_namespace_and_errors_name_the_pages_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n```python\na = 1\n```\n```\nnot python\n```\n```python\nb = a + 1\n\nassert a == b\n```\n")
    module = ModuleType("recipe")
    with pytest.raises(AssertionError) as caught:
        script("execute").execute(page, module)
    assert (module.a, module.b) == (1, 2)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (str(page), 11, "assert a == b")
