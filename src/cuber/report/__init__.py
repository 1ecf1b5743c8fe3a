"""Results, shown: tables for the terminal, and the progress of a run."""

from cuber.report.listing import show_catalogue
from cuber.report.progress import Bars, Lines
from cuber.report.tables import show_result, show_summary

__all__ = ["Bars", "Lines", "show_catalogue", "show_result", "show_summary"]
