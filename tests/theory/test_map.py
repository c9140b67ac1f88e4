"""The map of the theory names what exists."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

import isornn.theory

MAP = (Path(__file__).parents[2] / "docs" / "theory_map.md").read_text(encoding="utf-8")
HEADS = ("| symbol", "| equation")
ROWS = [line for line in MAP.splitlines() if line.startswith("| ") and not line.startswith(HEADS)]
NAMES = sorted(set(re.findall(r"`(isornn\.[\w.]+)`", "".join(ROWS))))


@pytest.mark.parametrize("name", NAMES)
def test_every_function_exists(name: str) -> None:
    assert callable(pkgutil.resolve_name(name))


def test_every_row_has_a_function() -> None:
    assert len(ROWS) >= 25
    place, checked = None, []
    for line in MAP.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith(HEADS):
            place = next(column for column, head in enumerate(cells) if head in ("function", "computed by"))
        elif line in ROWS:
            assert place is not None and re.search(r"`isornn\.[\w.]+`|as chi", cells[place]), line
            checked.append(line)
    assert checked == ROWS


def test_every_quantity_of_an_analysis_is_named() -> None:
    answers = {"mu*", "Q*", "C*", "chi", "xi", "chi_1", "reach", "m1", "m2", "xi_Q", "P_t", "lambda"}
    symbols = {symbol.strip() for row in ROWS for symbol in row.split("|")[1].split(",")}
    assert answers <= symbols


def test_the_map_covers_the_public_functions() -> None:
    verbs = [name for name in isornn.theory.__all__ if name.islower() and name not in NOT_QUANTITIES]
    named = {name.rsplit(".", 1)[1] for name in NAMES}
    assert [verb for verb in verbs if verb not in named] == []


NOT_QUANTITIES = {
    "analyze",
    "analyze_stack",
    "chosen",
    "compare",
    "costs",
    "kernel_estimate",
    "pareto_front",
    "subspace",
}
