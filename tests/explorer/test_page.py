"""The page in a real browser: headless Chromium, where Debian's packages chromium and chromium-driver are installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import isornn
from isornn.cells import Gate, Spec, cell_named
from isornn.reports.words import value_of
from isornn.theory import analyze

Served = Callable[..., Any]
SPEC = Spec(cell_named("t_rnn"), {"f": Gate(input_var=1.0, bias_mean=1.0), "z": Gate(input_var=1.0)})
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PATIENCE = 60  # seconds, for machines with other work to do


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path}", "--window-size=1440,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield found
    finally:
        found.quit()


class Page:
    """What a person does on the page and sees there."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def text(self, name: str) -> str:
        return self.browser.find_element(By.ID, name).text

    def slider(self, path: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, f"input[type=range][id*='\"{path}\"']")

    def settled(self, **wanted: str) -> None:
        """Wait until nothing is being computed and these elements hold these words."""

        def done(browser: webdriver.Chrome) -> bool:
            marked = browser.find_elements(By.CSS_SELECTOR, ".stale, .page:not(:has(#xi-value))")
            return not marked and all(words in self.text(name.replace("_", "-")) for name, words in wanted.items())

        WebDriverWait(self.browser, PATIENCE).until(done, f"the page does not come to {wanted}")

    def focused(self) -> str:
        return str(self.browser.execute_script("return document.activeElement.id"))

    def press(self, key: str) -> None:
        webdriver.ActionChains(self.browser).send_keys(key).perform()

    def tab_to(self, wanted: str) -> None:
        for _ in range(60):
            if wanted in self.focused():
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the Tab key does not come to {wanted}")

    def contrast(self) -> float:
        """Of the text against the cards, as WCAG has it."""
        colours = self.browser.execute_script(
            "const of = (e, what) => getComputedStyle(e)[what].match(/[0-9.]+/g).slice(0, 3).map(Number);"
            "return [of(document.body, 'color'), of(document.querySelector('.card'), 'backgroundColor')]"
        )
        linear = [[((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in one] for one in colours]
        light = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05 for r, g, b in linear), reverse=True)
        return light[0] / light[1]


def seen(spec: Spec, name: str) -> str:
    return value_of(dict(analyze(spec).quantities())[name])


def test_the_page_by_keyboard(browser: webdriver.Chrome, served: Served, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(SPEC.to_json()), encoding="utf-8")
    with served(str(file)) as (_, address):
        page = Page(browser)
        browser.get(address)
        page.settled(xi_value=seen(SPEC, "xi"))

        page.tab_to("f.bias_mean")
        for _ in range(5):
            page.press(Keys.ARROW_RIGHT)
        moved = SPEC.replace("f.bias_mean", 1.5)
        page.settled(xi_value=seen(moved, "xi"), python="bias_mean=1.5")
        assert seen(moved, "xi") != seen(SPEC, "xi")
        assert spec_of_line(page.text("python")) == moved

        page.tab_to("input.variance")
        page.press(Keys.ARROW_LEFT)
        page.settled(xi_value=seen(moved.replace("input.variance", 0.8), "xi"))

        number = browser.find_element(By.CSS_SELECTOR, "input[type=number][id*='z.bias_var']")
        number.send_keys(Keys.CONTROL, "a")
        number.send_keys("-1")
        WebDriverWait(browser, PATIENCE).until(
            lambda _: "gates.z.bias_var: -1.0 is not allowed" in page.text("refusal")
        )
        number.send_keys(Keys.CONTROL, "a")
        number.send_keys("0")
        WebDriverWait(browser, PATIENCE).until(lambda _: not page.text("refusal"))

        browser.execute_script("document.getElementById('length').focus()")
        page.tab_to("critical")
        page.press(Keys.ENTER)
        page.settled(
            python="isornn.init.critical_(module, length=500", message="The critical start for T = 500 is set."
        )
        assert page.text("xi-value") == "undefined" and page.text("reach-value").startswith("500")

        assert page.contrast() > 7
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
        assert page.contrast() > 7
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light

        assert browser.get_log("browser") == []
        assert hosts_asked(browser) == {urlsplit(address).netloc}
        browser.get("/".join(address.split("/")[:3]) + "/")
        assert "open the address that isornn explore printed" in browser.find_element(By.TAG_NAME, "body").text


def spec_of_line(line: str) -> Spec:
    """What the line hands to ``apply_``."""
    assert line.startswith("isornn.init.apply_(module, ") and line.endswith(")")
    found = eval(line.removeprefix("isornn.init.apply_(module, ")[:-1], {"isornn": isornn})
    assert isinstance(found, Spec)
    return found


def hosts_asked(browser: webdriver.Chrome) -> set[str]:
    """Hosts of all requests since the browser started, but for its own pages and what pages carry in themselves."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {urlsplit(url).netloc for url in asked if urlsplit(url).scheme not in ("chrome", "data", "blob")}
