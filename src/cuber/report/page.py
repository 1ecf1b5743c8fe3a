"""The HTML page of `cuber report`: one file without scripts or links to other files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuber.report import drawing, maps, style, theory_conditions
from cuber.report.figures import comparisons, marks_of
from cuber.report.model import Group, Report, Variant
from cuber.report.plots import Marks, evolution_tasks, pool_layers
from cuber.report.table import Column, Row, Table, VariantColumns, estimate, number, variant_table, words
from cuber.report.typography import memory_text, seeds_text, time_text
from cuber.report.typography import number as number_text

MARKER_PATHS = {
    "o": "M-.8 0a.8.8 0 1 0 1.6 0a.8.8 0 1 0-1.6 0z",
    "s": "M-.75-.75h1.5v1.5h-1.5z",
    "^": "M0-.85l.9 1.6h-1.8z",
    "D": "M0-1l1 1l-1 1l-1-1z",
    "v": "M0 .85l.9-1.6h-1.8z",
    "P": "M-.3-.9h.6v.6h.6v.6h-.6v.6h-.6v-.6h-.6v-.6h.6z",
    "X": "M-.85-.45l.4-.4l.45.45l.45-.45l.4.4l-.45.45l.45.45l-.4.4l-.45-.45l-.45.45l-.4-.4l.45-.45z",
    "p": "M0-.95l.9.65l-.35 1.1h-1.1l-.35-1.1z",
    "*": "M0-1l.25.7h.75l-.6.45l.22.75l-.62-.45l-.62.45l.22-.75l-.6-.45h.75z",
    "<": "M-.85 0l1.6.9v-1.8z",
    ">": "M.85 0l-1.6.9v-1.8z",
}
"""Markers of the variants as SVG paths, for tables."""


def render(report: Report) -> str:
    """The page as text; the same results give the same text."""
    environment = Environment(
        loader=PackageLoader("cuber.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number_text, seeds=seeds_text)
    marks = marks_of(report)
    return environment.get_template("page.html").render(
        report=report,
        groups=[_group(group, f"b{place}", marks) for place, group in enumerate(report.groups, 1)],
        unfinished=_unfinished(report),
        marks=marks,
        marker_paths=MARKER_PATHS,
        style=style,
        most_views=1 + max((len(variant.results) for group in report.groups for variant in group.variants), default=0),
    )


def _group(group: Group, name: str, marks: Marks) -> dict[str, Any]:
    """The tables and figures of one group, for the template."""
    with drawing.styled():
        pictures = {
            picture.name: Markup(drawing.inline(picture.figure, f"{name}f{place}", picture.description))
            for place, picture in enumerate(comparisons(group, marks))
        }
    limits = maps.accuracy_limits(group)
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


def _accuracy_views(group: Group, variant: Variant, limits: tuple[float, float]) -> list[tuple[str, list[Table]]]:
    """The accuracy matrix over all seeds and of each seed, with the labels that select them."""
    single = [replace(variant, by_seed={seed: result}) for seed, result in variant.by_seed.items()]
    views = [(f"seed {one.seeds[0]}", f"seed {one.seeds[0]}", one) for one in single]
    if len(views) > 1:
        views.insert(0, ("mean", f"mean of seeds {seeds_text(variant.seeds)}", variant))
    return [(label, [maps.accuracy_table(one, limits, title, group.task_names)]) for label, title, one in views]


def _regime_views(variant: Variant) -> list[tuple[str, list[Table]]]:
    return [
        (f"seed {result.seed}", [maps.regime_table(result, layer) for layer in maps.regime_layers(result)])
        for result in variant.results
    ]


def _pools(variant: Variant) -> Table:
    several = len(variant.results) > 1
    sizes = {layer: variant.pool(layer, lambda pool: pool["size"]) for layer in variant.layers}
    rows: list[Row] = []
    for layer, after in sizes.items():
        dimension = variant.pool(layer, lambda pool: pool["dimension"])[-1]
        means = {str(task): size and size.mean for task, size in enumerate(after)}
        rows.append({"layer": layer, **means, "dimension": dimension and dimension.mean})
    tasks = range(len(sizes[variant.layers[0]]))
    columns = [words("layer", "layer"), *(number(str(task), str(task), f".{int(several)}f") for task in tasks)]
    title = f"{variant.label}: directions in the pool after each task{', mean over seeds' * several}"
    return Table("pools", title, [*columns, number("of", "dimension", ".0f")], rows)


def _memory(group: Group) -> Table | None:
    kinds = dict.fromkeys(kind for variant in group.variants for kind in variant.bytes)
    columns: VariantColumns = [(Column(kind, f"of {kind}", memory_text), _bytes_of(kind)) for kind in kinds]
    columns.append((Column("all", "all", memory_text), lambda v: v.memory))
    return variant_table("memory", "", group.variants, columns) if kinds else None


def _bytes_of(kind: str) -> Callable[[Variant], float]:
    return lambda variant: variant.bytes.get(kind, 0)


def _settings(group: Group, different: dict[str, list[str]]) -> Table:
    columns = [words("setting", "setting"), *(words(v.label, f"v{place}") for place, v in enumerate(group.variants))]
    rows: list[Row] = [
        {"setting": name, **{f"v{place}": value for place, value in enumerate(values)}}
        for name, values in different.items()
    ]
    return Table("settings", "", columns, rows)


def _unfinished(report: Report) -> Table | None:
    columns = [words("directory", "directory"), words("run", "run"), words("reason", "reason")]
    rows: list[Row] = [
        {"directory": str(run.directory), "run": run.name or None, "reason": run.reason} for run in report.unfinished
    ]
    return Table("unfinished", "", columns, rows) if rows else None
