"""What runs recorded about the theorems' conditions, beside what became of the old tasks. From plain results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from cuber import statistics
from cuber.report.content import Benchmark, PlainResult, Variant
from cuber.report.plots import MOST_PANELS, Marks, add_legend, evenly, make_panels
from cuber.report.style import LIGHT
from cuber.report.words import shorten

Conditions = Mapping[str, Any]
"""Ratio, cosine, ``eps2`` (what theorem 1 asks for), ``step_size`` (what theorem 2 (2) allows for one step)."""

LEAST_EPS1 = 0.5**0.5
"""Theorem 2 (1) asks for this or more of the projection, whatever the step size."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A new task and an old one: the conditions layer by layer, and the change in the old one's accuracy meanwhile."""

    task: int
    old: int
    change: float
    layers: Mapping[str, Conditions]

    @property
    def cosine(self) -> float | None:
        """The mean over the layers."""
        known = [one["cosine"] for one in self.layers.values() if one["cosine"] is not None]
        return statistics.mean(known) if known else None


def pairs(result: PlainResult) -> Iterator[Pair]:
    """Of all tasks that somebody looked on at."""
    accuracy = result["accuracy"]
    for task, by_layer in enumerate(result.get("theory", [])):
        for old in range(task):
            layers = {name: layer["old"][str(old)] for name, layer in by_layer.items() if str(old) in layer["old"]}
            if layers:
                yield Pair(task, old, accuracy[task][old] - accuracy[task - 1][old], layers)


def has_theory(variant: Variant) -> bool:
    """Whether any of its runs recorded the conditions."""
    return any(True for result in variant.results for _ in pairs(result))


def layers_of(variant: Variant) -> list[str]:
    """Those that conditions are told of."""
    return list(dict.fromkeys(layer for result in variant.results for pair in pairs(result) for layer in pair.layers))


@dataclass(frozen=True, eq=False)
class Summary:
    """How often conditions were met, over all layers, pairs of tasks and seeds of a variant."""

    variant: Variant

    @property
    def _pairs(self) -> list[Pair]:
        return [pair for result in self.variant.results for pair in pairs(result)]

    @property
    def _conditions(self) -> list[Conditions]:
        return [one for pair in self._pairs for one in pair.layers.values()]

    @property
    def count(self) -> int:
        return len(self._conditions)

    @property
    def projection(self) -> float:
        """Percent of sufficient projection, as theorem 2 (1) asks for it at least."""
        return self._percent([one["ratio"] >= LEAST_EPS1 for one in self._conditions])

    @property
    def agreeing(self) -> float:
        """Percent of cosines above 0, which is all that eps2 = 0 asks for."""
        return self._percent([(one["cosine"] or 0) > 0 for one in self._conditions])

    @property
    def correlation(self) -> float:
        """Percent of positive correlation, as theorems 1 and 2 (1) ask for it."""
        return self._percent(
            [None not in (one["cosine"], one["eps2"]) and one["cosine"] >= one["eps2"] for one in self._conditions]
        )

    @property
    def steps(self) -> int:
        """The most steps, over everything, for which the learning rate stays within theorem 2 (2)."""
        return max((steps_covered(one, self.variant.first["training"]["lr"]) for one in self._conditions), default=0)

    @property
    def predicts(self) -> float | None:
        """The rank correlation of the cosine with what became of the old task."""
        known = [(pair.cosine, pair.change) for pair in self._pairs if pair.cosine is not None]
        return statistics.rank_correlation([cosine for cosine, _ in known], [change for _, change in known])

    @staticmethod
    def _percent(held: list[bool]) -> float:
        return 100 * sum(held) / len(held) if held else 0.0


def steps_covered(conditions: Conditions, lr: float) -> int:
    """For how many steps the learning rate stays within theorem 2 (2), whose step size falls with k^1.5.

    >>> steps_covered({"step_size": 0.8}, lr=0.1), steps_covered({"step_size": None}, lr=0.1)
    (4, 0)
    """
    allowed = conditions["step_size"] or 0.0
    return int((allowed / lr) ** (2 / 3) + 1e-9)


def cosine_against_change(benchmark: Benchmark, marks: Marks) -> Figure | None:
    """A panel for each layer, a point for each new task and old task: do those that agree gain?"""
    variants = [variant for variant in benchmark.variants if has_theory(variant)]
    every = list(dict.fromkeys(layer for variant in variants for layer in layers_of(variant)))
    if not every:
        return None
    layers = [every[place] for place in evenly(len(every), MOST_PANELS)]
    figure, grid = make_panels(len(layers))
    for axes, layer in zip(grid, layers, strict=True):
        axes.set_title(shorten(layer, 28))
        axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
        axes.axvline(0, color=LIGHT["quiet"], linewidth=0.8)
        for variant in variants:
            mark = marks[variant.label]
            told = [(pair.layers.get(layer, {}).get("cosine"), pair) for r in variant.results for pair in pairs(r)]
            points = [(cosine, pair.change) for cosine, pair in told if cosine is not None]
            style: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "linestyle": "none", "alpha": 0.7}
            axes.plot([x for x, _ in points], [y for _, y in points], **style)
    figure.supxlabel("cosine between old and new gradient when the new task begins", fontsize=8, color=LIGHT["quiet"])
    figure.supylabel("old task's change (points)", fontsize=8, color=LIGHT["quiet"])
    add_legend(figure, variants, marks, lines=False)
    return figure
