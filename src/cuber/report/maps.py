"""Accuracy matrices and regimes: as tables with marked cells for the page, and as figures of the same cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cuber.report.model import Estimate, Group, Variant
from cuber.report.style import DEMOTED, HEAT_LIGHT, LIGHT, REGIMES, REGIMES_LIGHT, WIDTH
from cuber.report.table import Column, MarkedCell, Row, Table, change, words
from cuber.report.typography import estimate_text, number, seeds_text, shorten, typeset

if TYPE_CHECKING:
    from cuber.training import Result

COLORS = {f"h{step}": colors for step, colors in enumerate(HEAT_LIGHT)} | {
    f"r{kind}": colors for kind, colors in REGIMES_LIGHT.items()
}
"""Colors of a cell and of its text in figures; the page has them as CSS classes."""


# Tables


def accuracy_limits(group: Group) -> tuple[float, float]:
    """Lowest and highest accuracy of a group, for one color scale."""
    values = [value for result in group.results for row in result.accuracy for value in row if value is not None]
    return min(values), max(values)


def heat(value: float, low: float, high: float) -> int:
    """Step of the color scale.

    >>> heat(50, 50, 100), heat(100, 50, 100), heat(100, 100, 100)
    (0, 8, 8)
    """
    steps = len(HEAT_LIGHT)
    return steps - 1 if high <= low else min(steps - 1, int((value - low) / (high - low) * steps))


def accuracy_table(variant: Variant, limits: tuple[float, float], title: str = "", names: Sequence[str] = ()) -> Table:
    """Accuracy on each task after each task; the footer has the change since the task was learned."""
    tasks, matrix = range(variant.tasks), variant.matrix
    hints = dict(enumerate(names))
    columns = [words("" if variant.at_once else "after", "after")]
    columns += [Column(str(task), str(task), hint=hints.get(task, "")) for task in tasks]
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


def regime_layers(result: Result) -> list[str]:
    """Layers with regimes."""
    return list(dict.fromkeys(layer for by_layer in result.regimes for layer, old in by_layer.items() if old))


def regime_table(result: Result, layer: str) -> Table:
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
    epoch, kind = regime.get("demoted_at"), regime["regime"]
    if epoch is None and kind == 1:
        return MarkedCell("1", "r1")
    hint = f"ratio {number(regime['ratio'])}, cosine {number(regime['cosine'])}"
    return MarkedCell(str(kind), f"r{kind}", hint) if epoch is None else MarkedCell(f"↓{epoch}", f"r{DEMOTED}", hint)


# Figures


def accuracy_figure(variant: Variant, limits: tuple[float, float]) -> Figure:
    """Mean accuracy on each task after each task."""
    rows, columns = len(variant.matrix), variant.tasks
    figure = Figure((max(4.0, 0.8 + 0.5 * columns), 1.0 + 0.28 * rows), layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, accuracy_table(variant, limits))
    which = "mean of seeds" if len(variant.seeds) > 1 else "seed"
    axes.set_title(f"{shorten(variant.label)}\naccuracy in %, {which} {shorten(seeds_text(variant.seeds))}")
    axes.set_xlabel("on task")
    axes.set_ylabel("all tasks at once" if variant.at_once else "after learning task")
    if variant.at_once:
        axes.set_yticks([])
    return figure


def regime_figure(variant: Variant, result: Result) -> Figure:
    """One map per layer: the regime of each old task while each new task was learned."""
    layers, tasks = regime_layers(result), variant.tasks
    in_a_row = max(1, min(len(layers), int(WIDTH / (0.6 + 0.24 * tasks))))
    rows = math.ceil(len(layers) / in_a_row)
    size = (max(WIDTH, in_a_row * (0.6 + 0.24 * tasks)), 0.7 + rows * (0.6 + 0.2 * tasks))
    figure = Figure(size, layout="constrained")
    grid = list(figure.subplots(rows, in_a_row, squeeze=False).flat)
    for axes, layer in zip(grid, layers, strict=False):
        _draw(axes, regime_table(result, layer), first_row=1, size=6.5)
        axes.set_title(shorten(layer, 8 + 4 * tasks), fontsize=7.5)
        axes.set_xlabel("old task")
        axes.set_ylabel("learning task")
    for axes in grid[len(layers) :]:
        axes.remove()
    title = f"{shorten(variant.label)}, seed {result.seed}: regime of each old task"
    figure.suptitle(title, fontsize=8, x=0.01, ha="left")
    handles = [Patch(facecolor=REGIMES_LIGHT[kind][0], label=name) for kind, name in REGIMES.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1.0)
    return figure


def _draw(axes: Axes, table: Table, first_row: int = 0, size: float = 7.5) -> None:
    columns, end = len(table.columns) - 1, first_row + len(table.rows)
    for y, row in enumerate(table.rows, first_row):
        for x, cell in enumerate(table.cells(row)[1:]):
            if cell.mark:
                color, ink = COLORS[cell.mark]
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor=LIGHT["page"], lw=1.0))
                axes.text(x, y, cell.text, ha="center", va="center", fontsize=size, color=ink)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(end - 0.5, first_row - 0.5)
    axes.set_xticks(range(columns))
    axes.set_yticks(range(first_row, end))
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
