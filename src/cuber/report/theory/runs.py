"""What runs recorded about the theorems' conditions, beside what became of the old tasks. From plain results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cuber.report import statistics
from cuber.report.content import Benchmark, PlainResult, Variant
from cuber.report.plots import Marks, add_legend, make_panels
from cuber.report.style import LIGHT

Conditions = Mapping[str, Any]
"""Ratio, cosine, ``eps2`` (what theorem 1 asks for), ``step_size`` (what theorem 2 (2) allows for one step),
``agreement`` (``-<g_old, w - w'>``, what the old task's loss gained at first order)."""

PREDICTORS = {
    "cosine": "cosine when the new task begins, mean over layers",
    "agreement": "agreement all the way, −⟨old gradient, change of weights⟩",
}
MOST_TICKS = 5
"""More would not leave room for as long a number as -0.0005."""
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
        """When the new task begins, the mean over the layers."""
        known = self._known("cosine")
        return statistics.mean(known) if known else None

    @property
    def agreement(self) -> float | None:
        """What the way that the weights went has in common with the old gradient, all layers together."""
        known = self._known("agreement")
        return sum(known) if known else None

    def _known(self, name: str) -> list[float]:
        return [one[name] for one in self.layers.values() if one[name] is not None]


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

    def predicts(self, name: str) -> float | None:
        """The rank correlation of the cosine, or of the agreement, with what became of the old task."""
        known = points(self.variant, name)
        return statistics.rank_correlation([x for x, _ in known], [y for _, y in known])

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


def points(variant: Variant, name: str) -> list[tuple[float, float]]:
    """The cosine or the agreement of each pair of tasks, and the old one's change."""
    known = [(getattr(pair, name), pair.change) for result in variant.results for pair in pairs(result)]
    return [(x, change) for x, change in known if x is not None]


def prediction(benchmark: Benchmark, marks: Marks) -> Figure | None:
    """A point for each new task and old task: did those gain that agreed at the beginning, or all the way?"""
    variants = [variant for variant in benchmark.variants if has_theory(variant)]
    if not variants:
        return None
    figure, panels = make_panels(len(PREDICTORS), share_x=False)
    for axes, (name, title) in zip(panels, PREDICTORS.items(), strict=True):
        axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
        axes.axvline(0, color=LIGHT["quiet"], linewidth=0.8)
        axes.set_xlabel(title)
        axes.xaxis.set_major_locator(MaxNLocator(MOST_TICKS))
        for variant in variants:
            mark = marks[variant.label]
            style: dict[str, Any] = {"color": mark.colour, "marker": mark.marker, "linestyle": "none", "alpha": 0.7}
            axes.plot(*zip(*points(variant, name), strict=True), **style)
    panels[0].set_ylabel("old task's change (points)")
    add_legend(figure, variants, marks, lines=False)
    return figure
