"""The built site in a browser, from its files: `make docs-browser`, after `make docs`. Not collected by `make test`.

Every page at the width of a telephone, light and dark: nothing wider than the screen, no errors in the console, nothing
asked of the network, text that can be read.
"""

from __future__ import annotations

import json
from pathlib import Path

from chromium import darkened, started

SITE = Path(__file__).parents[1] / "docs" / "_build" / "html"
WIDTH, HEIGHT = 400, 800
CONTRAST = 4.5  # WCAG's least for text

MEASURED = """
const lightness = (colour) => {
  const linear = colour.match(/[0-9.]+/g).slice(0, 3).map(Number)
    .map((c) => c > 10 ? Math.pow((c / 255 + 0.055) / 1.055, 2.4) : c / 255 / 12.92);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05;
};
const text = lightness(getComputedStyle(document.querySelector("article")).color);
const page = lightness(getComputedStyle(document.body).backgroundColor);
const wide = [document.documentElement, document.querySelector(".content")].map((part) => part.scrollWidth);
return [Math.max(...wide), Math.max(text, page) / Math.min(text, page)];
"""


def test_every_page(tmp_path: Path) -> None:
    pages = sorted(page for page in SITE.rglob("*.html") if "_modules" not in page.parts)
    assert pages, "make docs first"
    faults = []
    with started(tmp_path) as browser:
        phone = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        for dark in (False, True):
            if dark:
                darkened(browser)
            for page in pages:
                browser.get(page.as_uri())
                width, contrast = browser.execute_script(MEASURED)
                name = f"{page.relative_to(SITE)}, {'dark' if dark else 'light'}"
                faults += [f"{name}: {width} pixels wide"] * (width > WIDTH)
                faults += [f"{name}: contrast {contrast:.1f}"] * (contrast < CONTRAST)
                faults += [f"{name}: {entry['message']}" for entry in browser.get_log("browser")]
        for entry in browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                faults += [f"asks for {url}"] * url.startswith(("http:", "https:"))
    assert not faults
