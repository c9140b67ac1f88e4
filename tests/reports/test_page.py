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
from isornn.reports.decades import decades
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


def test_curves_of_logarithms_are_labelled_with_their_values(
    report: Report, browser: webdriver.Chrome, tmp_path: Path
) -> None:
    report.to_html(tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    browser.execute_async_script("Promise.all(places.map(draw)).then(arguments[0])")
    curve = browser.execute_script("return places[1].data.map(({x, y, name, customdata}) => [x, y, name, customdata])")
    x, y, _, labels = next(one for one in curve if one[2] == "measured")
    profile = report.diagnosis.layers[0].backward
    assert x == profile.lags.tolist()
    assert y == pytest.approx(decades(profile), abs=6e-4 * max(map(abs, y)))
    assert [float(label) for label in labels] == pytest.approx(10 ** decades(profile), rel=0.05)
    powers = browser.execute_script("return [null, -400.3, -47.3, -3, -0.5, 0, 4].map(powerOfTen)")
    assert powers == ["", "5e-401", "5.0e-48", "1.0e-3", "0.316", "1", "1.0e4"]


def test_a_page_of_two_bidirectional_layers_has_at_most_2_MB() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(16, 64, num_layers=2, bidirectional=True)
    report = isornn.diagnose(model, torch.randn(400, 16, 16))
    assert len(page(report.diagnosis, report.findings, report.notes).encode()) <= 2e6
