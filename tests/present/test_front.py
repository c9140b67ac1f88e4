"""The picture of a subspace."""

from pathlib import Path

import pytest

from isornn.cells import Gate, Peephole, Spec, Vanilla
from isornn.present.front import LABELS, draw_front
from isornn.theory import COSTS, ParetoFront, Range, pareto_front

BASE = Spec(Peephole(), {"i": Gate(input_var=0.1), "g": Gate(input_var=1.0)})
RANGES = (Range("f.bias_mean", 2.0, 7.0), Range("f.weight_var", 1e-4, 1.0, log=True))


@pytest.fixture(scope="module")
def front() -> ParetoFront:
    return pareto_front(BASE, 50, RANGES, specs=24)


def test_every_cost_has_a_label() -> None:
    assert LABELS.keys() == {"score", *COSTS}


@pytest.mark.parametrize("show", LABELS)
def test_draws_every_cost(tmp_path: Path, front: ParetoFront, show: str) -> None:
    file = tmp_path / "front.png"
    draw_front(front, "f.bias_mean", "f.weight_var", file, show=show, taken=3)
    assert file.stat().st_size > 10_000 and list(tmp_path.iterdir()) == [file]


def test_says_what_is_drawn(tmp_path: Path, front: ParetoFront) -> None:
    file = tmp_path / "front.svg"
    draw_front(front, "f.weight_var", "f.bias_mean", file, taken=0)
    text = file.read_text(encoding="utf-8")
    assert all(word in text for word in ("Pareto front", "taken", "reach at least T", "reach below T", "f.weight_var"))


def test_without_any_number(tmp_path: Path) -> None:
    linear = Spec(Vanilla("identity"), {"h": Gate(input_var=1.0)})
    hopeless = pareto_front(linear, 10, [Range("h.weight_var", 1.2, 1.5), Range("h.bias_mean", 0, 1)], specs=8)
    file = tmp_path / "front.svg"
    draw_front(hopeless, "h.weight_var", "h.bias_mean", file)
    assert "no fixed point" in file.read_text(encoding="utf-8")
