"""Tables, figures and pages of results, and the progress of runs."""

from cuber.report.live import Bars, Lines
from cuber.report.terminal import show_catalogue, show_result, show_summary

__all__ = ["Bars", "Lines", "show_catalogue", "show_result", "show_summary"]
