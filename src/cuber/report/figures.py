"""The figures of a report, with descriptions and file names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from matplotlib.figure import Figure

from cuber.report import drawing, maps, plots
from cuber.report.model import Group, Report, Variant
from cuber.report.plots import Marks
from cuber.report.style import Mark
from cuber.report.theory_conditions import prediction
from cuber.report.typography import estimate_text, memory_text, time_text, typeset


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, its name in file names, and a description for screen readers."""

    name: str
    figure: Figure
    description: str


def marks_of(report: Report) -> dict[str, Mark]:
    """A mark for each variant by its label, the same on all benchmarks."""
    labels = dict.fromkeys(variant.label for group in report.groups for variant in group.variants)
    return {label: Mark(place) for place, label in enumerate(labels)}


def comparisons(group: Group, marks: Marks) -> Iterator[Picture]:
    """The figures that compare the variants of a group."""
    described = [
        ("acc-against-bwt", plots.acc_against_bwt(group, marks), "ACC and BWT. " + _each(group, _acc_and_bwt)),
        (
            "accuracy-evolution",
            plots.accuracy_evolution(group, marks),
            "Accuracy of each task after every later task; the accuracy tables have the numbers.",
        ),
        (
            "conditions",
            prediction(group, marks),
            "Cosine of old and new gradient, and their agreement over the whole task, against the old task's change. "
            "The table has the numbers.",
        ),
        (
            "pool-sizes",
            plots.pool_sizes(group, marks),
            "Share of each layer's input space in the pool after each task; the tables below have the numbers.",
        ),
        (
            "memory",
            plots.memory_bars(group),
            "Memory after the last task. " + _each(group, lambda variant: memory_text(variant.memory)),
        ),
        (
            "time",
            plots.time_bars(group, marks),
            "Training time of all tasks. "
            + _each(group, lambda variant: typeset(time_text(variant.seconds)) if variant.seconds else "–"),
        ),
    ]
    for name, figure, description in described:
        if figure is not None:
            yield Picture(name, figure, description)


def _acc_and_bwt(variant: Variant) -> str:
    acc, bwt = variant.figure("acc"), variant.figure("bwt")
    texts = [estimate_text(acc) if acc else "-", estimate_text(bwt, "+.2f") if bwt else "-"]
    return " %, ".join(map(typeset, texts))


def _each(group: Group, text: Callable[[Variant], str]) -> str:
    return "; ".join(f"{variant.label}: {text(variant)}" for variant in group.variants)


def save_all(report: Report, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG: "split-digits_memory.svg", "split-digits_cuber_accuracy-matrix.png"."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with drawing.styled():
        for name, figure in _named(report):
            written += drawing.save(figure, directory / _unused(name, written))
    return written


def _named(report: Report) -> Iterator[tuple[Sequence[str], Figure]]:
    marks = marks_of(report)
    for group in report.groups:
        for picture in comparisons(group, marks):
            yield (group.title, picture.name), picture.figure
        limits = maps.accuracy_limits(group)
        for variant in group.variants:
            yield (group.title, variant.label, "accuracy-matrix"), maps.accuracy_figure(variant, limits)
            for result in variant.results if variant.regimes - {1} else []:
                name = (group.title, variant.label, f"seed-{result.seed}", "regimes")
                yield name, maps.regime_figure(variant, result)


def _unused(words: Sequence[str], written: Sequence[Path]) -> str:
    """A file name made of arbitrary text that no other figure has."""
    name = "_".join(re.sub(r"[^\w.=-]+", "-", word).strip("-.")[:60] or "unnamed" for word in words)
    taken = {path.stem for path in written}
    return next(chosen for n in count(1) if (chosen := name if n == 1 else f"{name}_{n}") not in taken)
