"""A report as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cuber.report import drawing, maps, style
from cuber.report import formatting as words
from cuber.report.content import Benchmark, Content, PlainResult, Spread, Variant
from cuber.report.figures import comparisons, marks_of
from cuber.report.plots import Marks, evolution_tasks, pool_layers
from cuber.report.theory.runs import Summary, has_theory, layers_of, pairs, steps_covered

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
"""The variants' marks, for tables."""


def render(content: Content) -> str:
    """The whole page. The same results make the same text."""
    environment = Environment(
        loader=PackageLoader("cuber.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        spread=words.spread_words,
        seeds=words.seeds,
        seconds=words.seconds,
        memory=words.memory,
        mean=_mean,
    )
    marks = marks_of(content)
    most_views = 1 + max((len(variant.results) for b in content.benchmarks for variant in b.variants), default=0)
    return environment.get_template("page.html").render(
        content=content,
        benchmarks=[_benchmark(benchmark, f"b{place}", marks) for place, benchmark in enumerate(content.benchmarks, 1)],
        marks=marks,
        marker_paths=MARKER_PATHS,
        style=style,
        regime_cell=maps.regime_cell,
        steps_covered=steps_covered,
        most_views=most_views,
    )


def _benchmark(benchmark: Benchmark, name: str, marks: Marks) -> dict[str, Any]:
    """What the template needs to know of a benchmark."""
    with drawing.styled():
        pictures = {
            picture.name: Markup(drawing.inline(picture.figure, f"{name}f{place}", picture.description))
            for place, picture in enumerate(comparisons(benchmark, marks))
        }
    low, high = maps.accuracy_limits(benchmark.variants)
    different, same = benchmark.settings()
    tasks = len(benchmark.task_names)
    return {
        "id": name,
        "it": benchmark,
        "pictures": pictures,
        "panels_left_out": max(0, tasks - 1 - len(evolution_tasks(tasks))),
        "layers_left_out": max(0, len({x for v in benchmark.variants for x in v.layers}) - len(pool_layers(benchmark))),
        "low": low,
        "high": high,
        "heat": lambda value: maps.heat(value, low, high),
        "views": [(variant, _views(variant)) for variant in benchmark.variants],
        "regimes": [
            (variant, [(_seed(result), result, maps.regime_layers(result)) for result in variant.results])
            for variant in benchmark.variants
            if variant.has_regimes
        ],
        "theory": [
            (Summary(variant), layers_of(variant), [(_seed(r), r, list(pairs(r))) for r in variant.results])
            for variant in benchmark.variants
            if has_theory(variant)
        ],
        "kinds": list(dict.fromkeys(kind for variant in benchmark.variants for kind in variant.bytes)),
        "with_bare": any(variant.figure("acc_bare") is not None for variant in benchmark.variants),
        "different": different,
        "same": same,
    }


def _views(variant: Variant) -> list[tuple[str, str, list[list[Spread | None]]]]:
    """The accuracy matrix over all seeds, and with each: what to choose it by, its title, its rows."""
    single = [(_seed(result), _seed(result), _as_spreads(result)) for result in variant.results]
    if len(single) == 1:
        return single
    return [("mean", f"mean of seeds {words.seeds(variant.seeds)}", variant.matrix), *single]


def _seed(result: PlainResult) -> str:
    return f"seed {result['seed']}"


def _as_spreads(result: PlainResult) -> list[list[Spread | None]]:
    return [[None if value is None else Spread(value) for value in row] for row in result["accuracy"]]


def _mean(spread: Spread | None) -> float | None:
    return None if spread is None else spread.mean
