"""Presentation of a diagnosis: in the terminal, as figures, as a page."""

import random

# rich draws a number when it is imported; importing this package leaves the user's random state as it was.
_before = random.getstate()

from isornn.reports.comparison import Comparison  # noqa: E402
from isornn.reports.report import Report, diagnose  # noqa: E402

random.setstate(_before)

__all__ = ["Comparison", "Report", "diagnose"]
