"""The report's page in a real browser: it opens without a network, and says all it has to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from selenium import webdriver
from selenium.webdriver.common.by import By
from torch import nn

import isornn
from chromium import asked, contrast, darkened
from isornn.reports import Report
from isornn.reports.page import page

PANELS = (
    "Gradient, backwards",
    "Gradient of your loss",
    "Nearby states, forwards",
    "Gates",
    "Time constants of units",
    "States over time",
    "Singular values of one step",
    "Lyapunov exponents",
)


@pytest.fixture(scope="module")
def report() -> Report:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("<b>&'rnn", nn.GRU(3, 12, num_layers=2))
    x = torch.randn(40, 4, 3)
    return isornn.diagnose(model, x, target=lambda output: output[0][-1].square().sum(), theory=False)


def test_it_opens_without_a_network(report: Report, browser: webdriver.Chrome, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    report.to_html(file)
    assert list(tmp_path.glob(".*")) == []
    browser.get(file.as_uri())
    browser.execute_async_script("Promise.all(places.map(draw)).then(arguments[0])")
    drawn = browser.find_elements(By.CSS_SELECTOR, "[role=img] .main-svg .scatterlayer, [role=img] .main-svg .barlayer")
    assert len(browser.find_elements(By.CSS_SELECTOR, "[role=img]")) == 1 + 2 * len(PANELS)
    assert len({one.find_element(By.XPATH, "ancestor::*[@role='img']").id for one in drawn}) == 1 + 2 * len(PANELS)
    assert asked(browser) == [file.as_uri()]
    assert browser.get_log("browser") == []

    headings = [one.text for one in browser.find_elements(By.CSS_SELECTOR, "h1, h2, h3")]
    names = [layer.info.name for layer in report.diagnosis.layers]
    assert headings[:2] == ["Sequential: 2 findings", "Findings"] and headings[-2:] == names
    for text in ("[role=img]", "table"):
        assert all(one.get_attribute("aria-label") for one in browser.find_elements(By.CSS_SELECTOR, text))
    shown = browser.find_element(By.CSS_SELECTOR, "#findings").text
    for finding in report.findings:
        assert finding.sentence in shown and finding.remedy.splitlines()[-1] in shown

    assert contrast(browser) > 7
    darkened(browser)
    assert contrast(browser) > 7
    assert "rgb(255, 255, 255)" not in browser.execute_script(
        "return [...document.querySelectorAll('.card')].map((one) => getComputedStyle(one).backgroundColor)"
    )


def test_names_are_no_html(report: Report) -> None:
    text = page(report.diagnosis, report.findings, report.notes)
    assert "<b>&'rnn" not in text and "&lt;b&gt;&amp;&#39;rnn l0" in text
    assert text.count("Content-Security-Policy") == 1 and text.count('id="plotly"') == 1


def test_a_page_of_two_layers_has_at_most_2_MB(report: Report) -> None:
    assert len(page(report.diagnosis, report.findings, report.notes).encode()) <= 2e6
