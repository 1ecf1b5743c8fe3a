"""Figure: the regime of every old task while each new task was learned, layer by layer, over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from cuber.report.drawing import AREAS, LIGHT
from cuber.report.model import Variant

KINDS = {"3": AREAS[2], "3, then 2": AREAS[1], "2": AREAS[0], "1": LIGHT["line"]}
"""Regime -> its color; a task that was demoted in an epoch has been in two."""
MOST_PANELS = 24
"""More panels would be too small to read; the page has a table of each layer."""


def kind(regime: dict[str, Any]) -> str:
    """Return which of ``KINDS`` an old task was in.

    >>> kind({"regime": 2, "demoted_at": 4})
    '3, then 2'
    """
    return str(regime["regime"]) if regime["demoted_at"] is None else "3, then 2"


def maps(variants: Sequence[Variant]) -> list[tuple[Variant, str]]:
    """Return the variants and layers in which an old task was in regime 3, and may have changed."""
    found = []
    for variant in variants:
        with_layers = [by_layer for result in variant.results for by_layer in result.regimes]
        for layer in dict.fromkeys(layer for by_layer in with_layers for layer in by_layer):
            old = [regime for by_layer in with_layers for regime in by_layer.get(layer, {}).values()]
            if any(kind(regime).startswith("3") for regime in old):
                found.append((variant, layer))
    return found if len(found) <= MOST_PANELS else []


def shares(variant: Variant, layer: str) -> dict[tuple[int, int], dict[str, float]]:
    """Return (new task, old task) -> share of the seeds in each kind of regime."""
    counts: dict[tuple[int, int], Counter[str]] = {}
    for result in variant.results:
        for new, by_layer in enumerate(result.regimes):
            for old, regime in by_layer.get(layer, {}).items():
                counts.setdefault((new, old), Counter())[kind(regime)] += 1
    return {pair: {name: n / counter.total() for name, n in counter.items()} for pair, counter in counts.items()}


def draw_map(axes: Axes, variant: Variant, layer: str) -> None:
    """Draw a cell for each pair of tasks, divided into the shares of seeds in each regime."""
    found = shares(variant, layer)
    for (new, old), of_seeds in found.items():
        for left, width, color in _parts(of_seeds):
            axes.add_patch(Rectangle((old - 0.45 + 0.9 * left, new - 0.45), 0.9 * width, 0.9, color=color, linewidth=0))
    last = max(new for new, _ in found)
    axes.set_xlim(-0.6, last - 0.4)
    axes.set_ylim(last + 0.6, 0.4)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(min(last + 1, 8), integer=True))


def _parts(of_seeds: dict[str, float]) -> Iterator[tuple[float, float, str]]:
    left = 0.0
    for name, color in KINDS.items():
        width = of_seeds.get(name, 0.0)
        yield left, width, color
        left += width


def handles() -> list[Patch]:
    """Return the entries of the legend."""
    return [Patch(color=color, label=f"regime {name}") for name, color in KINDS.items()]
