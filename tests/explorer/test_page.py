"""The page in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

import isornn
from chromium import asked, contrast, darkened
from isornn.cells import Gate, Spec, cell_named
from isornn.formatting import value_of
from isornn.theory import analyze

Served = Callable[..., Any]
SPEC = Spec(cell_named("t_rnn"), {"f": Gate(input_var=1.0, bias_mean=1.0), "z": Gate(input_var=1.0)})
PATIENCE = 60  # seconds, for machines with other work to do


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

    def computing(self, name: str) -> bool:
        return "stale" in str(self.browser.find_element(By.ID, name).get_attribute("class"))

    def headline(self, but: str = "") -> str:
        """xi, once it is there and is another than ``but``."""

        def there(browser: webdriver.Chrome) -> str:
            shown = browser.find_elements(By.ID, "xi-value") and not self.computing("headline")
            xi = self.text("xi-value") if shown else but
            return "" if xi == but else xi

        return str(WebDriverWait(self.browser, PATIENCE).until(there, "xi does not come"))

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
            python="isornn.init.critical_(module, length=500",
            message="The critical start for T = 500 is set.",
            xi_value="undefined",
            reach_value=seen(isornn.critical(SPEC.cell, 500).spec, "reach"),
        )

        assert contrast(browser) > 7
        light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        darkened(browser)
        assert contrast(browser) > 7
        assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != light

        assert browser.get_log("browser") == []
        assert {urlsplit(url).netloc for url in asked(browser)} == {urlsplit(address).netloc}
        browser.get("/".join(address.split("/")[:3]) + "/")
        assert "open the address that isornn explore printed" in browser.find_element(By.TAG_NAME, "body").text


def test_sliders_are_live_while_a_spectrum_is_computed(browser: webdriver.Chrome, served: Served) -> None:
    with served("--cell", "lstm") as (_, address):
        page = Page(browser)
        browser.get(address)
        before = page.headline()
        page.tab_to("f.bias_mean")
        page.press(Keys.ARROW_RIGHT)
        page.headline(but=before)
        assert page.computing("spectrum-card") and "computing" in page.text("spectrum-card")


def spec_of_line(line: str) -> Spec:
    """What the line hands to ``apply_``."""
    assert line.startswith("isornn.init.apply_(module, ") and line.endswith(")")
    found = eval(line.removeprefix("isornn.init.apply_(module, ")[:-1], {"isornn": isornn})
    assert isinstance(found, Spec)
    return found
