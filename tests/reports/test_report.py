"""What a report says in the terminal and as JSON, and what it does when told to."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import isornn
from isornn.diagnosis import Finding, Predicted, measure
from isornn.diagnosis import findings as judged
from isornn.reports import Report, diagnose
from isornn.reports.page import page


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LSTM(4, 24, batch_first=True))


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.randn(4, 60, 4, generator=torch.Generator().manual_seed(1))


def test_it_measures_and_judges_and_leaves_the_model_alone(model: nn.Module, batch: torch.Tensor) -> None:
    before = copy.deepcopy(model.state_dict())
    report = isornn.diagnose(model, batch, length=90, theory=False)
    found = measure(model, batch, length=90, theory=False)
    assert report.diagnosis.to_json() == found.to_json() and report.findings == judged(found) != ()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert isornn.diagnose is diagnose


def test_json_is_strict_and_begins_with_the_verdicts(model: nn.Module, batch: torch.Tensor) -> None:
    report = diagnose(model, batch, theory=False)
    read = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert next(iter(read)) == "findings"
    assert read["findings"][0]["layer"] == read["layers"][0]["info"]["name"] == "0 l0"
    assert read["layers"][0]["backward"]["xi"]["value"] == report.diagnosis.layers[0].backward.xi.number()


def test_the_verdicts_come_first_in_the_terminal(
    model: nn.Module, batch: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    report = diagnose(model, batch, theory=False)
    text = str(report)
    (finding,) = report.findings
    words = " ".join(text.split())
    assert text.startswith("Sequential, T = 60: 1 finding\n") and finding.kind.replace("_", " ") in text
    for said in (finding.sentence, finding.remedy.splitlines()[-1], *finding.evidence.values()):
        assert said in words
    assert finding.remedy in text
    xi = report.diagnosis.layers[0].backward.xi
    assert f" {xi.number():.4f} ± {xi.error():.4f} " in text.split("reach in theory")[1]
    console = Console(width=300)
    with console.capture() as shown:
        console.print(report)
    assert "0 l0" in shown.get()
    assert repr(report) == "<Report of Sequential, T = 60: 1 finding>"


def test_once_fixed_it_says_that_it_is_of_the_model_before(model: nn.Module, batch: torch.Tensor) -> None:
    report = isornn.diagnose(model, batch, theory=False)
    assert "diagnose it again" not in str(report)
    for _ in range(2):
        report.fix_(torch.Generator().manual_seed(0))
        assert str(report).count("fix_ has changed the model since") == 1
        assert sum("diagnose it again" in note for note in report.to_json()["notes"]) == 1
    sound = isornn.diagnose(model, batch, theory=False)
    sound.fix_()
    assert "diagnose it again" not in str(sound)


def test_a_fix_that_leaves_a_layer_alone_changes_no_report(model: nn.Module, batch: torch.Tensor) -> None:
    report = isornn.diagnose(model, 1e4 + batch, theory=False)
    done = report.fix_()
    assert done and all("left alone" in line for line in done)
    assert "diagnose it again" not in str(report)


@pytest.mark.parametrize("width", [40, 80])
def test_the_code_of_a_fix_is_whole_in_narrow_terminals(
    model: nn.Module, batch: torch.Tensor, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    report = diagnose(model, batch)
    code = report.findings[0].remedy
    assert max(map(len, code.splitlines())) <= 80
    assert code in str(report)


def test_a_missing_reach_in_theory_has_its_reason(model: nn.Module, batch: torch.Tensor) -> None:
    """In the terminal and on the page, whether the theory was not asked or has no answer."""
    report = diagnose(model, batch, theory=False)
    not_asked = " No reach in theory for 0 l0: not asked for; theory=True, or --theory on the command line, adds it."
    diagnosis = report.diagnosis
    refused = replace(diagnosis.layers[0], predicted=Predicted(None, None, "the cell is chaotic"))
    for found, said in (
        (diagnosis, not_asked),
        (replace(diagnosis, layers=(refused,)), " No reach in theory for 0 l0: the cell is chaotic."),
    ):
        assert said in " ".join(str(Report(found, ())).split())
        assert said in page(found, (), ())


def test_names_are_no_markup(batch: torch.Tensor) -> None:
    odd = nn.Sequential()
    odd.add_module("[red]rnn", nn.GRU(4, 8, batch_first=True))
    assert "[red]rnn l0" in str(diagnose(odd, batch, theory=False))


def test_a_healthy_model_has_no_verdict(model: nn.Module, batch: torch.Tensor) -> None:
    isornn.init.critical_(model, 60, generator=torch.Generator().manual_seed(0))
    report = diagnose(model, batch, theory=False)
    assert str(report).startswith("Sequential, T = 60: no findings\n")
    assert report.fix_() == []


def test_it_changes_weights_only_when_told_to(model: nn.Module, batch: torch.Tensor) -> None:
    report = diagnose(model, batch, theory=False)
    (done,) = report.fix_(torch.Generator().manual_seed(0))
    assert "0 l0" in done
    after = diagnose(model, batch, theory=False)
    assert after.findings == ()
    before, now = (one.diagnosis.layers[0].backward.reach.number() for one in (report, after))
    assert before < 2 < 30 < now


def test_it_keeps_no_model_in_memory(model: nn.Module, batch: torch.Tensor) -> None:
    report = diagnose(nn.GRU(4, 8, batch_first=True), batch, theory=False)
    with pytest.raises(ValueError, match="model: it no longer exists"):
        report.fix_()
    copied = pickle.loads(pickle.dumps(diagnose(model, batch, theory=False)))
    assert copied.to_json()["model"] == "Sequential"
    with pytest.raises(ValueError, match="model: it no longer exists"):
        copied.fix_()


def test_what_cannot_be_told_is_no_finding(model: nn.Module, batch: torch.Tensor) -> None:
    open_ = Finding("cannot_tell", None, "Too short.", {"steps": "3"})
    text = str(Report(measure(model, batch, theory=False), (open_,)))
    assert text.startswith("Sequential, T = 60: no findings; 1 not measured far enough\n")
    assert "the whole model: Too short." in text


def test_a_missing_extra_is_named(
    model: nn.Module, batch: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = diagnose(model, batch, theory=False)
    monkeypatch.setitem(sys.modules, "plotly", None)
    for asked in (report.figure, lambda: report.to_html(tmp_path / "report.html")):
        with pytest.raises(ModuleNotFoundError, match=r"isornn\[report\]"):
            asked()
    assert list(tmp_path.iterdir()) == []
    for name in [name for name in sys.modules if name.startswith("isornn.reports")]:
        monkeypatch.delitem(sys.modules, name)
    assert "0 l0" in str(importlib.import_module("isornn.reports").Report(report.diagnosis, report.findings))
