"""The picture of a phase diagram."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from isornn.cells import Gate, Spec, Vanilla
from isornn.present.phase import cell_edges, draw_phase
from isornn.theory.phase import QUANTITIES, PhaseDiagram, phase_diagram
from isornn.theory.quantity import Quantity
from isornn.theory.reasons import MARGINAL

TANH = Spec(Vanilla(), {"h": Gate(1.0, 0.001)})
LINEAR = Spec(Vanilla("identity"), {"h": Gate(1.0, 1.0)})


def diagram(spec: Spec) -> PhaseDiagram:
    return phase_diagram(spec, ("h.weight_var", torch.linspace(0.3, 3, 12)), ("h.bias_var", torch.logspace(-3, 0, 8)))


@pytest.fixture(scope="module")
def tanh() -> PhaseDiagram:
    return diagram(TANH)


@pytest.mark.parametrize("show", QUANTITIES)
def test_draws_every_quantity(tmp_path: Path, tanh: PhaseDiagram, show: str) -> None:
    draw_phase(tanh, show, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_says_what_is_drawn(tmp_path: Path, tanh: PhaseDiagram) -> None:
    draw_phase(tanh, "xi", tmp_path / "map.svg", [(3, 20), (6, 20), (6, 1e9)])
    text = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert "critical" in text and text.count("xi =") == 2  # the third line lies outside
    assert "no fixed point" not in text


def test_specs_without_a_number_are_hatched(tmp_path: Path) -> None:
    draw_phase(diagram(LINEAR), "xi", tmp_path / "map.svg")
    assert "no fixed point" in (tmp_path / "map.svg").read_text(encoding="utf-8")


def test_specs_that_are_marginal_are_infinite(tmp_path: Path, tanh: PhaseDiagram) -> None:
    endless = Quantity.of(torch.full_like(tanh.quantities["xi"].value, torch.inf), reasons={MARGINAL: True})
    draw_phase(replace(tanh, quantities={**tanh.quantities, "xi": endless}), "xi", tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text(encoding="utf-8")
    assert "infinite: changes do not fade" in text and "no fixed point" not in text


def test_nothing_but_missing_numbers(tmp_path: Path) -> None:
    grows = phase_diagram(LINEAR, ("h.weight_var", [1.1, 1.2]), ("h.bias_var", [0.1]))
    draw_phase(grows, "xi", tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").exists()


def test_cells_end_halfway() -> None:
    assert cell_edges(np.array([0.0, 2.0, 3.0])) == pytest.approx([-1, 1, 2.5, 3.5])
    assert cell_edges(np.array([1.0, 100.0, 10000.0])) == pytest.approx([0.1, 10, 1000, 100000])
