"""The HTML page of `cuber report`: one file without scripts or links to other files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuber.report import drawing
from cuber.report.figures import Marks, comparisons, marks_of
from cuber.report.model import MISSING, Estimate, Group, Report, Variant
from cuber.report.theory_conditions import CONDITIONS, PREDICTORS, all_pairs, summary_row
from cuber.report.typography import VISIBLE, estimate_text, memory_text, number, seeds_text, time_text, typeset

if TYPE_CHECKING:
    from cuber.training import Result

HEAT_STEPS = 9
"""Steps of the color scale of accuracies: the classes h0 to h8 of the page."""


@dataclass(frozen=True)
class Cell:
    """Text of a cell, its CSS class (gain, loss, h0 to h8, r1 to r4) and its tooltip."""

    text: str = ""
    mark: str = ""
    hint: str = ""


@dataclass(frozen=True)
class PageTable:
    """Headings and rows, the first of each row being its heading; a text is a cell without mark and tooltip."""

    headings: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    title: str = ""
    footer: Sequence[str | Cell] = ()

    @staticmethod
    def cells(row: Sequence[str | Cell]) -> list[Cell]:
        return [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]


Views = list[tuple[str, list[PageTable]]]
"""The tables of each view of a variant, and the label that selects it."""


def render(report: Report) -> str:
    """The page as text; the same results give the same text."""
    loader = PackageLoader("cuber.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, seeds=seeds_text)
    marks = marks_of(report)
    unfinished = [[str(run.directory), run.name or MISSING, run.reason] for run in report.unfinished]
    return environment.get_template("page.html").render(
        report=report,
        groups=[_group(group, f"b{place}", marks) for place, group in enumerate(report.groups, 1)],
        unfinished=PageTable(["directory", "run", "reason"], unfinished),
        marks=marks,
        light=drawing.LIGHT,
        most_views=1 + max((len(variant.results) for group in report.groups for variant in group.variants), default=0),
    )


def _group(group: Group, name: str, marks: Marks) -> dict[str, Any]:
    """The tables and figures of one group, for the template."""
    with drawing.styled():
        pictures = {
            title: Markup(drawing.inline(figure, f"{name}f{place}", description))
            for place, (title, figure, description) in enumerate(comparisons(group, marks))
        }
    accuracies = [value for result in group.results for row in result.accuracy for value in row if value is not None]
    limits = min(accuracies), max(accuracies)
    with_bare = any(variant.figure("acc", bare=True) for variant in group.variants)
    different, same = group.settings()
    settings = [[name, *values] for name, values in different.items()]
    return {
        "id": name,
        "it": group,
        "pictures": pictures,
        "limits": limits,
        "with_bare": with_bare,
        "summary": _summary(group, with_bare=with_bare),
        "accuracy": [(variant, _accuracy_views(group, variant, limits)) for variant in group.variants],
        "regimes": [(variant, _regime_views(variant)) for variant in group.variants if variant.regimes - {1}],
        "conditions": _conditions(group),
        "pools": [(variant, _pools(variant)) for variant in group.variants if variant.layers],
        "memory": _memory(group),
        "settings": PageTable(["setting", *(variant.label for variant in group.variants)], settings),
        "same": same,
        "protecting": [variant.label for variant in group.variants if variant.regimes == {1}],
    }


def _summary(group: Group, *, with_bare: bool) -> PageTable:
    bare = ["ACC, bare (%)", "BWT, bare"] if with_bare else []
    rows = []
    for variant in group.variants:
        figures = [_figure(variant, "acc"), _figure(variant, "bwt", "+.2f"), _figure(variant, "forgetting")]
        if with_bare:
            figures += [_figure(variant, "acc", bare=True), _figure(variant, "bwt", "+.2f", bare=True)]
        cost = [time_text(variant.seconds), memory_text(variant.memory)]
        rows.append([variant.label, seeds_text(variant.seeds), *figures, *cost])
    return PageTable(["variant", "seeds", "ACC (%)", "BWT", "forgetting", *bare, "time", "memory"], rows)


def _figure(variant: Variant, name: str, form: str = ".2f", *, bare: bool = False) -> str:
    estimate = variant.figure(name, bare=bare)
    return MISSING if estimate is None else typeset(estimate_text(estimate, form))


# Accuracies


def _accuracy_views(group: Group, variant: Variant, limits: tuple[float, float]) -> Views:
    """The accuracy matrix over all seeds and of each seed."""
    single = [replace(variant, by_seed={seed: result}) for seed, result in variant.by_seed.items()]
    views = [(f"seed {one.seeds[0]}", f"seed {one.seeds[0]}", one) for one in single]
    if len(views) > 1:
        views.insert(0, ("mean", f"mean of seeds {seeds_text(variant.seeds)}", variant))
    return [(label, [_accuracy_table(one, limits, title, group.task_names)]) for label, title, one in views]


def _accuracy_table(variant: Variant, limits: tuple[float, float], title: str, names: Sequence[str]) -> PageTable:
    """Accuracy on each task after each task; the footer has the change since the task was learned."""
    matrix, once = variant.matrix, variant.at_once
    headings = ["" if once else "after", *(Cell(str(task), hint=names[task]) for task in range(variant.tasks))]
    rows: list[list[str | Cell]] = [
        ["all at once" if once else str(after), *(_accuracy(value, limits) for value in row)]
        for after, row in enumerate(matrix)
    ]
    footer: list[str | Cell] = []
    if len(matrix) > 1:
        own = [matrix[task][task] for task in range(variant.tasks)]
        footer = ["change", *map(_change, matrix[-1][:-1], own), Cell()]
    return PageTable(headings, rows, title, footer)


def _accuracy(value: Estimate | None, limits: tuple[float, float]) -> Cell:
    if value is None:
        return Cell()
    hint = "" if value.deviation is None else f"{typeset(estimate_text(value))} %"
    return Cell(number(value.mean, ".1f"), f"h{heat(value.mean, *limits)}", hint)


def _change(last: Estimate | None, own: Estimate | None) -> Cell:
    """The change of an accuracy, marked as gain or loss where it is visible with one decimal."""
    if last is None or own is None:
        return Cell()
    change = last.mean - own.mean
    return Cell(number(change, "+.1f"), "gain" if change >= VISIBLE else "loss" if change <= -VISIBLE else "")


def heat(value: float, low: float, high: float) -> int:
    """Step of the color scale.

    >>> heat(50, 50, 100), heat(100, 50, 100), heat(100, 100, 100)
    (0, 8, 8)
    """
    return HEAT_STEPS - 1 if high <= low else min(HEAT_STEPS - 1, int((value - low) / (high - low) * HEAT_STEPS))


# Regimes and the conditions of the theorems


def _regime_views(variant: Variant) -> Views:
    views = []
    for result in variant.results:
        layers = dict.fromkeys(layer for by_layer in result.regimes for layer, old in by_layer.items() if old)
        views.append((f"seed {result.seed}", [_regime_table(result, layer) for layer in layers]))
    return views


def _regime_table(result: Result, layer: str) -> PageTable:
    """Regime of each old task (column) while each new task (row) was learned."""
    tasks = range(len(result.regimes))
    by_task = {task: result.regimes[task].get(layer, {}) for task in tasks}
    rows: list[list[str | Cell]] = [
        [str(task), *(_regime(by_task[task].get(old)) for old in tasks[:-1])] for task in tasks[1:]
    ]
    return PageTable(["new", *map(str, tasks[:-1])], rows, layer)


def _regime(regime: Mapping[str, Any] | None) -> Cell:
    """The regime, or the epoch after which it was demoted from 3 to 2."""
    if regime is None:
        return Cell()
    epoch, kind = regime["demoted_at"], regime["regime"]
    if epoch is None and kind == 1:
        return Cell("1", "r1")
    hint = f"ratio {number(regime['ratio'])}, cosine {number(regime['cosine'])}"
    return Cell(str(kind), f"r{kind}", hint) if epoch is None else Cell(f"↓{epoch}", "r4", hint)


def _conditions(group: Group) -> PageTable:
    """How often the theorems' conditions held, over all layers, pairs of tasks and seeds of each variant."""
    forms = {"count": "d", **dict.fromkeys(CONDITIONS, ".0f"), "steps": "d", **dict.fromkeys(PREDICTORS, "+.2f")}
    headings = ["variant", "pairs × layers", *CONDITIONS, "steps within theorem 2\N{NO-BREAK SPACE}(2)"]
    rows = []
    for variant in group.variants:
        if all_pairs(variant):
            row = summary_row(variant)
            texts = [number(row[name], form) + " %" * (name in CONDITIONS) for name, form in forms.items()]
            rows.append([variant.label, *texts, _figure(variant, "bwt", "+.2f")])
    return PageTable([*headings, *(f"{name} predicts change" for name in PREDICTORS), "BWT"], rows)


# Memory


def _pools(variant: Variant) -> PageTable:
    several = len(variant.results) > 1
    rows = []
    for layer in variant.layers:
        sizes = variant.pool(layer, lambda pool: pool["size"])
        dimension = next(pool[layer]["dimension"] for pool in variant.results[0].pool if layer in pool)
        shown = [MISSING if size is None else number(size.mean, f".{int(several)}f") for size in sizes]
        rows.append([layer, *shown, str(dimension)])
    title = f"{variant.label}: directions in the pool after each task{', mean over seeds' * several}"
    return PageTable(["layer", *map(str, range(len(rows[0]) - 2)), "of"], rows, title)


def _memory(group: Group) -> PageTable:
    kinds = dict.fromkeys(kind for variant in group.variants for kind in variant.bytes)
    sizes = [[*(variant.bytes.get(kind, 0) for kind in kinds), variant.memory] for variant in group.variants]
    rows = [[variant.label, *map(memory_text, row)] for variant, row in zip(group.variants, sizes, strict=True)]
    return PageTable(["variant", *kinds, "all"], rows if kinds else [])
