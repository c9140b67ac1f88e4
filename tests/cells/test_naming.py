"""Cells by name: the catalogue's by its own, all others by ``package.module:Class``; and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import isornn.cells
import own_cells
from isornn.cells import CELLS, FURTHER_CELLS, GRU, LSTM, SCRN, Cell, CellError, Gate, OptionError, Spec, SpecError
from isornn.cells.catalogue import _defined, by_name, cell_named, full_name, with_options
from isornn.nn import RNN
from isornn.theory.analysis import analyze
from own_cells import MGU, Leaky, Many

MODULE = """
from dataclasses import dataclass
from pathlib import Path
from own_cells import MGU

Path("imported").touch()

@dataclass(frozen=True)
class Mine(MGU):
    name = "mine"
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that leaves a file where it is imported; found, but not imported yet."""
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "__init__.py").touch()
    (tmp_path / "stranger" / "cells.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import sys\nsys.exit('good-bye')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    for name in ("stranger", "stranger.cells", "broken"):
        sys.modules.pop(name, None)


# -- the catalogue ----------------------------------------------------------------------------------------------------


def test_the_nine_and_the_others() -> None:
    assert list(CELLS) == ["vanilla", "minimal", "gru", "gru_cho", "lstm", "peephole", "t_rnn", "t_lstm", "t_gru"]
    assert {"lstm_gers", "lstm_coupled", "t_mr", "scrn"} <= FURTHER_CELLS.keys()
    assert not CELLS.keys() & FURTHER_CELLS.keys()
    assert all(kind.name == name and full_name(kind()) == name for name, kind in (CELLS | FURTHER_CELLS).items())


def test_a_cell_in_a_file_of_its_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fresh.py").write_text("from isornn.cells.lstm import LSTM\nclass Fresh(LSTM):\n    name = 'fresh'\n")
    monkeypatch.setattr(isornn.cells, "__path__", [*isornn.cells.__path__, str(tmp_path)])
    try:
        found = by_name(_defined())
        assert found.keys() == {*CELLS, *FURTHER_CELLS, "fresh"}
    finally:
        sys.modules.pop("isornn.cells.fresh", None)
        vars(isornn.cells).pop("fresh", None)


def test_two_cells_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Other(GRU):
        """Another."""

    with pytest.raises(ValueError, match=r"name: 'gru' is that of GRU and of Other"):
        by_name([GRU, Other])


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "cell"),
    [
        ("own_cells:MGU", None, MGU()),
        ("own_cells:Outer.Inner", None, own_cells.Outer.Inner()),
        ("own_cells:Leaky(rate=0.25)", None, Leaky(0.25)),
        ("own_cells:Leaky", {"rate": 0.25}, Leaky(0.25)),
        ("own_cells:Many(rates=(0.5, 0.25), label='x')", {}, Many((0.5, 0.25), "x")),
        ("own_cells:Many(rates=[-0.5])", {"label": "x"}, Many((-0.5,), "x")),
        ("isornn.cells.typed:SCRN(alpha=0.5)", None, SCRN(0.5)),
        ("scrn(alpha=0.5)", None, SCRN(0.5)),
        ("torch.nn.LSTM(gate='hard_sigmoid')", {}, LSTM("hard_sigmoid")),
    ],
)
def test_a_class_by_its_module(name: str, options: dict[str, object] | None, cell: Cell) -> None:
    assert cell_named(name, options) == cell


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("own_cell", {}, "'own_cell' is not one of vanilla, .*, nor package.module:Class"),
        (3, {}, "3 is not one of vanilla"),
        ("own_cells:Absent", {}, "own_cells:Absent: the module has no such class; its cells are "),
        ("own_cells:torch.nn.Linear", {}, "no cell, a subclass of isornn.cells.Cell"),
        ("own_cells:torch", {}, "no cell"),
        ("os:system", {}, "os:system: it is no cell"),
        ("isornn.cells.gated:GatedCell", {}, "it is abstract, without update"),
        ("own_cells:Undecorated", {}, "no frozen dataclass"),
        ("own_cells:Nameless", {}, "it has no name"),
        ("own_cells:Leaky(leak=0.5)", {}, "options.leak: 0.5 is not allowed; own_leaky has rate"),
        ("own_cells:Leaky(rate=0.5)", {"rate": 0.5}, "options.rate: 0.5 is not allowed, because .* sets it too"),
        ("own_cells:Many", {}, "options: Many\\(\\): TypeError: .*'rates'"),
        ("own_cells:Many(rates=[2])", {}, "options: Many\\(rates=\\[2\\]\\): RuntimeError: rates add to more than 1"),
        ("scrn(0.5)", {}, "each option once"),
        ("scrn(alpha=0.5", {}, "with literals for values"),
        ("scrn(alpha=0.5)()", {}, "each option once"),
        ("scrn(alpha=0.5)", {"alpha": 0.25}, "options.alpha: 0.25 is not allowed, because .* sets it too"),
        ("scrn(beta=0.5)", {}, "options.beta: 0.5 is not allowed; scrn has alpha"),
        ("own_cells:Leaky(0.5)", {}, "each option once"),
        ("own_cells:Leaky(rate=1, rate=2)", {}, "each option once"),
        ("own_cells:Leaky(**{'rate': 1})", {}, "each option once"),
        ("own_cells:Leaky(rate=print(1))", {}, "with literals for values"),
        ("own_cells:Leaky()()", {}, "each option once"),
        ("own_cells:[Leaky][0]", {}, "each option once"),
        ("own_cells:Leaky(", {}, "with literals for values"),
        ("own_cells:" + "(" * 500, {}, "with literals for values"),
        ("../own_cells:Leaky", {}, "package.module:Class"),
        ("..own_cells:Leaky", {}, "package.module:Class"),
        (":", {}, "package.module:Class"),
        ("own_cells:\0", {}, "package.module:Class"),
    ],
)
def test_what_is_no_name_of_a_cell_is_refused(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        cell_named(name, options)


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_is_a_name_or_refused(text: str, options: dict[str, str]) -> None:
    for name in (text, f"own_cells:{text}", f"own_cells:Leaky({text})", f"scrn({text})", f"{text}:Leaky"):
        with suppress(OptionError, CellError):
            assert isinstance(cell_named(name, options), Cell)


def test_values_that_cannot_be_hashed_are_refused() -> None:
    with pytest.raises(OptionError, match=r"hashable \(unhashable type: 'dict'\)"):
        cell_named("own_cells:Many(rates=[], label={})")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Misspelt", "own_misspelt.update: it asks for 'm'"),
        ("Forgetful", "own_forgetful.update: the state 'h' is not returned"),
        ("Summing", "own_summing.update: mean acts on several units together"),
        ("InPlaceByMethod", "own_in_place_by_method.update: mul_ changes a tensor in place"),
        ("InPlaceByFunction", "own_in_place_by_function.update: relu_ changes a tensor in place"),
        ("InPlaceByArgument", "own_in_place_by_argument.update: relu changes a tensor in place"),
        ("InPlaceByOut", "own_in_place_by_out.update: tanh changes a tensor in place"),
        ("InPlaceByAssignment", "own_in_place_by_assignment.output: an assignment such as \\+="),
        ("Highway", "own_highway.update: it uses the input x, .* input_enters_pointwise = True"),
        ("Copying", "own_copying.update: it uses the input x"),
        ("Switching", "own_switching.update: it uses the input x"),
        ("Undefined", "own_undefined.update: NameError: name 'nothing' is not defined"),
        ("Clashing", "own_clashing.parameters: 'f' is a gate's name too"),
        ("Wordy", "own_wordy.parameters: {'scale': 'one'} is not a mapping from names to finite numbers"),
        ("Raising", "own_raising: KeyError: 'scale'"),
        ("Gateless", "own_gateless.gates: None is not a mapping"),
    ],
)
def test_a_mistake_in_the_definition_names_cell_and_method(name: str, said: str) -> None:
    with pytest.raises(CellError, match=said):
        cell_named(f"own_cells:{name}")


def test_an_update_that_cannot_be_traced_is_no_mistake() -> None:
    assert cell_named("own_cells:Branching") == own_cells.Branching()


def test_an_input_in_the_update_is_no_mistake_once_declared() -> None:
    assert cell_named("own_cells:DeclaredHighway") == own_cells.DeclaredHighway()
    assert RNN(own_cells.DeclaredHighway(), 4, 4)(torch.ones(3, 2, 4))[0].isfinite().all()


# -- modules that a stranger names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stranger.cells:Mine", "antigravity:x", "stranger:cells.Mine"])
def test_a_module_that_is_not_imported_stays_so(stranger: Path, name: str) -> None:
    before = set(sys.modules)
    with pytest.raises(OptionError, match=r"is not imported, .*--allow-import (stranger|antigravity)\)"):
        cell_named(name, allow=("strange", "stranger.cells.Mine", "cells", ""))
    with pytest.raises(OptionError, match="is not imported"):
        Spec.from_json({"cell": name})
    assert not stranger.exists() and set(sys.modules) == before


@pytest.mark.parametrize("package", ["stranger", "stranger.cells"])
def test_a_package_that_is_allowed_is_imported(stranger: Path, package: str) -> None:
    cell = cell_named("stranger.cells:Mine", allow=("other", package))
    assert stranger.exists() and full_name(cell) == "stranger.cells:Mine"
    assert cell_named("stranger.cells:Mine") == cell  # imported by now


def test_nothing_is_computed_to_find_a_class(stranger: Path) -> None:
    (stranger.parent / "stranger" / "lazy.py").write_text(
        "from pathlib import Path\ndef __getattr__(name):\n    Path('imported').touch()\n"
    )
    with pytest.raises(OptionError, match="no such class"):
        cell_named("stranger.lazy:Mine", allow=("stranger",))
    assert not stranger.exists()


@pytest.mark.parametrize(("module", "why"), [("broken", "SystemExit: good-bye"), ("absent", "ModuleNotFoundError")])
def test_a_module_that_does_not_import(stranger: Path, module: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"'{module}' does not import: {why}"):
        cell_named(f"{module}:Mine", allow=(module,))


# -- spec files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [MGU(), own_cells.Outer.Inner(), Leaky(0.25), Many((0.5, 0.25))], ids=repr)
def test_a_spec_of_an_own_cell_reads_back(cell: Cell, tmp_path: Path) -> None:
    spec = Spec(cell, {"n": Gate(1.0, 0.5)}, biases="fixed")
    text = json.dumps(spec.to_json())
    (tmp_path / "spec.json").write_text(text)
    assert json.loads(text)["cell"] == f"own_cells:{type(cell).__qualname__}"
    assert Spec.load(tmp_path / "spec.json") == spec == Spec.from_json(json.loads(text))


def test_a_spec_file_of_a_stranger(stranger: Path, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({"cell": "stranger.cells:Mine"}))
    with pytest.raises(OptionError, match="allow-import stranger"):
        Spec.load(file)
    assert not stranger.exists()
    assert full_name(Spec.load(file, allow=("stranger",)).cell) == "stranger.cells:Mine"


def test_a_local_class_is_not_written() -> None:
    @dataclass(frozen=True)
    class Local(MGU):
        """In a function."""

    with pytest.raises(SpecError, match=r"cell: .*<locals>.Local' is not allowed; .*at the top of a module"):
        Spec(Local()).to_json()
    described = analyze(Spec(Local(), {"n": Gate(1.0, 1.0)}), length=2).to_json()
    assert described["spec"]["cell"].endswith("<locals>.Local")  # a record that nobody reads back


def test_a_class_in_main_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MGU, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "MGU", MGU, raising=False)
    with pytest.raises(SpecError, match="'__main__:MGU' is not allowed"):
        Spec(MGU()).to_json()


def test_a_name_that_is_another_class_by_now_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = MGU()
    monkeypatch.setattr(own_cells, "MGU", Leaky)
    with pytest.raises(SpecError, match="'own_cells:MGU' is not allowed"):
        Spec(cell).to_json()


@pytest.mark.parametrize("label", [b"bytes", float("inf"), frozenset({1})])
def test_options_that_json_does_not_hold_are_not_written(label: object) -> None:
    with pytest.raises(SpecError, match="options: .* in a file they are values of JSON"):
        Spec(with_options(Many, {"rates": (), "label": label})).to_json()


def test_a_cell_with_the_name_of_another_is_not_taken_for_it() -> None:
    class_of = type("Namesake", (MGU,), {"name": "gru", "__module__": "own_cells"})
    assert full_name(class_of()) == "own_cells:Namesake"
