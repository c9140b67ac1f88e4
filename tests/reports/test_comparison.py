"""Two reports side by side."""

import base64
import gzip
import io
import json

import pytest
import torch
from rich.console import Console
from torch import nn

import isornn
from isornn.init import critical_
from isornn.records import RecordError
from isornn.reports import Comparison, Report
from isornn.reports.comparison import COLUMNS


@pytest.fixture(scope="module")
def reports():
    torch.manual_seed(0)
    x = torch.randn(60, 4, 3)
    model = nn.Sequential(nn.LSTM(3, 32, num_layers=2))
    before = isornn.diagnose(model, x)
    critical_(model, batch=x, generator=torch.Generator().manual_seed(0))
    return before, isornn.diagnose(model, x, length=50)


def test_findings_that_are_gone_new_and_in_both(reports):
    before, after = reports
    assert {(one.layer, one.kind) for one in Comparison({"a": before, "b": after}).gone} == {
        ("0 l0", "default_start"),
        ("0 l1", "default_start"),
    }
    backwards = Comparison({"b": after, "a": before})
    assert (len(backwards.gone), len(backwards.new), len(backwards.kept)) == (0, 2, 0)
    assert backwards.headline == "b and a: 2 findings new"
    same = Comparison({"a": before, "again": before})
    assert (len(same.gone), len(same.new), len(same.kept)) == (0, 0, 2)
    assert Comparison({"b": after, "again": after}).headline == "b and again: no findings in either"


def test_two_rows_a_layer_with_the_numbers_of_both(reports):
    before, after = reports
    compared = Comparison({"a": before, "b": after})
    rows = compared.rows()
    assert [row[:2] for row in rows] == [("0 l0", "a"), ("0 l0", "b"), ("0 l1", "a"), ("0 l1", "b")]
    assert {len(row) for row in rows} == {len(COLUMNS)}
    xi = [float(row[COLUMNS.index("ξ")].split()[0]) for row in rows]
    measured = [one.diagnosis.layers[layer].backward.xi.number() for layer in (0, 1) for one in (before, after)]
    assert xi == pytest.approx(measured, rel=0.02)
    printed = io.StringIO()
    Console(width=200, file=printed).print(compared)
    text = printed.getvalue()
    assert "only in a" in text and "a: Sequential, T = 60; 2 findings" in text and "b: Sequential, T = 50" in text
    assert str(compared).startswith(compared.headline) and "only in a" in str(compared)
    assert repr(compared) == "<Comparison of a and b: 2 findings gone>"


def test_layers_that_one_of_them_lacks_are_shown(reports):
    other = isornn.diagnose(nn.Sequential(nn.LSTM(3, 16)), torch.randn(60, 4, 3))
    rows = Comparison({"a": reports[0], "b": other}).rows()
    assert [row[:2] for row in rows] == [("0 l0", "a"), ("0 l0", "b"), ("0 l1", "a")]


def test_files_are_compared_as_the_reports_are(reports, tmp_path):
    files = []
    for number, report in enumerate(reports):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(report.to_json()))
    read = [Report.read(file) for file in files]
    assert Comparison({"a": read[0], "b": read[1]}).rows() == Comparison({"a": reports[0], "b": reports[1]}).rows()
    assert read[0].to_json()["findings"] == reports[0].to_json()["findings"]
    with pytest.raises(ValueError, match="it no longer exists"):
        read[0].fix_()


def test_the_page_draws_both(reports, tmp_path):
    file = tmp_path / "compared.html"
    Comparison({"<before>": reports[0], "after": reports[1]}).to_html(file)
    text = file.read_text()
    assert text.count("data-figure=") == 2 and "<before>" not in text and "&lt;before&gt;: " not in text
    assert "Only in &lt;before&gt;" in text and len(text.encode()) <= 2e6
    packed = text.partition('id="figures">')[2].partition("</script>")[0]
    figures = json.loads(gzip.decompress(base64.b85decode(packed.replace("'", "<"))))["figures"]
    assert [{line["name"] for line in figure["data"]} for figure in figures] == 2 * [{"&lt;before&gt;", "after"}]
    marked = {line["x0"] for line in figures[0]["layout"]["shapes"] if line["x0"] == line["x1"]}
    assert marked == {50, 60}


def test_two_reports_are_needed(reports):
    with pytest.raises(ValueError, match="reports: 1 are not allowed"):
        Comparison({"a": reports[0]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("[1]", r"\[1\] is not allowed; it must be the report"),
        ("{}", "model: it is missing"),
        ('{"notes": 3}', "notes: 3 is not allowed"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=rf"other.json: .*{message}"):
        Report.read(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RecordError, match="not readable"):
        Report.read(tmp_path / "none.json")
