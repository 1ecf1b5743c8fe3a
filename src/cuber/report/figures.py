"""The figures of a report, with descriptions and file names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from matplotlib.figure import Figure

from cuber.report import drawing, plots
from cuber.report.drawing import Mark
from cuber.report.model import Group, Report
from cuber.report.plots import Marks
from cuber.report.theory_conditions import prediction

FIGURES = {
    "acc-against-bwt": (plots.acc_against_bwt, "ACC and BWT of each variant; the summary has the numbers."),
    "accuracy-evolution": (
        plots.accuracy_evolution,
        "Accuracy of each task after every later task; the accuracy tables have the numbers.",
    ),
    "conditions": (
        prediction,
        "Cosine of old and new gradient, and their agreement over the whole task, against the old task's change.",
    ),
    "pool-sizes": (
        plots.pool_sizes,
        "Share of each layer's input space in the pool after each task; the tables below have the numbers.",
    ),
    "memory": (plots.memory_bars, "Memory after the last task; the table below has the numbers."),
    "time": (plots.time_bars, "Training time of all tasks; the summary has the numbers."),
}
"""Name in file names -> the function that draws it, and a description for screen readers."""


def marks_of(report: Report) -> dict[str, Mark]:
    """A mark for each variant by its label, the same on all benchmarks."""
    labels = dict.fromkeys(variant.label for group in report.groups for variant in group.variants)
    return {label: Mark(place) for place, label in enumerate(labels)}


def comparisons(group: Group, marks: Marks) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and description of the figures that compare the variants of a group."""
    for name, (draw, description) in FIGURES.items():
        figure = draw(group, marks)
        if figure is not None:
            yield name, figure, description


def save_all(report: Report, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG: "split-digits_memory.svg"."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with drawing.styled():
        for group in report.groups:
            title = re.sub(r"[^\w.=-]+", "-", group.title).strip("-.")[:60] or "unnamed"
            for figure_name, figure, _ in comparisons(group, marks_of(report)):
                taken = {path.stem for path in written}
                names = (f"{title}_{figure_name}" + (f"_{n}" if n > 1 else "") for n in count(1))
                written += drawing.save(figure, directory / next(name for name in names if name not in taken))
    return written
