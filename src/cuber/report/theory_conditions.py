"""Conditions of the theorems that runs recorded (`cuber run --theory`), and the changes of old tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cuber.report import statistics
from cuber.report.drawing import LIGHT
from cuber.report.model import Group, Variant
from cuber.report.plots import Marks, add_legend, make_panels
from cuber.report.table import VARIANT, Column, Row, Table, estimate, number

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
    "ratio ≥ 0.71": lambda one: one["ratio"] >= 0.5**0.5,  # the smallest that theorem 2 (1) allows, for any step size
    "cosine > 0": lambda one: (one["cosine"] or 0) > 0,
    "enough for theorem 1": lambda one: None not in (one["cosine"], one["eps2"]) and one["cosine"] >= one["eps2"],
}


@dataclass(frozen=True, eq=False)
class Pair:
    """A new and an old task: conditions by layer, and the change of the old task's accuracy while learning the new."""

    task: int
    old: int
    change: float
    layers: Mapping[str, LayerConditions]
    cosine: float | None
    """Mean over the layers, when the new task begins."""
    agreement: float | None
    """Sum over the layers."""


def pairs(result: Result) -> Iterator[Pair]:
    """All pairs of tasks with recorded conditions."""
    for task, by_layer in enumerate(result.theory):
        for old in range(task):
            layers = {name: layer["old"][old] for name, layer in by_layer.items() if old in layer["old"]}
            before, after = (result.accuracy[row][old] for row in (task - 1, task))
            if layers and before is not None and after is not None:
                cosines, agreements = (
                    [one[name] for one in layers.values() if one[name] is not None] for name in PREDICTORS
                )
                cosine = statistics.mean(cosines) if cosines else None
                yield Pair(task, old, after - before, layers, cosine, sum(agreements) if agreements else None)


def all_pairs(variant: Variant) -> list[Pair]:
    """The pairs of all seeds."""
    return [pair for result in variant.results for pair in pairs(result)]


def steps_covered(conditions: LayerConditions, lr: float) -> int:
    """Number of steps for which theorem 2 (2), whose step size falls with k^1.5, allows the learning rate.

    >>> steps_covered({"step_size": 0.8}, lr=0.1), steps_covered({"step_size": None}, lr=0.1)
    (4, 0)
    """
    return int(((conditions["step_size"] or 0.0) / lr) ** (2 / 3) + 1e-9)


def summary(group: Group) -> Table | None:
    """How often the conditions held, over all layers, pairs of tasks and seeds of each variant."""
    columns = [
        VARIANT,
        number("pairs × layers", "count", "d"),
        *(Column(heading, heading, lambda share: f"{share:.0f} %") for heading in CONDITIONS),
        number("steps within theorem 2\N{NO-BREAK SPACE}(2)", "steps", "d"),
        *(number(f"{name} predicts change", name, "+.2f") for name in PREDICTORS),
        estimate("BWT", "bwt", "+.2f"),
    ]
    rows = [summary_row(variant) for variant in group.variants if all_pairs(variant)]
    return Table("conditions", "", columns, rows) if rows else None


def summary_row(variant: Variant) -> Row:
    """Percentages of conditions that held, the most steps covered, and rank correlations with the change."""
    conditions = [one for pair in all_pairs(variant) for one in pair.layers.values()]
    row: Row = {"variant": variant.label, "count": len(conditions), "bwt": variant.figure("bwt")}
    row |= {heading: 100 * statistics.mean(list(map(holds, conditions))) for heading, holds in CONDITIONS.items()}
    row["steps"] = max(steps_covered(one, variant.chosen["lr"]) for one in conditions)
    for name in PREDICTORS:
        known = _points(variant, name)
        row[name] = statistics.rank_correlation([x for x, _ in known], [y for _, y in known])
    return row


def _points(variant: Variant, name: str) -> list[tuple[float, float]]:
    """Cosine or agreement of each pair of tasks, and the change of the old task."""
    known = [(getattr(pair, name), pair.change) for pair in all_pairs(variant)]
    return [(x, y) for x, y in known if x is not None]


def prediction(group: Group, marks: Marks) -> Figure | None:
    """Change of the old task against cosine and agreement, one point per pair of tasks."""
    variants = [variant for variant in group.variants if all_pairs(variant)]
    if not variants:
        return None
    figure, panels = make_panels(len(PREDICTORS), share_x=False)
    for axes, (name, title) in zip(panels, PREDICTORS.items(), strict=True):
        axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8)
        axes.axvline(0, color=LIGHT["quiet"], linewidth=0.8)
        axes.set_xlabel(title)
        axes.xaxis.set_major_locator(MaxNLocator(5))  # more labels as long as -0.0005 would overlap
        for variant in variants:
            mark = marks[variant.label]
            style: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "linestyle": "none", "alpha": 0.7}
            axes.plot(*zip(*_points(variant, name), strict=True), **style)
    panels[0].set_ylabel("old task's change (points)")
    add_legend(figure, variants, marks, lines=False)
    return figure
