"""Reports: a run, or a folder of runs, as one HTML file."""

from fedfew.interface.report.document import write_report

__all__ = ["write_report"]
