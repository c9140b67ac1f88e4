"""What notebooks show of reports and answers: the text's facts as HTML, escaped and well formed."""

import html
import re
from html.parser import HTMLParser

import torch
from torch import nn

import isornn
from isornn.reports.comparison import Comparison
from isornn.reports.summary import rows


class Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def diagnosed(model: nn.Module) -> isornn.reports.Report:
    return isornn.diagnose(model, torch.randn(4, 60, 3, generator=torch.Generator().manual_seed(0)))


def test_a_report_has_its_findings_remedies_and_rows() -> None:
    torch.manual_seed(0)
    report = diagnosed(nn.LSTM(3, 16, 2, batch_first=True))
    page = report._repr_html_()
    Balanced(page)
    shown = text_of(page)
    assert report.findings
    for finding in report.findings:
        assert finding.sentence in shown and all(str(value) in shown for value in finding.evidence.values())
    for row in rows(report.diagnosis):
        assert all(cell in shown for cell in row)
    assert "<pre>" in page and "isornn.diagnosis.redraw_(model, 'LSTM l1', 60, batch)" in shown


def test_what_users_named_is_escaped() -> None:
    model = nn.Sequential()
    model.add_module("<b>&", nn.GRU(3, 8, batch_first=True))
    page = diagnosed(model)._repr_html_()
    Balanced(page)
    assert "<b>" not in page and "&lt;b&gt;&amp; l0" in page


def test_a_comparison_has_both_reports() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 16, batch_first=True)
    before = diagnosed(model)
    before.fix_(torch.Generator().manual_seed(1))
    compared = Comparison({"before": before, "after": diagnosed(model)})
    page = compared._repr_html_()
    Balanced(page)
    shown = text_of(page)
    assert compared.headline in shown and "only in before" in shown
    assert "before: LSTM, T = 60; 1 finding" in shown and "after: LSTM, T = 60; no findings" in shown
    assert all(cell in shown for row in compared.rows() for cell in row)


def test_answers_have_a_row_a_quantity() -> None:
    analysis = isornn.analyze(isornn.init.spec_of(nn.RNN(3, 8)), tied=True)
    page = analysis._repr_html_()
    Balanced(page)
    assert page.count("<tr>") == 1 + len(str(analysis).splitlines()[1:])
    assert all(str(quantity) in text_of(page) for _, quantity in analysis.quantities())


def test_memory_has_a_row_a_length() -> None:
    inputs = torch.randn(300, 12, 1, generator=torch.Generator().manual_seed(0))
    found = isornn.memory(inputs, inputs[:, -3:, 0].sum(1))
    page = found._repr_html_()
    Balanced(page)
    assert str(found).splitlines()[0] in text_of(page)
    assert page.count("<tr>") == 1 + len(found.lengths)
