"""The figures that compare variants; a function that draws one returns None where there is no data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cuber.report import regime_map
from cuber.report.curves import QUANTITIES, curves_of
from cuber.report.drawing import AREAS, COLORS, LIGHT, WIDTH, Mark, method_place, save, styled
from cuber.report.model import Estimate, Group, Report, Variant
from cuber.report.theory_conditions import PREDICTORS, points
from cuber.report.typography import memory_text, memory_unit, shorten, time_text, time_unit

Marks = Mapping[str, Mark]
"""By a variant's label."""

CHARACTER, LEGEND_ROW = 0.065, 0.17
"""Approximate width of a character and height of a row in inches."""
MOST_BANDS = 5
"""With more variants, bands of deviations would cover each other; the tables have the deviations."""
LEVEL: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "linewidth": 1.2}
"""Line style for tasks that were learned all at once."""
WHISKERS: dict[str, Any] = {"elinewidth": 1.0, "capsize": 2.5}
ZERO: dict[str, Any] = {"color": LIGHT["quiet"], "linewidth": 0.8, "zorder": 1}


def marks_of(report: Report) -> dict[str, Mark]:
    """A mark for each variant by its label: one color for each method, the same in all reports."""
    labels = {variant.label: variant.method for group in report.groups for variant in group.variants}
    others = sorted({method for method in labels.values() if method_place(method) is None})
    places = {method: method_place(method) for method in labels.values()}
    places |= {method: len(COLORS) + place for place, method in enumerate(others)}
    marks: dict[str, Mark] = {}
    variants: Counter[str] = Counter()
    for label, method in labels.items():
        marks[label] = Mark(places[method] or 0, variants[method])
        variants[method] += 1
    return marks


def comparisons(group: Group, marks: Marks, only: str | None = None) -> Iterator[tuple[str, str, Figure]]:
    """Name, title and figure for the figures, or only that of one name, that compare the variants of a group."""
    for name, (draw, title) in FIGURES.items():
        if only in (None, name) and (figure := draw(group, marks)) is not None:
            yield (
                name,
                title.format(metric=group.metric.name, Metric=group.metric.name[:1].upper() + group.metric.name[1:]),
                figure,
            )


