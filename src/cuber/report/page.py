"""The HTML page of `cuber report`: one file without scripts or links to other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuber.metrics import change_of_old_tasks
from cuber.report import drawing
from cuber.report.comparison import TABLES, compare
from cuber.report.figures import MOST_BANDS, Marks, comparisons, marks_of
from cuber.report.model import MISSING, OTHER_VIEWS, Estimate, Group, Report, Variant, missing_text
from cuber.report.table import Table
from cuber.report.theory_conditions import CONDITIONS, PREDICTORS, all_pairs, summary_row
from cuber.report.typography import VISIBLE, estimate_text, memory_text, number, seeds_text, time_text, typeset

HEAT_STEPS = 9
"""Steps of the color scale of accuracies: the classes h0 to h8 of the page."""


def render(report: Report, against: str | None = None) -> str:
    """The page as text; the same results give the same text.

    Args:
        against: The label or method of the variant that the others are tested against; default: TRGP.
    """
    loader = PackageLoader("cuber.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, estimate=_estimate, seeds=seeds_text)
    environment.filters.update(time=time_text, memory=memory_text, heat=heat, typeset=typeset, missing=missing_text)
    marks, comparison = marks_of(report), compare(report, against)
    return environment.get_template("page.html").render(
        report=report,
        groups=[
            _group(group, f"b{place}", marks, tables)
            for place, (group, tables) in enumerate(zip(report.groups, comparison.of_groups, strict=True), 1)
        ],
        overview=comparison.overview,
        marks=marks,
        light=drawing.LIGHT,
        dark=drawing.DARK,
        visible=VISIBLE,
        most_bands=MOST_BANDS,
        conditions=list(CONDITIONS),
        predictors=list(PREDICTORS),
        most_views=1 + max((len(variant.results) for group in report.groups for variant in group.variants), default=0),
    )


def _group(group: Group, name: str, marks: Marks, tables: Sequence[Table]) -> dict[str, Any]:
    """The figures of one group, and what its tables show, for the template."""
    with drawing.styled():
        pictures = {
            file_name: (title, Markup(drawing.inline(figure, f"{name}f{place}", f"{title}; tables have the numbers")))
            for place, (file_name, title, figure) in enumerate(comparisons(group, marks))
        }
    accuracies = [value for result in group.results for row in result.accuracy for value in row if value is not None]
    different, same = group.settings()
    return {
        "id": name,
        "tables": {kind: [table for table in tables if table.kind == kind] for kind in TABLES},
        "it": group,
        "pictures": pictures,
        "metric": group.metric,
        "limits": (min(accuracies), max(accuracies)),
        "views": {
            view: about
            for view, about in OTHER_VIEWS.items()
            if any(variant.figure("acc", view) for variant in group.variants)
        },
        "accuracy": [(variant, _accuracy_views(variant)) for variant in group.variants],
        "regimes": [(variant, _regime_views(variant)) for variant in group.variants if variant.regimes - {1}],
        "predictions": [
            (v, _prediction_rows(v)) for v in group.variants if all(result.predictions for result in v.results)
        ],
        "conditions": [(variant, summary_row(variant)) for variant in group.variants if all_pairs(variant)],
        "different": different,
        "same": same,
        "protecting": [variant.label for variant in group.variants if variant.regimes == {1}],
    }


def _accuracy_views(variant: Variant) -> list[tuple[str, Variant]]:
    """The variant and its single seeds, by the labels that select them."""
    single = [(f"seed {seed}", replace(variant, by_seed={seed: one})) for seed, one in variant.by_seed.items()]
    return [("mean", variant), *single] if len(single) > 1 else single


def _regime_views(variant: Variant) -> list[tuple[str, Any]]:
    """The regimes of each seed, and the layers that have any, by the labels that select them."""
    views = []
    for result in variant.results:
        layers = dict.fromkeys(layer for by_layer in result.regimes for layer, old in by_layer.items() if old)
        views.append((f"seed {result.seed}", (result.regimes, list(layers))))
    return views


def _prediction_rows(variant: Variant) -> list[tuple[int, Estimate | None, Estimate | None]]:
    """New task, predicted change of the sum of old losses, and mean change of old accuracies."""
    results = variant.results
    return [
        (
            task,
            Estimate.of(result.predictions[task] for result in results),
            Estimate.of(change_of_old_tasks(result.oriented, task) for result in results),
        )
        for task in range(1, len(results[0].predictions))
    ]


def _estimate(estimate: Estimate | None, form: str = ".2f") -> str:
    return MISSING if estimate is None else typeset(estimate_text(estimate, form))


def heat(value: float, low: float, high: float) -> int:
    """Step of the color scale.

    >>> heat(50, 50, 100), heat(100, 50, 100), heat(100, 100, 100)
    (0, 8, 8)
    """
    return HEAT_STEPS - 1 if high <= low else min(HEAT_STEPS - 1, int((value - low) / (high - low) * HEAT_STEPS))
