"""Phase diagrams on disk."""

import json
from pathlib import Path

import pytest
import torch

from isornn.cells import Gate, Spec, Vanilla
from isornn.experiments.phase_record import load_phase, resumed_phase, save_phase
from isornn.records import RecordError
from isornn.theory.phase import PhaseDiagram, phase_diagram

LINEAR = Spec(Vanilla("identity"), {"h": Gate(1.0, 1.0)})
AXES = ("h.weight_var", [0.5, 0.9, 1.2]), ("h.bias_mean", [0.0, 1.0])


@pytest.fixture(scope="module")
def diagram() -> PhaseDiagram:
    return phase_diagram(LINEAR, *AXES)


def test_npz_holds_everything(tmp_path: Path, diagram: PhaseDiagram) -> None:
    save_phase(diagram, tmp_path / "map.npz")
    loaded = load_phase(tmp_path / "map.npz")
    assert loaded.is_of(LINEAR, *AXES, None) and loaded.engine == "quadrature"
    for name in ("residual", "converged", "asked", "answered"):
        assert torch.equal(getattr(loaded, name), getattr(diagram, name))
    for name, quantity in diagram.quantities.items():
        other = loaded.quantities[name]
        assert torch.equal(other.value.nan_to_num(-1.0), quantity.value.nan_to_num(-1.0))
        assert torch.equal(other.stderr.nan_to_num(-1.0), quantity.stderr.nan_to_num(-1.0))
        assert [(r, w.tolist()) for r, w in other.reasons] == [(r, w.tolist()) for r, w in quantity.reasons]


def test_json_is_strict(tmp_path: Path, diagram: PhaseDiagram) -> None:
    save_phase(diagram, tmp_path / "map.json")
    data = json.loads((tmp_path / "map.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert data["x"] == {"path": "h.weight_var", "values": [0.5, 0.9, 1.2]}
    assert data["xi"][0][2] is None and "no fixed point" in data["reasons"][data["xi.reason"][0][2]]
    assert data["xi"][0][0] == pytest.approx(1.4427, rel=1e-4) and data["converged"][0] == [True, True, False]


def test_what_is_no_diagram_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "map.npz"
    with pytest.raises(RecordError, match="not readable"):
        load_phase(file)
    file.write_text("something else", encoding="utf-8")
    with pytest.raises(RecordError, match="not a phase diagram"):
        load_phase(file)


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    kept = tmp_path / "begun.npz"
    axes = ("h.weight_var", torch.linspace(0.1, 0.9, 60)), ("h.bias_mean", [0.0, 1.0])

    def interrupt(_: PhaseDiagram) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resumed_phase(LINEAR, *axes, kept, progress=interrupt)
    assert int(load_phase(kept).answered.sum()) == 100
    parts: list[PhaseDiagram] = []
    resumed = resumed_phase(LINEAR, *axes, kept, progress=parts.append)
    assert len(parts) == 1 and resumed.finished and not list(tmp_path.iterdir())
    assert torch.equal(resumed.quantities["xi"].value, phase_diagram(LINEAR, *axes).quantities["xi"].value)


def test_what_is_kept_of_something_else_is_not_taken_up(tmp_path: Path) -> None:
    kept = tmp_path / "begun.npz"
    save_phase(phase_diagram(LINEAR.replace("h.input_var", 2.0), *AXES), kept)
    parts: list[PhaseDiagram] = []
    resumed_phase(LINEAR, *AXES, kept, progress=parts.append)
    assert len(parts) == 1
