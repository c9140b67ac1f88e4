"""The picture of an analysis."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from isornn.cells import Gate, Peephole, Spec, Vanilla, cell_named
from isornn.formatting import with_error
from isornn.present import draw_analysis
from isornn.present.analysis import _response, response_panel
from isornn.theory.analysis import analyze

SPECS = {
    "fades": Spec(Vanilla(), {"h": Gate(weight_var=0.5, input_var=1.0)}),
    "identity matrices have no theory": Spec(Vanilla(), {"h": Gate(weight_var=1.0, ensemble="identity")}),
    "nothing is left after one step": Spec(Vanilla(), {"h": Gate(input_var=1.0)}),
    "does not fade": Spec(Peephole(), {"f": Gate(bias_mean=1e6), "g": Gate(weight_var=1.0)}),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [None, 7, 1000])
def test_is_drawn_whatever_the_answer(tmp_path: Path, name: str, length: int | None) -> None:
    file = tmp_path / "figure.svg"
    draw_analysis(analyze(SPECS[name], length=20), file, length)
    assert file.read_text(encoding="utf-8").startswith("<?xml")


def test_a_sampled_reach_has_its_error_in_the_legend() -> None:
    found = analyze(Spec(cell_named("lstm"), {"f": Gate(input_var=1.0)}), length=20)
    panel = response_panel(found)
    assert f"reach {with_error(found.reach)} steps" in [curve.label for curve in panel.curves]
    assert "±" in with_error(found.reach) and with_error(found.reach) in str(panel.caption)


def test_leaves_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="its name must end in"):
        draw_analysis(analyze(SPECS["fades"], length=5), tmp_path / "figure.nonsense")
    assert list(tmp_path.iterdir()) == []


def test_a_response_of_one_step_is_one_point() -> None:
    found = replace(analyze(SPECS["fades"], length=20), profile=torch.tensor([1.0, 0.5]).double())
    times, values, _ = _response(found)
    assert times.tolist() == [1] and values.tolist() == [1.0]
    for nothing in ([1.0], [1.0, 0.0], [1.0, math.nan, 0.5]):
        times, values, _ = _response(replace(found, profile=torch.tensor(nothing).double()))
        assert len(times) == len(values) == 0
