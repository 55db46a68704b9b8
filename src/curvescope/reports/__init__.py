"""Pages from run directories: one HTML file for each run, and a local viewer for many."""

from curvescope.reports.page import render, write_report

__all__ = ["render", "write_report"]
