"""The explorer with a cell of the user's own: its page, its controls, its callbacks and their processes."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

import isornn
from isornn.cells import Cell, Spec
from isornn.cells.catalogue import cell_named
from isornn.explorer import work
from isornn.explorer.access import new_token
from isornn.explorer.controls import choices_of, fields_of, moved, opening
from isornn.explorer.latest import Latest
from isornn.explorer.server import explorer
from isornn.theory.critical_points.python_line import spec_line
from own_cells import MGU, Counted, Gated, Leaky, Many, Outer

TOKEN, PORT = new_token(), 8123
HOST = f"127.0.0.1:{PORT}"
MODULE = """
from dataclasses import dataclass
from own_cells import Leaky

@dataclass(frozen=True)
class Mine(Leaky):
    name = "mine"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    """A cell in a module that no other process has imported."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield cell_named("mine:Mine(rate=0.25)", allow=("mine",))
    sys.modules.pop("mine")


@pytest.mark.parametrize("cell", [MGU(), Leaky(0.25), Gated("hard_sigmoid"), Many((0.5,)), Counted(power=3)], ids=repr)
def test_controls_take_the_cell_as_it_is(cell: Cell) -> None:
    spec = opening(cell)
    values = {field.path: field.value for field in fields_of(spec)} | {c.path: c.value for c in choices_of(spec)}
    assert moved(spec, values) == spec
    assert work.from_text(work.to_text(spec)) == spec


def test_options_without_a_control_stay_when_others_move() -> None:
    spec = opening(Counted("hard_sigmoid", power=2, residual=True))
    found = moved(spec, {"options.gate": "sigmoid", "options.rate": 0.75}).cell
    assert found == Counted("sigmoid", power=2, residual=True, rate=0.75)


def test_options_of_the_cell_move() -> None:
    assert moved(opening(Leaky(0.25)), {"options.rate": 0.75, "f.bias_mean": 2}).cell == Leaky(0.75)
    assert moved(opening(Gated()), {"options.gate": "hard_sigmoid"}).cell == Gated("hard_sigmoid")


@pytest.mark.parametrize("cell", [Leaky(0.25), Gated("hard_sigmoid"), Outer.Inner()], ids=repr)
def test_the_line_runs_as_it_is(cell: Cell) -> None:
    module, spec = isornn.nn.RNN(cell, 4, 64), moved(opening(cell), {"f.bias_mean": 3.5})
    exec(spec_line(spec), {"isornn": isornn, "module": module})
    found = isornn.init.spec_of(module)
    assert found.cell == cell and found.gates["f"].bias_mean == 3.5


def called(client: FlaskClient, outputs: list[str], inputs: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """What a callback answers, by output, and what it sets elsewhere."""

    def target(name: str) -> dict[str, Any]:
        return dict(zip(("id", "property"), name.split("."), strict=True))

    def listed(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [target(name) | {"value": value} for name, value in values.items()]

    body = {
        "output": f"..{'...'.join(outputs)}..",
        "outputs": [target(name) for name in outputs],
        "inputs": listed(inputs),
        "state": listed(state),
        "changedPropIds": [next(iter(inputs))],
    }
    answer = client.post(f"/{TOKEN}/_dash-update-component", json=body, headers={"Host": HOST})
    assert answer.status_code == 200, answer.text
    found = answer.get_json()
    return dict(found["response"] | found.get("sideUpdate", {}))


def test_the_page_and_its_callbacks(mine: Cell) -> None:
    spec = opening(mine)
    with Latest(["mine"]) as latest:
        client = explorer(spec, TOKEN, PORT, latest).server.test_client()
        layout = json.dumps(client.get(f"/{TOKEN}/_dash-layout", headers={"Host": HOST}).get_json())
        assert '"value": "mine:Mine"' in layout and "options.rate" in layout
        values = {field.path: field.value for field in fields_of(spec)} | {c.path: c.value for c in choices_of(spec)}
        base = {"spec": work.to_text(spec), "python": None, "length": None}
        found = called(
            client,
            ["spec.data", "python.children", "refusal.children"],
            {"moves.data": values | {"options.rate": 0.5}},
            {"base.data": base},
        )
        text = found["spec"]["data"]
        assert Spec.from_json(json.loads(text)).cell == type(mine)(rate=0.5)  # type: ignore[call-arg]

        def begun(by: str, cell: str, start: str) -> dict[str, Any]:
            inputs = {"cell.value": cell, "critical.n_clicks": 0, "set.n_clicks": 1}
            state = {"start.value": start, "length.value": 20, "hidden.value": 16, "inputs.value": 4}
            state |= {"spec.data": text, "tab.data": "tab"}
            return called(
                client,
                ["base.data", "panel.children", "message.children"],
                {by: inputs.pop(by)} | inputs if by != "cell.value" else inputs,
                state,
            )

        assert begun("cell.value", "mine:Mine", "torch")["base"]["data"]["spec"] == work.to_text(opening(type(mine)()))
        assert "'absent' is not imported" in begun("cell.value", "absent:Cell", "torch")["message"]["children"]


def test_the_command_serves_the_cell(served: Callable[..., Any]) -> None:
    with served("--cell", "own_cells:Leaky(rate=0.25)") as (_, address), urllib.request.urlopen(address) as answer:
        assert answer.status == 200


def test_processes_know_the_cell(mine: Cell) -> None:
    text = work.to_text(opening(mine))
    with Latest(["mine"]) as latest:
        found = latest.ask("numbers", work.numbers, text, 20)
        assert found["engine"] == "quadrature" and found["moments"] is not None
        begun = latest.ask("start", work.starting_point, "torch", text, 16, 4, 20)
        assert Spec.from_json(json.loads(begun["spec"])).cell == mine
    with Latest() as latest, pytest.raises(ValueError, match="'mine' is not imported"):
        latest.ask("numbers", work.numbers, text, 20)


def test_values_that_are_refused_are_not_said_to_be_computed() -> None:
    text = work.to_text(opening(Leaky()))
    with Latest(["own_cells"]) as latest:
        client = explorer(opening(Leaky()), TOKEN, PORT, latest).server.test_client()
        shown = ["answer.data", "headline.children", "numbers.children", "fading-figure.figure"]
        shown += ["fading-caption.children", "time_scales-figure.figure", "time_scales-caption.children"]

        def asked(length: int | None) -> dict[str, Any]:
            return called(client, shown, {"spec.data": text, "length.value": length}, {"tab.data": "tab"})

        empty = asked(None)
        assert empty["numbers-of"]["data"] == f"refused {text} " and "T: give" in empty["refusal"]["children"]
        assert "cobweb-of" not in empty  # figures do not depend on T
        refused = asked(-5)
        assert refused["numbers-of"]["data"] == f"refused {text} -5" and "-5" in refused["refusal"]["children"]
        assert refused["cobweb-of"]["data"] == refused["spectrum-of"]["data"] == f"refused {text}"
        assert asked(20)["numbers-of"]["data"] == f"{text} 20"
