"""Headless Chromium (Debian's packages chromium and chromium-driver), and what is read off a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@contextmanager
def started(folder: Path) -> Iterator[webdriver.Chrome]:
    """A browser with its profile in ``folder``; the test is skipped where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromium-driver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS.split(), f"--user-data-dir={folder}", "--window-size=1440,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield found
    finally:
        found.quit()


def asked(browser: webdriver.Chrome) -> list[str]:
    """Addresses of all requests since the browser started, but for its own pages and what pages carry in themselves."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if url.split(":")[0] not in ("chrome", "chrome-untrusted", "data", "blob")]


def contrast(browser: webdriver.Chrome) -> float:
    """Of the text against the cards, as WCAG has it."""
    colours = browser.execute_script(
        "const of = (e, what) => getComputedStyle(e)[what].match(/[0-9.]+/g).slice(0, 3).map(Number);"
        "return [of(document.body, 'color'), of(document.querySelector('.card'), 'backgroundColor')]"
    )
    linear = [[((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in one] for one in colours]
    light = sorted((0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05 for r, g, b in linear), reverse=True)
    return light[0] / light[1]


def darkened(browser: webdriver.Chrome) -> None:
    """The page as those see it who prefer dark."""
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
