"""The picture of the memory that data needs."""

from pathlib import Path

import pytest

from isornn.lookback import Memory
from isornn.lookback.record import NOTHING, TOO_FEW
from isornn.present.memory import draw_memory, memory_panel
from isornn.present.plotly import figure_of

FOUND = Memory((1, 2, 4, 8), (0.0, 0.1, 0.8, 0.81), (0.0, 0.03, 0.02, 0.02), 4, "", "R^2", 100, 100, 0.2, True)
ANSWERS = {
    "a length": FOUND,
    "nothing": Memory((1, 2), (-1e-3, -9.0), (0.0, 2.0), None, NOTHING, "Brier skill", 50, 400, 0.4, True),
    "too few": Memory((), (), (), None, TOO_FEW, "R^2", 5, 5, 4.2, True),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_is_drawn_whatever_the_answer(tmp_path: Path, name: str) -> None:
    file = tmp_path / "memory.svg"
    draw_memory(ANSWERS[name], file)
    assert file.read_text(encoding="utf-8").startswith("<?xml")
    figure_of(memory_panel(ANSWERS[name]))


def test_the_length_is_marked() -> None:
    panel = memory_panel(FOUND)
    assert [mark.place for mark in panel.marks] == [0.0, 4] and panel.curves[0].error == FOUND.errors
    found, evidence, *_ = str(FOUND).splitlines()
    assert found == "The last 4 steps of the inputs are enough."
    assert evidence.startswith("R^2 0.800 ± 0.020; with 2 steps 0.100 ± 0.030")
