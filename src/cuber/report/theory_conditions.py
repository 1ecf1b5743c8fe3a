"""Conditions of the theorems that runs recorded (`cuber run --theory`), and the changes of old tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cuber.report.model import Variant
from cuber.report.statistics import rank_correlation

if TYPE_CHECKING:
    from cuber.training import Result

LayerConditions = Mapping[str, Any]
"""Ratio, cosine, ``eps2`` (required by theorem 1), ``step_size`` (allowed by theorem 2 (2) for one step) and
``agreement`` (``-<g_old, w - w'>``, the decrease of the old task's loss at first order)."""

PREDICTORS = {
    "cosine": "cosine when the new task begins, mean over layers",
    "agreement": "agreement over the whole task, −⟨old gradient, change of weights⟩",
}
CONDITIONS: Mapping[str, Callable[[LayerConditions], bool]] = {
    "ratio ≥ 0.71": lambda one: (
        (one["ratio"] or 0) >= 0.5**0.5
    ),  # the smallest that theorem 2 (1) allows, for any step size
    "cosine > 0": lambda one: (one["cosine"] or 0) > 0,
    "enough for theorem 1": lambda one: None not in (one["cosine"], one["eps2"]) and one["cosine"] >= one["eps2"],
}


@dataclass(frozen=True, eq=False)
class Pair:
    """A new and an old task: conditions by layer, and the change of the old task's accuracy while learning the new."""

    task: int
    old: int
    change: float
    layers: Sequence[LayerConditions]
    cosine: float | None
    """Mean over the layers, when the new task begins."""
    agreement: float | None
    """Sum over the layers."""


def pairs(result: Result) -> Iterator[Pair]:
    """All pairs of tasks with recorded conditions."""
    for task, by_layer in enumerate(result.theory):
        for old in range(task):
            layers = [layer["old"][old] for layer in by_layer.values() if old in layer["old"]]
            before, after = (result.oriented[row][old] for row in (task - 1, task))
            if layers and before is not None and after is not None:
                cosines, agreements = ([one[name] for one in layers if one[name] is not None] for name in PREDICTORS)
                cosine, agreement = fmean(cosines) if cosines else None, sum(agreements) if agreements else None
                yield Pair(task, old, after - before, layers, cosine, agreement)


def all_pairs(variant: Variant) -> list[Pair]:
    """The pairs of all seeds."""
    return [pair for result in variant.results for pair in pairs(result)]


def points(variant: Variant, name: str) -> list[tuple[float, float]]:
    """Cosine or agreement of each pair of tasks, and the change of the old task."""
    known = [(getattr(pair, name), pair.change) for pair in all_pairs(variant)]
    return [(x, y) for x, y in known if x is not None]


def steps_covered(conditions: LayerConditions, lr: float) -> int:
    """Number of steps for which theorem 2 (2), whose step size falls with k^1.5, allows the learning rate.

    >>> steps_covered({"step_size": 0.8}, lr=0.1), steps_covered({"step_size": None}, lr=0.1)
    (4, 0)
    """
    return int(((conditions["step_size"] or 0.0) / lr) ** (2 / 3) + 1e-9)


def summary_row(variant: Variant) -> dict[str, Any]:
    """Percentages of conditions that held, the most steps covered, and rank correlations with the change."""
    conditions = [one for pair in all_pairs(variant) for one in pair.layers]
    shares = {heading: 100 * fmean(map(holds, conditions)) for heading, holds in CONDITIONS.items()}
    steps = max(steps_covered(one, variant.results[0].training["lr"]) for one in conditions)
    known = {name: points(variant, name) for name in PREDICTORS}
    ranks = {name: rank_correlation([x for x, _ in known[name]], [y for _, y in known[name]]) for name in PREDICTORS}
    return {"count": len(conditions), **shares, "steps": steps, **ranks}
