"""What a diagnosis says to people: in the terminal, as figures, as a page."""

from isornn.reports.report import Report, diagnose

__all__ = ["Report", "diagnose"]
