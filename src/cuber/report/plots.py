"""Figures that compare variants; each function returns None where there is no data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cuber.report.drawing import AREAS, LIGHT, WIDTH, Mark
from cuber.report.model import Estimate, Group, Variant
from cuber.report.typography import memory_text, memory_unit, shorten, time_text, time_unit, typeset

Marks = Mapping[str, Mark]
"""By a variant's label."""

MOST_PANELS = 24
CHARACTER, LEGEND_ROW = 0.065, 0.17
"""Approximate width of a character and height of a row in inches."""
LEVEL: dict[str, Any] = {"linestyle": (0, (1, 1.5)), "linewidth": 1.2}
"""Line style for tasks that were learned all at once."""
WHISKERS: dict[str, Any] = {"elinewidth": 1.0, "capsize": 2.5}


def acc_against_bwt(group: Group, marks: Marks) -> Figure | None:
    """One point per variant; a dotted line for variants that learn all tasks at once, which have no BWT."""
    points = [(variant, variant.figure("acc"), variant.figure("bwt")) for variant in group.variants]
    if all(bwt is None for _, _, bwt in points):
        return None
    figure = Figure((WIDTH, 3.1), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(0, color=LIGHT["quiet"], linewidth=0.8, zorder=1)
    for variant, acc, bwt in points:
        mark = marks[variant.label]
        if acc is not None and bwt is not None:
            point: dict[str, Any] = {"color": mark.color, "marker": mark.marker, "markersize": 7, "linestyle": "none"}
            axes.errorbar(acc.mean, bwt.mean, bwt.deviation or None, acc.deviation or None, **(WHISKERS | point))
        elif acc is not None:
            axes.axvline(acc.mean, color=mark.color, **LEVEL)
    axes.margins(0.12)
    axes.set_xlabel("ACC: mean final accuracy (%)")
    axes.set_ylabel("BWT (percentage points)")
    add_legend(figure, group.variants, marks, lines=False)
    return figure


def accuracy_evolution(group: Group, marks: Marks) -> Figure | None:
    """One panel per task with its accuracy after every later task; the first panel has the mean over tasks."""
    tasks = len(group.task_names)
    if tasks < 2 or all(variant.at_once for variant in group.variants):
        return None
    figure, panels = make_panels(1 + len(evolution_tasks(tasks)))
    for variant in group.variants:
        _draw(panels[0], variant.mean_over_seen, marks[variant.label], level=variant.at_once)
    panels[0].set_title("mean over the tasks seen", fontweight="bold")
    for axes, task in zip(panels[1:], evolution_tasks(tasks), strict=False):
        name = group.task_names[task]
        axes.set_title(shorten(f"task {task}" + (f": {name}" if name else ""), 26))
        for variant in group.variants:
            if task < variant.tasks:
                _draw(axes, [row[task] for row in variant.matrix], marks[variant.label], level=variant.at_once)
    _share_axes(figure, "accuracy (%)", last=tasks - 1)
    add_legend(figure, group.variants, marks)
    return figure


def evolution_tasks(tasks: int) -> list[int]:
    """Tasks with a panel: all but the last, or evenly spaced ones where there are many."""
    return evenly(tasks - 1, MOST_PANELS - 1)


def evenly(count: int, most: int) -> list[int]:
    """The numbers below ``count``, or ``most`` of them, evenly spaced.

    >>> evenly(3, 5), evenly(9, 3)
    ([0, 1, 2], [0, 4, 8])
    """
    return list(range(count)) if count <= most else [round(n * (count - 1) / (most - 1)) for n in range(most)]


def pool_sizes(group: Group, marks: Marks) -> Figure | None:
    """One panel per layer: the share of its input space in the pool after each task."""
    layers = pool_layers(group)
    if not layers:
        return None
    figure, panels = make_panels(len(layers))
    users = [variant for variant in group.variants if variant.layers]
    for axes, layer in zip(panels, layers, strict=True):
        axes.set_title(shorten(layer, 28))
        for variant in users:
            _draw(axes, variant.pool(layer, lambda pool: 100 * pool["size"] / pool["dimension"]), marks[variant.label])
    _share_axes(figure, "in the pool (%)", last=len(group.task_names) - 1)
    panels[0].set_ylim(0, None)
    add_legend(figure, users, marks)
    return figure


def pool_layers(group: Group) -> list[str]:
    """Layers with a panel, evenly spaced where there are many."""
    layers = list(dict.fromkeys(layer for variant in group.variants for layer in variant.layers))
    return [layers[place] for place in evenly(len(layers), MOST_PANELS)]


def memory_bars(group: Group, marks: Marks) -> Figure | None:
    """One bar per variant: memory after the last task, by kind."""
    kept = [variant.bytes for variant in group.variants]
    kinds = list(dict.fromkeys(kind for sizes in kept for kind in sizes))
    if not kinds:
        return None
    unit, name = memory_unit(max(sum(sizes.values()) for sizes in kept))
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


def time_bars(group: Group, marks: Marks) -> Figure | None:
    """One bar per variant: training time of all tasks."""
    times = {row: variant.seconds for row, variant in enumerate(group.variants)}
    known = {row: time for row, time in times.items() if time is not None}
    if not known:
        return None
    unit, name = time_unit(max(time.mean for time in known.values()))
    figure, axes = _bars(group.variants)
    for row, time in known.items():
        error = (time.deviation or 0) / unit
        axes.barh(row, time.mean / unit, height=0.5, color=marks[group.variants[row].label].color)
        axes.errorbar(time.mean / unit, row, xerr=error or None, color=LIGHT["ink"], **WHISKERS)
        _note(axes, time.mean / unit + error, row, typeset(time_text(time)))
    axes.set_xlabel(f"training time of all tasks ({name})")
    return figure


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


def make_panels(count: int, *, share_x: bool = True) -> tuple[Figure, list[Axes]]:
    columns = min(count, 4 if count == 4 or count > 6 else 3)
    rows = math.ceil(count / columns)
    figure = Figure((WIDTH, 0.5 + 1.55 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=share_x, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.remove()
    for axes in panels[:count]:
        axes.tick_params(labelbottom=True)  # the last row may be short
    return figure, panels[:count]


def _draw(axes: Axes, values: Iterable[Estimate | None], mark: Mark, *, level: bool = False) -> None:
    """A line through means with a band of one deviation; ``level``: a horizontal line instead."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    if level:
        axes.axhline(known[0][1].mean, color=mark.color, **LEVEL)
        return
    places, means = [place for place, _ in known], [value.mean for _, value in known]
    style = {"color": mark.color, "linestyle": mark.dashes, "marker": mark.marker}
    axes.plot(places, means, **style)
    if any(value.deviation for _, value in known):
        low = [max(0.0, value.mean - (value.deviation or 0)) for _, value in known]
        high = [min(100.0, value.mean + (value.deviation or 0)) for _, value in known]
        axes.fill_between(places, low, high, color=mark.color, alpha=0.16, linewidth=0)


def _share_axes(figure: Figure, y: str, last: int) -> None:
    for axes in figure.axes:
        axes.xaxis.set_major_locator(MaxNLocator(min(last + 1, 8), integer=True, min_n_ticks=1))
        axes.set_xlim(-0.3, last + 0.3)
    figure.supxlabel("after learning task", fontsize=8, color=LIGHT["quiet"])
    figure.supylabel(y, fontsize=8, color=LIGHT["quiet"])


def add_legend(figure: Figure, variants: Sequence[Variant], marks: Marks, *, lines: bool = True) -> None:
    """Add a legend above the figure and enlarge the figure by its height."""
    handles = []
    for variant in variants:
        mark = marks[variant.label]
        style: dict[str, Any] = {"linestyle": mark.dashes if lines else "none", "marker": mark.marker}
        if variant.at_once:
            style = LEVEL
        handles.append(Line2D([], [], color=mark.color, label=shorten(variant.label), **style))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = max(1, min(len(handles), int(WIDTH / (CHARACTER * (longest + 7)))))
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (math.ceil(len(handles) / columns) - 1))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=2.6, columnspacing=1.6)
