"""What can be moved, and the line of Python that has it."""

from __future__ import annotations

import math

import pytest
import torch

import isornn
from isornn.cells import CELLS, FURTHER_CELLS, BiasLaw, OptionError, Spec, SpecError, cell_named
from isornn.cells.random_specs import random_spec
from isornn.cells.starts import start
from isornn.explorer.controls import choices_of, fields_of, moved, opening, shared_law
from isornn.explorer.work import from_text, to_text
from isornn.theory.critical_points.python_line import spec_line

EVERY = [*CELLS, *FURTHER_CELLS]


def spec_applied_by(line: str, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """What the line hands to ``apply_``, as Python runs it after ``import isornn``."""
    given: list[Spec] = []
    monkeypatch.setattr(isornn.init, "apply_", lambda module, spec: given.append(spec))
    exec(line, {"isornn": isornn, "module": None})
    return given[0]


def drawn(name: str, count: int) -> list[Spec]:
    generator = torch.Generator().manual_seed(0)
    return [random_spec(cell_named(name), generator) for _ in range(count)]


@pytest.mark.parametrize("name", EVERY)
def test_unmoved_values_give_the_same_spec(name: str) -> None:
    for spec in (opening(cell_named(name)), *drawn(name, 3)):
        values = {field.path: field.value for field in fields_of(spec)}
        words = {choice.path: choice.value for choice in choices_of(spec)}
        assert moved(spec, words | values) == spec


@pytest.mark.parametrize("name", EVERY)
def test_every_field_moves_what_it_names_and_nothing_else(name: str) -> None:
    spec = opening(cell_named(name))
    for field in fields_of(spec):
        other = 0.95 if field.path.startswith("options.") else 0.5  # between the others where they bound it
        after = moved(spec, {field.path: other})
        changed = [f.path for f, g in zip(fields_of(spec), fields_of(after), strict=True) if f.value != g.value]
        assert changed == [field.path] * (field.value != other)


def test_an_option_that_the_cell_does_not_have_is_not_offered() -> None:
    spec = opening(cell_named("vanilla"))
    assert "options.slope" not in {field.path for field in fields_of(spec)}
    sloped = moved(spec, {"options.nonlinearity": "prelu"})
    assert "options.slope" in {field.path for field in fields_of(sloped)}
    steep = moved(sloped, {"options.slope": 0.7})
    assert steep.cell == cell_named("vanilla", {"nonlinearity": "prelu", "slope": 0.7})
    assert moved(steep, {"options.nonlinearity": "tanh", "options.slope": 0.7}) == spec


def test_every_number_of_the_cell_lies_within_its_slider() -> None:
    sliders = {f.path: (f.low, f.value, f.high) for f in fields_of(opening(cell_named("lru")))}
    assert sliders["options.low"] == (0.0, 0.9, 1.0) and sliders["options.high"] == (0.0, 0.999, 1.0)
    assert sliders["options.max_phase"] == (0.0, 6.28, 10.0)
    (leak,) = (
        f for f in fields_of(opening(cell_named("vanilla(nonlinearity='prelu', slope=-20.0)"))) if f.label == "slope"
    )
    assert (leak.low, leak.high) == (-100, 100)


def test_options_that_bound_each_other_move_together() -> None:
    found = moved(opening(cell_named("lru")), {"options.low": 0.9995, "options.high": 0.9999}).cell
    assert found == cell_named("lru(low=0.9995, high=0.9999)")


def test_the_ends_of_time_scales_move_on_all_gates_and_keep_their_order() -> None:
    spec = start("chrono", cell_named("lstm"), 1, 1, 200)
    after = moved(spec, {"law.low": 10, "law.high": 400})
    assert after.gates["f"].bias_law == BiasLaw("timescale", 10.0, 400.0)
    assert after.gates["i"].bias_law == BiasLaw("timescale", 10.0, 400.0, -1)
    assert shared_law(moved(spec, {"law.low": 1000})) == BiasLaw("timescale", 1000.0, 1000.0)
    assert from_text(to_text(after)) == after


def test_words_change_the_cell_the_biases_and_the_matrices() -> None:
    spec = opening(cell_named("gru_cho"))
    after = moved(spec, {"options.gate": "hard_sigmoid", "biases": "fixed", "ensemble": "orthogonal"})
    assert after.cell == cell_named("gru_cho", {"gate": "hard_sigmoid"}) and after.biases == "fixed"
    assert {gate.ensemble for gate in after.gates.values()} == {"orthogonal"}
    margins = spec.replace("z.ensemble", 0.2)
    (choice,) = (choice for choice in choices_of(margins) if choice.path == "ensemble")
    assert choice.value == "as given" and moved(margins, {"ensemble": choice.value}) == margins


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        ("f.weight_var", -1, "gates.f.weight_var"),
        ("f.bias_mean", None, "f.bias_mean"),
        ("q.bias_mean", 1, "q.bias_mean"),
        ("law.high", 3, "law.high"),
        ("options.gate", "tanh", "options.gate"),
    ],
)
def test_what_cannot_be_is_refused_by_name(path: str, value: object, names: str) -> None:
    with pytest.raises((SpecError, OptionError), match=names):
        moved(opening(cell_named("lstm")), {path: value})


@pytest.mark.parametrize("name", list(CELLS))
def test_the_line_of_python_gives_the_same_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in drawn(name, 5):
        assert spec_applied_by(spec_line(spec), monkeypatch) == spec


def test_the_line_knows_laws_options_and_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = start("chrono", cell_named("lstm", {"gate": "hard_sigmoid"}), 7, 3, 200, isornn.Input(2.0, 0.5))
    spec = spec.replace("g.ensemble", 0.25)
    assert spec_applied_by(spec_line(spec), monkeypatch) == spec


def test_the_line_sets_a_module() -> None:
    torch.manual_seed(0)
    module = torch.nn.LSTM(64, 256)
    exec(spec_line(moved(opening(cell_named("lstm")), {"f.bias_mean": 3.5})), {"isornn": isornn, "module": module})
    found = isornn.init.spec_of(module).gates["f"]
    assert found.bias_mean == 3.5 and math.isclose(found.weight_var, 1, rel_tol=0.05)
