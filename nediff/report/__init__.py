"""Figures and the self-contained HTML report."""

from nediff.report.html import Example, Report, write_report

__all__ = ["Example", "Report", "write_report"]