def save_all(report: Report, directory: Path, only: str | None = None) -> list[Path]:
    """Write every figure, or those of one name, as SVG and PNG: "split-digits_memory.svg"."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    marks = marks_of(report)
    with styled():
        for group in report.groups:
            title = re.sub(r"[^\w.=-]+", "-", group.title).strip("-.")[:60] or "unnamed"
            for figure_name, _, figure in comparisons(group, marks, only):
                taken = {path.stem for path in written}
                names = (f"{title}_{figure_name}" + (f"_{n}" if n > 1 else "") for n in count(1))
                written += save(figure, directory / next(name for name in names if name not in taken))
    return written


# Accuracies and agreement of gradients


def acc_against_bwt(group: Group, marks: Marks) -> Figure | None:
    """One point per variant; a dotted line for variants that learn all tasks at once, which have no BWT."""
    figures = [(variant, variant.figure("acc"), variant.figure("bwt")) for variant in group.variants]
    if all(bwt is None for _, _, bwt in figures):
        return None
    figure = Figure((WIDTH, 3.1), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, **ZERO)
    for variant, acc, bwt in figures:
        mark = marks[variant.label]
        if acc is not None and bwt is not None:
            point: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "markersize": 7, "linestyle": "none"}
            axes.errorbar(acc.mean, bwt.mean, bwt.deviation or None, acc.deviation or None, **(WHISKERS | point))
        elif acc is not None:
            axes.axvline(acc.mean, color=mark.color, **LEVEL)
    axes.margins(0.12)
    metric = group.metric
    axes.set_xlabel("ACC: mean final accuracy (%)" if metric.unit else f"mean final {metric.title}")
    axes.set_ylabel("BWT (percentage points)" if metric.unit else "BWT (above 0: improvement)")
    _add_legend(figure, group.variants, marks, lines=False)
    return figure


def accuracy_evolution(group: Group, marks: Marks) -> Figure | None:
    """One panel per task with its accuracy after every later task; the first panel has the mean over tasks."""
    names = group.task_names
    if len(names) < 2 or all(variant.at_once for variant in group.variants):
        return None
    shown = [task for task in range(len(names) - 1) if group.shows(task)]
    figure, panels = _make_panels(1 + len(shown))
    style = {"percent": bool(group.metric.unit), "band": len(group.variants) <= MOST_BANDS}
    for variant in group.variants:
        _draw(panels[0], variant.mean_over_seen, marks[variant.label], level=variant.at_once, **style)
    panels[0].set_title("mean over tasks seen", fontweight="bold")
    for task, axes in zip(shown, panels[1:], strict=True):
        axes.set_title(shorten(f"task {task}" + (f": {names[task]}" if names[task] else ""), _title_length(panels)))
        for variant in group.variants:
            if task < variant.tasks:
                mark, values = marks[variant.label], [row[task] for row in variant.matrix]
                _draw(axes, values, mark, level=variant.at_once, **style)
    _share_axes(figure, "accuracy (%)" if group.metric.unit else group.metric.title, last=len(names) - 1)
    _add_legend(figure, group.variants, marks)
    return figure


def training_curves(group: Group, marks: Marks) -> Figure | None:
    """Training loss and validation accuracy after each epoch, task after task."""
    drawn = {quantity: curves_of(group, quantity) for quantity in QUANTITIES}
    drawn = {quantity: curves for quantity, curves in drawn.items() if curves}
    if not drawn:
        return None
    places = [place for curves in drawn.values() for curve in curves.values() for place in curve]
    epochs = {task: max(epoch for other, epoch in places if other == task) for task, _ in places}
    tasks = sorted(epochs)
    figure = Figure((WIDTH, 0.6 + 1.9 * len(drawn)), layout="constrained")
    titles = {"train_loss": "training loss", "validation_accuracy": f"validation {group.metric.title}"}
    for axes, (quantity, curves) in zip(
        figure.subplots(len(drawn), 1, sharex=True, squeeze=False).flat, drawn.items(), strict=True
    ):
        axes.set_ylabel(titles[quantity])
        for label, curve in curves.items():
            for column, task in enumerate(tasks):  # a line for each task
                points = [
                    (column + epoch / epochs[task], value.mean)
                    for (other, epoch), value in curve.items()
                    if other == task
                ]
                if points:
                    style: dict[str, Any] = {"marker": marks[label].marker if len(points) == 1 else ""}
                    axes.plot(
                        *zip(*points, strict=True), color=marks[label].color, linestyle=marks[label].dashes, **style
                    )
        axes.set_xticks([column + 0.5 for column in range(len(tasks))], [str(task) for task in tasks])
        axes.grid(visible=False, axis="x")
        axes.set_xlim(0, len(tasks))
        for column in range(1, len(tasks)):
            axes.axvline(column, color=LIGHT["line"], linewidth=0.6, zorder=0)
    figure.supxlabel("epochs of task", fontsize=8, color=LIGHT["quiet"])
    labels = {label for curves in drawn.values() for label in curves}
    _add_legend(figure, [variant for variant in group.variants if variant.label in labels], marks, markers=False)
    return figure


def prediction(group: Group, marks: Marks) -> Figure | None:
    """Change of the old task against cosine and agreement, one point per pair of tasks."""
    variants = [variant for variant in group.variants if points(variant, "cosine")]
    if not variants:
        return None
    figure, panels = _make_panels(len(PREDICTORS), share_x=False)
    for axes, (name, title) in zip(panels, PREDICTORS.items(), strict=True):
        axes.axhline(0, **ZERO)
        axes.axvline(0, **ZERO)
        axes.set_xlabel(title)
        axes.xaxis.set_major_locator(MaxNLocator(5))  # more labels as long as -0.0005 would overlap
        for variant in variants:
            mark = marks[variant.label]
            style: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "linestyle": "none", "alpha": 0.7}
            axes.plot(*zip(*points(variant, name), strict=True), **style)
    panels[0].set_ylabel("old task's change (points)")
    _add_legend(figure, variants, marks, lines=False)
    return figure


def regime_maps(group: Group, marks: Marks) -> Figure | None:
    """One panel per variant and layer: how many seeds had each old task in each regime."""
    shown = regime_map.maps(group.variants)
    if not shown:
        return None
    figure, panels = _make_panels(len(shown))
    several = len({variant.label for variant, _ in shown}) > 1
    for axes, (variant, layer) in zip(panels, shown, strict=True):
        regime_map.draw_map(axes, variant, layer)
        axes.set_title(shorten(f"{variant.label}, {layer}" if several else layer, _title_length(panels)))
    figure.supxlabel("old task", fontsize=8, color=LIGHT["quiet"])
    figure.supylabel("new task", fontsize=8, color=LIGHT["quiet"])
    figure.legend(handles=regime_map.handles(), loc="outside upper left", ncols=4, handlelength=1.0)
    return figure


# Pools, memory and time


def pool_sizes(group: Group, marks: Marks) -> Figure | None:
    """One panel per layer: the share of its input space in the pool after each task."""
    layers = {layer: dimension for variant in group.variants for layer, dimension in variant.layers.items()}
    if not layers:
        return None
    figure, panels = _make_panels(len(layers))
    users = [variant for variant in group.variants if variant.layers]
    for axes, layer in zip(panels, layers, strict=True):
        axes.set_title(shorten(layer, _title_length(panels)))
        for variant in users:
            _draw(axes, variant.pool(layer, unit=layers[layer] / 100), marks[variant.label])
    _share_axes(figure, "in the pool (%)", last=len(group.task_names) - 1)
    panels[0].set_ylim(0, None)
    _add_legend(figure, users, marks)
    return figure


def memory_bars(group: Group, marks: Marks) -> Figure | None:
    """One bar per variant: memory after the last task, by kind."""
    kept, kinds = [variant.bytes for variant in group.variants], group.memory_kinds
    if not kinds:
        return None
    unit, name = memory_unit(max(variant.memory for variant in group.variants))
    figure, axes = _bars(group.variants, extra=0.3)
    for place, kind in enumerate(kinds):
        lefts = [sum(sizes.get(before, 0) for before in kinds[:place]) / unit for sizes in kept]
        widths = [sizes.get(kind, 0) / unit for sizes in kept]
        color = AREAS[place % len(AREAS)]
        axes.barh(range(len(kept)), widths, left=lefts, height=0.6, color=color, label=shorten(kind, 24))
    for row, variant in enumerate(group.variants):
        _note(axes, variant.memory / unit, row, memory_text(variant.memory))
    axes.set_xlabel(f"kept after the last task ({name})")
    figure.legend(loc="outside upper left", ncols=min(len(kinds), 7), handlelength=1.0, columnspacing=1.4)
    return figure


def time_bars(group: Group, marks: Marks) -> Figure:
    """One bar per variant: training time of all tasks."""
    times = [variant.seconds for variant in group.variants]
    unit, name = time_unit(max(time.mean for time in times))
    figure, axes = _bars(group.variants)
    for row, (variant, time) in enumerate(zip(group.variants, times, strict=True)):
        error = (time.deviation or 0) / unit
        axes.barh(row, time.mean / unit, height=0.5, color=marks[variant.label].color)
        axes.errorbar(time.mean / unit, row, xerr=error or None, color=LIGHT["ink"], **WHISKERS)
        _note(axes, time.mean / unit + error, row, time_text(time))
    axes.set_xlabel(f"training time of all tasks ({name})")
    return figure


FIGURES = {
    "acc-against-bwt": (acc_against_bwt, "Final {metric} and backward transfer"),
    "accuracy-evolution": (accuracy_evolution, "{Metric} of each task while later tasks are learned"),
    "training-curves": (training_curves, "Training of each task"),
    "conditions": (prediction, "Does agreement of gradients predict backward transfer?"),
    "regimes": (regime_maps, "Regimes of old tasks, by layer: the share of seeds in each"),
    "pool-sizes": (pool_sizes, "Growth of the pools of protected directions"),
    "memory": (memory_bars, "Memory after the last task"),
    "time": (time_bars, "Training time"),
}
"""Name in file names -> the function that draws it, and its title on the page."""


# Shared parts


def _bars(variants: Sequence[Variant], extra: float = 0.0) -> tuple[Figure, Axes]:
    figure = Figure((WIDTH, 0.55 + extra + 0.27 * len(variants)), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(variants)), [shorten(variant.label) for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.margins(x=0.16)
    return figure, axes


def _note(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(text, (x, row), (5, 0), textcoords="offset points", va="center", fontsize=7.5, color=LIGHT["quiet"])


def _make_panels(number: int, *, share_x: bool = True) -> tuple[Figure, list[Axes]]:
    columns = min(number, 4 if number == 4 or number > 6 else 3)
    rows = math.ceil(number / columns)
    figure = Figure((WIDTH, 0.5 + 1.55 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, sharex=share_x, sharey=True, squeeze=False).flat)
    for axes in panels[number:]:
        axes.remove()
    for axes in panels[:number]:
        axes.tick_params(labelbottom=True)  # the last row may be short
    return figure, panels[:number]


def _title_length(panels: Sequence[Axes]) -> int:
    """Characters that fit above a panel."""
    columns = panels[0].get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    return int((WIDTH - 0.6) / columns / CHARACTER) - 3


def _draw(
    axes: Axes,
    values: Iterable[Estimate | None],
    mark: Mark,
    *,
    level: bool = False,
    percent: bool = True,
    band: bool = True,
) -> None:
    """A line through means, with a band of one deviation; ``level``: a horizontal line instead."""
    least, most = (0.0, 100.0) if percent else (-math.inf, math.inf)
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    if level:
        axes.axhline(known[0][1].mean, color=mark.color, **LEVEL)
        return
    places, means = [place for place, _ in known], [value.mean for _, value in known]
    size: dict[str, Any] = {} if band else {"markersize": 2.8}
    axes.plot(places, means, color=mark.color, linestyle=mark.dashes, marker=mark.marker, **size)
    if band and any(value.deviation for _, value in known):
        low = [max(least, value.mean - (value.deviation or 0)) for _, value in known]
        high = [min(most, value.mean + (value.deviation or 0)) for _, value in known]
        axes.fill_between(places, low, high, color=mark.color, alpha=0.16, linewidth=0)


def _share_axes(figure: Figure, y: str, last: int) -> None:
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(min(last + 1, 8), integer=True, min_n_ticks=1))
        axes.set_xlim(-0.3, last + 0.3)
    figure.supxlabel("after learning task", fontsize=8, color=LIGHT["quiet"])
    figure.supylabel(y, fontsize=8, color=LIGHT["quiet"])


def _add_legend(
    figure: Figure, variants: Sequence[Variant], marks: Marks, *, lines: bool = True, markers: bool = True
) -> None:
    """Add a legend above the figure and enlarge the figure by its height."""
    handles = []
    for variant in variants:
        mark = marks[variant.label]
        style: dict[str, Any] = {
            "linestyle": mark.dashes if lines else "none",
            "marker": mark.marker if markers else "",
        }
        if variant.at_once:
            style = LEVEL
        handles.append(Line2D([], [], color=mark.color, label=shorten(variant.label), **style))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(WIDTH / (CHARACTER * (longest + 7)))))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (math.ceil(len(handles) / columns) - 1))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=2.6, columnspacing=1.6)
