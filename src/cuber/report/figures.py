"""All figures of a report, with the words that go with each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from cuber.report import drawing, maps, plots
from cuber.report.content import Benchmark, Content, Variant
from cuber.report.formatting import memory, seconds, spread_words
from cuber.report.plots import Marks
from cuber.report.style import Mark
from cuber.report.theory.runs import prediction


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure, its name for files, and what it shows in words for who cannot see it."""

    name: str
    figure: Figure
    description: str


def marks_of(content: Content) -> dict[str, Mark]:
    """A mark for each variant by its label, the same on all benchmarks."""
    labels = dict.fromkeys(variant.label for benchmark in content.benchmarks for variant in benchmark.variants)
    return {label: Mark(place) for place, label in enumerate(labels)}


def comparisons(benchmark: Benchmark, marks: Marks) -> Iterator[Picture]:
    """The figures that set a benchmark's variants side by side."""
    described = [
        ("acc-against-bwt", plots.acc_against_bwt(benchmark, marks), "ACC and BWT. " + _each(benchmark, _acc_and_bwt)),
        (
            "accuracy-evolution",
            plots.accuracy_evolution(benchmark, marks),
            "Accuracy of each task after every task learnt since; the tables of accuracies have the numbers.",
        ),
        (
            "conditions",
            prediction(benchmark, marks),
            "Cosine of old and new gradient, and their agreement all the way, against the old task's change. "
            "The table has the numbers.",
        ),
        (
            "pool-sizes",
            plots.pool_sizes(benchmark, marks),
            "Share of each layer's input space in the pool after each task; the tables below have the numbers.",
        ),
        (
            "memory",
            plots.memory_bars(benchmark),
            "Memory kept in the end. " + _each(benchmark, lambda variant: memory(sum(variant.bytes.values()))),
        ),
        (
            "time",
            plots.time_bars(benchmark, marks),
            "Time for learning all tasks. " + _each(benchmark, lambda variant: seconds(variant.seconds)),
        ),
    ]
    for name, figure, description in described:
        if figure is not None:
            yield Picture(name, figure, description)


def _acc_and_bwt(variant: Variant) -> str:
    acc, bwt = variant.figure("acc"), variant.figure("bwt")
    return f"{spread_words(acc)} %, {spread_words(bwt, sign=True)}"


def _each(benchmark: Benchmark, words: Callable[[Variant], str]) -> str:
    return "; ".join(f"{variant.label}: {words(variant)}" for variant in benchmark.variants)


def save_all(content: Content, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG: "split-digits_memory.svg", "split-digits_cuber_accuracy-matrix.png"."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with drawing.styled():
        for name, figure in _named(content):
            written += drawing.save(figure, directory / _unused(name, written))
    return written


def _named(content: Content) -> Iterator[tuple[Sequence[str], Figure]]:
    marks = marks_of(content)
    for benchmark in content.benchmarks:
        for picture in comparisons(benchmark, marks):
            yield (benchmark.title, picture.name), picture.figure
        limits = maps.accuracy_limits(benchmark.variants)
        for variant in benchmark.variants:
            yield (benchmark.title, variant.label, "accuracy-matrix"), maps.accuracy_matrix(variant, limits)
            if variant.has_regimes:
                for result in variant.results:
                    name = (benchmark.title, variant.label, f"seed-{result['seed']}", "regimes")
                    yield name, maps.regime_map(variant, result)


def _unused(words: Sequence[str], written: Sequence[Path]) -> str:
    """A file name from words that may hold anything, and that no other figure has."""
    name = "_".join(re.sub(r"[^\w.=-]+", "-", word).strip("-.")[:60] or "unnamed" for word in words)
    taken = {path.stem for path in written}
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}_{number}"
    return chosen
