"""Training curves: loss and validation accuracy after each epoch, from the ``metrics.csv`` of each run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from pathlib import Path

from cuber.report.model import Estimate, Group, Variant
from cuber.runs.files import read_text

QUANTITIES = ("train_loss", "validation_accuracy")
"""Columns of ``metrics.csv`` that are drawn."""
Curve = Mapping[tuple[int, int], float]
"""Task and epoch -> value."""


def read_curve(directory: Path, quantity: str) -> Curve:
    """A column of ``metrics.csv``; empty without the file, and without the rows that have no such number."""
    curve = {}
    try:
        text = read_text(directory / "metrics.csv", errors="replace")
        for row in csv.DictReader(io.StringIO(text, newline="")):
            task, epoch, value = (row.get(name) or "" for name in ("task", "epoch", quantity))
            if task.isdecimal() and epoch.isdecimal() and math.isfinite(number := _number(value)):
                curve[int(task[:9]), int(epoch[:9])] = number
    except (OSError, csv.Error):
        return {}
    return curve


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def curve_of(variant: Variant, quantity: str) -> dict[tuple[int, int], Estimate]:
    """Mean and deviation over seeds, at the epochs that all seeds have; empty where tasks are learned at once."""
    if variant.at_once or not variant.directories:
        return {}
    curves = [read_curve(directory, quantity) for directory in variant.directories.values()]
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    estimates = {place: Estimate.of(curve[place] for curve in curves) for place in common if place[0] < variant.tasks}
    return {place: estimate for place, estimate in estimates.items() if estimate is not None}


def curves_of(group: Group, quantity: str) -> dict[str, dict[tuple[int, int], Estimate]]:
    """The curves of all variants that have one, by label, without tasks that are not shown."""
    curves = {}
    for variant in group.variants:
        curve = {place: value for place, value in curve_of(variant, quantity).items() if group.shows(place[0])}
        if curve:
            curves[variant.label] = curve
    return curves
