"""The two pictures of the report in README.md and docs/diagnosis.md, by Chromium: python tools/report_pictures.py"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import torch

import isornn
from isornn.reports import Report

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 1180
HEIGHTS = {"before": 1910, "after": 1576}  # down to the end of the second row of figures


def main() -> None:
    torch.manual_seed(0)
    model, x = torch.nn.LSTM(28, 128, batch_first=True), torch.randn(8, 500, 28)
    report = isornn.diagnose(model, x, theory=True)
    picture(report, "before")
    report.fix_()
    picture(isornn.diagnose(model, x, theory=True), "after")


def picture(report: Report, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        report.to_html(page)
        taken = DOCS / f"diagnosis_{name}.png"
        size = f"--window-size={WIDTH},{HEIGHTS[name]}"
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=10000", size]
        subprocess.run(["chromium", *flags, f"--screenshot={taken}", page.as_uri()], check=True)


if __name__ == "__main__":
    main()
