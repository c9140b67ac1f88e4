"""Figures as notebooks and files have them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from isornn import Gate, Spec, analyze, memory, spectrum
from isornn.cells import TRNN, Vanilla
from isornn.diagnosis import Monitor
from isornn.figures import Curve, Panel
from isornn.present import (
    draw_analysis,
    draw_gradients,
    draw_memory,
    draw_panels,
    draw_phase,
    draw_singular_values,
    draw_spectrum,
    draw_watch,
)
from isornn.present.matplotlib import Drawing
from isornn.theory import phase_diagram

PNG = b"\x89PNG"
TYPED = Spec(TRNN(), {"f": Gate(input_var=1.0), "z": Gate(input_var=1.0)})


def _record() -> Monitor:
    model = nn.RNN(2, 3)
    with Monitor(model, every=1) as monitor:
        model(torch.randn(4, 2, 2))[0].sum().backward()
        monitor.step()
    return monitor


DRAWN: dict[str, Callable[[str | None], Drawing]] = {
    "analysis": lambda file: draw_analysis(analyze(TYPED, length=5), file),
    "memory": lambda file: draw_memory(memory(torch.randn(5, 3, 1), torch.randn(5)), file),
    "phase": lambda file: draw_phase(
        phase_diagram(Spec(Vanilla()), ("h.weight_var", [0.5, 1.0]), ("h.bias_var", [0.1, 0.2])), "xi", file
    ),
    "spectrum": lambda file: draw_spectrum(spectrum(TYPED), file),
    "watch": lambda file: draw_watch(_record().record, file),
    "gradients": lambda file: draw_gradients({"a": _record().record}, file),
    "singular values": lambda file: draw_singular_values({"a": _record().record}, file),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_notebook_shows_it_and_no_file_is_needed(name: str, tmp_path: Path) -> None:
    assert DRAWN[name](None)._repr_png_().startswith(PNG)
    file = tmp_path / "figure.png"
    assert DRAWN[name](str(file)).axes and file.read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["picture", "picture.txt", ""])
def test_other_endings_are_refused_and_leave_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"file: .* is not allowed; its name must end in \.png, \.pdf, \.svg"):
        draw_panels("", [Panel("", "", "")], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        draw_panels("", [Panel("", "", "")], tmp_path / "missing" / "picture.png")
    assert raised.value.filename == str(tmp_path / "missing" / "picture.png")


def test_lines_beyond_the_last_colour_are_told_from_those_of_the_same_colour() -> None:
    (axes,) = draw_panels("", [Panel("", "", "", [Curve([0, 1], [k, k]) for k in range(10)])]).axes
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 10
