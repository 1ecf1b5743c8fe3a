"""The maps of one variant as figures for files; the page has them as tables. From plain results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cuber.report.content import PlainResult, Variant
from cuber.report.formatting import seeds, shorten
from cuber.report.style import FELL, HEAT_LIGHT, LIGHT, REGIMES, REGIMES_LIGHT, WIDTH

Cell = tuple[int, int, str, tuple[str, str]]
"""Row, column, what it says, its colour and that of the text."""


def heat(value: float, low: float, high: float) -> int:
    """The step of the colour scale for a value between the lowest and the highest.

    >>> heat(50, 50, 100), heat(100, 50, 100), heat(100, 100, 100)
    (0, 8, 8)
    """
    steps = len(HEAT_LIGHT)
    return steps - 1 if high <= low else min(steps - 1, int((value - low) / (high - low) * steps))


def accuracy_limits(variants: Sequence[Variant]) -> tuple[float, float]:
    """The lowest and highest accuracy of all: one scale, so that colours can be compared."""
    values = [
        value
        for variant in variants
        for result in variant.results
        for row in result["accuracy"]
        for value in row
        if value is not None
    ]
    return min(values), max(values)


def regime_cell(regime: Mapping[str, Any]) -> tuple[str, int]:
    """What the cell of an old task says, and its kind: the regime, or since which epoch it is no longer 3."""
    fell = regime.get("fell")
    return (f"↓{fell}", FELL) if fell is not None else (str(regime["regime"]), regime["regime"])


def regime_layers(result: PlainResult) -> list[str]:
    """The layers that regimes are told of."""
    return list(dict.fromkeys(layer for by_layer in result["regimes"] for layer, old in by_layer.items() if old))


# As figures


def accuracy_matrix(variant: Variant, limits: tuple[float, float]) -> Figure:
    """The mean accuracy on each task after learning each."""

    def cells() -> Iterator[Cell]:
        for row, values in enumerate(variant.matrix):
            for column, value in enumerate(values):
                if value is not None:
                    yield row, column, f"{value.mean:.1f}", HEAT_LIGHT[heat(value.mean, *limits)]

    rows, columns = len(variant.matrix), variant.tasks
    figure = Figure((max(4.0, 0.8 + 0.5 * columns), 1.0 + 0.28 * rows), layout="constrained")
    axes = figure.add_subplot()
    _map(axes, cells(), rows, columns)
    which = "mean of seeds" if len(variant.seeds) > 1 else "seed"
    axes.set_title(f"{shorten(variant.label)}\naccuracy in %, {which} {shorten(seeds(variant.seeds))}")
    axes.set_xlabel("on task")
    axes.set_ylabel("all tasks at once" if variant.at_once else "after learning task")
    if variant.at_once:
        axes.set_yticks([])
    return figure


def regime_map(variant: Variant, result: PlainResult) -> Figure:
    """A map for each layer: how each new task stood to each old one."""
    layers, tasks = regime_layers(result), variant.tasks
    in_a_row = max(1, min(len(layers), int(WIDTH / (0.6 + 0.24 * tasks))))
    rows = math.ceil(len(layers) / in_a_row)
    size = (max(WIDTH, in_a_row * (0.6 + 0.24 * tasks)), 0.7 + rows * (0.6 + 0.2 * tasks))
    figure = Figure(size, layout="constrained")
    grid = list(figure.subplots(rows, in_a_row, squeeze=False).flat)
    for axes, layer in zip(grid, layers, strict=False):
        _map(axes, _regime_cells(result, layer), tasks, tasks - 1, first_row=1, size=6.5)
        axes.set_title(shorten(layer, 8 + 4 * tasks), fontsize=7.5)
        axes.set_xlabel("old task")
        axes.set_ylabel("learning task")
    for axes in grid[len(layers) :]:
        axes.remove()
    figure.suptitle(
        f"{shorten(variant.label)}, seed {result['seed']}: regime of each old task", fontsize=8, x=0.01, ha="left"
    )
    signs = {**{number: str(number) for number in (1, 2, 3)}, FELL: "↓n"}
    handles = [
        Patch(facecolor=REGIMES_LIGHT[kind][0], label=f"{signs[kind]}: {words}" + " after epoch n" * (kind == FELL))
        for kind, words in REGIMES.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1.0)
    return figure


def _regime_cells(result: PlainResult, layer: str) -> Iterator[Cell]:
    for task, by_layer in enumerate(result["regimes"]):
        for old, regime in by_layer.get(layer, {}).items():
            text, kind = regime_cell(regime)
            yield task, int(old), text, REGIMES_LIGHT[kind]


def _map(axes: Axes, cells: Iterable[Cell], rows: int, columns: int, first_row: int = 0, size: float = 7.5) -> None:
    for row, column, text, (colour, ink) in cells:
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor=LIGHT["page"], lw=1.0))
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=ink)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, first_row - 0.5)
    axes.set_xticks(range(columns))
    axes.set_yticks(range(first_row, rows))
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
