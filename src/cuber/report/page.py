"""The HTML page of `cuber report`: one file without scripts or links to other files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuber.report import drawing, theory_conditions
from cuber.report.figures import comparisons, marks_of
from cuber.report.model import Estimate, Group, Report, Variant
from cuber.report.plots import Marks, evolution_tasks, pool_layers
from cuber.report.table import Column, MarkedCell, Row, Table, VariantColumns, change, estimate, variant_table, words
from cuber.report.typography import estimate_text, memory_text, number, seeds_text, time_text, typeset

if TYPE_CHECKING:
    from cuber.training import Result

HEAT_STEPS = 9
"""Steps of the color scale of accuracies: the classes h0 to h8 of the page."""
Views = list[tuple[str, list[Table]]]
"""The tables of each view of a variant, and the label that selects it."""


def render(report: Report) -> str:
    """The page as text; the same results give the same text."""
    loader = PackageLoader("cuber.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, seeds=seeds_text)
    marks = marks_of(report)
    return environment.get_template("page.html").render(
        report=report,
        groups=[_group(group, f"b{place}", marks) for place, group in enumerate(report.groups, 1)],
        unfinished=_unfinished(report),
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
    tasks = len(group.task_names)
    return {
        "id": name,
        "it": group,
        "pictures": pictures,
        "panels_left_out": max(0, tasks - 1 - len(evolution_tasks(tasks))),
        "layers_left_out": max(0, len({x for v in group.variants for x in v.layers}) - len(pool_layers(group))),
        "limits": limits,
        "with_bare": with_bare,
        "summary": _summary(group, with_bare=with_bare),
        "accuracy": [(variant, _accuracy_views(group, variant, limits)) for variant in group.variants],
        "regimes": [(variant, _regime_views(variant)) for variant in group.variants if variant.regimes - {1}],
        "conditions": theory_conditions.summary(group),
        "pools": [(variant, _pools(variant)) for variant in group.variants if variant.layers],
        "memory": _memory(group),
        "settings": _settings(group, different) if different else None,
        "same": same,
        "protecting": [variant.label for variant in group.variants if variant.regimes == {1}],
    }


def _summary(group: Group, *, with_bare: bool) -> Table:
    columns: VariantColumns = [
        (words("seeds", "seeds"), lambda v: seeds_text(v.seeds)),
        (estimate("ACC (%)", "acc"), lambda v: v.figure("acc")),
        (estimate("BWT", "bwt", "+.2f"), lambda v: v.figure("bwt")),
        (estimate("forgetting", "forgetting"), lambda v: v.figure("forgetting")),
        (estimate("ACC, bare (%)", "acc_bare"), lambda v: v.figure("acc", bare=True)),
        (estimate("BWT, bare", "bwt_bare", "+.2f"), lambda v: v.figure("bwt", bare=True)),
        (Column("time", "time", time_text), lambda v: v.seconds),
        (Column("memory", "memory", memory_text), lambda v: v.memory),
    ]
    return variant_table("summary", "", group.variants, columns if with_bare else columns[:4] + columns[6:])


# Accuracies


def _accuracy_views(group: Group, variant: Variant, limits: tuple[float, float]) -> Views:
    """The accuracy matrix over all seeds and of each seed."""
    single = [replace(variant, by_seed={seed: result}) for seed, result in variant.by_seed.items()]
    views = [(f"seed {one.seeds[0]}", f"seed {one.seeds[0]}", one) for one in single]
    if len(views) > 1:
        views.insert(0, ("mean", f"mean of seeds {seeds_text(variant.seeds)}", variant))
    return [(label, [_accuracy_table(one, limits, title, group.task_names)]) for label, title, one in views]


def _accuracy_table(variant: Variant, limits: tuple[float, float], title: str, names: Sequence[str]) -> Table:
    """Accuracy on each task after each task; the footer has the change since the task was learned."""
    tasks, matrix = range(variant.tasks), variant.matrix
    columns = [words("" if variant.at_once else "after", "after")]
    columns += [Column(str(task), str(task), hint=name) for task, name in zip(tasks, names, strict=False)]
    rows: list[Row] = []
    for after, accuracies in enumerate(matrix):
        cells = {str(task): _accuracy(value, limits) for task, value in enumerate(accuracies)}
        rows.append({"after": "all at once" if variant.at_once else str(after), **cells})
    footer: Row | None = None
    if len(matrix) > 1:
        footer = {"after": "change", **{str(task): MarkedCell() for task in tasks}}
        for task, last in enumerate(matrix[-1][:-1]):
            own = matrix[task][task]
            if last is not None and own is not None:
                footer[str(task)] = change(last.mean - own.mean)
    return Table("accuracy", title, columns, rows, footer=footer)


def _accuracy(value: Estimate | None, limits: tuple[float, float]) -> MarkedCell:
    if value is None:
        return MarkedCell()
    hint = "" if value.deviation is None else f"{typeset(estimate_text(value))} %"
    return MarkedCell(number(value.mean, ".1f"), f"h{heat(value.mean, *limits)}", hint)


def heat(value: float, low: float, high: float) -> int:
    """Step of the color scale.

    >>> heat(50, 50, 100), heat(100, 50, 100), heat(100, 100, 100)
    (0, 8, 8)
    """
    return HEAT_STEPS - 1 if high <= low else min(HEAT_STEPS - 1, int((value - low) / (high - low) * HEAT_STEPS))


# Regimes


def _regime_views(variant: Variant) -> Views:
    views = []
    for result in variant.results:
        layers = dict.fromkeys(layer for by_layer in result.regimes for layer, old in by_layer.items() if old)
        views.append((f"seed {result.seed}", [_regime_table(result, layer) for layer in layers]))
    return views


def _regime_table(result: Result, layer: str) -> Table:
    """Regime of each old task (column) while each new task (row) was learned."""
    tasks = range(len(result.regimes))
    rows: list[Row] = []
    for task in tasks[1:]:
        by_task = result.regimes[task].get(layer, {})
        cells = {str(old): _regime(by_task[old]) if old in by_task else MarkedCell() for old in tasks[:-1]}
        rows.append({"new": str(task), **cells})
    columns = [words("new", "new"), *(Column(str(old), str(old)) for old in tasks[:-1])]
    return Table("regimes", layer, columns, rows)


def _regime(regime: Mapping[str, Any]) -> MarkedCell:
    """The regime, or the epoch after which it was demoted from 3 to 2."""
    epoch, kind = regime["demoted_at"], regime["regime"]
    if epoch is None and kind == 1:
        return MarkedCell("1", "r1")
    hint = f"ratio {number(regime['ratio'])}, cosine {number(regime['cosine'])}"
    return MarkedCell(str(kind), f"r{kind}", hint) if epoch is None else MarkedCell(f"↓{epoch}", "r4", hint)


# Memory, settings, and runs without a result


def _pools(variant: Variant) -> Table:
    several = len(variant.results) > 1
    rows: list[Row] = []
    for layer in variant.layers:
        sizes = variant.pool(layer, lambda pool: pool["size"])
        dimensions = variant.pool(layer, lambda pool: pool["dimension"])
        means = {str(task): size and number(size.mean, f".{int(several)}f") for task, size in enumerate(sizes)}
        rows.append({"layer": layer, **means, "dimension": dimensions[-1] and number(dimensions[-1].mean, ".0f")})
    columns = [words("layer", "layer"), *(Column(str(task), str(task)) for task in range(len(rows[0]) - 2))]
    title = f"{variant.label}: directions in the pool after each task{', mean over seeds' * several}"
    return Table("pools", title, [*columns, Column("of", "dimension")], rows)


def _memory(group: Group) -> Table | None:
    def of(kind: str) -> Callable[[Variant], float]:
        return lambda variant: variant.bytes.get(kind, 0)

    kinds = dict.fromkeys(kind for variant in group.variants for kind in variant.bytes)
    columns: VariantColumns = [(Column(kind, f"of {kind}", memory_text), of(kind)) for kind in kinds]
    columns.append((Column("all", "all", memory_text), lambda v: v.memory))
    return variant_table("memory", "", group.variants, columns) if kinds else None


def _settings(group: Group, different: dict[str, list[str]]) -> Table:
    labels = [variant.label for variant in group.variants]
    rows: list[Row] = [
        {"setting": name, **dict(zip(labels, values, strict=True))} for name, values in different.items()
    ]
    return Table("settings", "", [words("setting", "setting"), *(words(label, label) for label in labels)], rows)


def _unfinished(report: Report) -> Table | None:
    columns = [words(name, name) for name in ("directory", "run", "reason")]
    rows: list[Row] = [
        {"directory": str(run.directory), "run": run.name or None, "reason": run.reason} for run in report.unfinished
    ]
    return Table("unfinished", "", columns, rows) if rows else None
