"""Contents and colors of the figures."""

from __future__ import annotations

import re

import pytest
from torch import nn

from cuber.methods import METHODS
from cuber.report import figures
from cuber.report.drawing import LIGHT
from cuber.report.figures import marks_of
from cuber.report.model import Group, Report, Variant
from cuber.report.page import render
from tests.made_up import result

TWO_TASKS = result().tasks[:2]


def report(*variants: Variant) -> Report:
    return Report([Group("made-up", variants)])


def variant(method: str, **changes) -> Variant:
    return Variant(method, {}, {0: result(method, **changes)})


@pytest.fixture(scope="module")
def kinds() -> list[str]:
    """All that the methods of this package keep."""
    sizes = [method(nn.Sequential(nn.Linear(2, 2))).memory_bytes() for method in METHODS.values()]
    return list(dict.fromkeys(kind for by_kind in sizes for kind in by_kind))


def test_bands_end_where_accuracies_do():
    matrices = ([[99.5, None], [100.0, 1.0]], [[95.0, None], [92.0, 5.0]])
    results = [result("gpm", seed, tasks=TWO_TASKS, accuracy=matrix) for seed, matrix in enumerate(matrices)]
    made = report(Variant("gpm", {}, dict(enumerate(results))))
    figure = figures.accuracy_evolution(made.groups[0], marks_of(made))
    edges = [band.get_paths()[0].vertices[:, 1] for axes in figure.axes for band in axes.collections]
    assert len(edges) == 2
    # The means of task 0 are 97.25 and 96, their deviations 3.2 and 5.7
    assert max(edges[1]) == 100
    assert min(edges[1]) == pytest.approx(96 - 4 * 2**0.5)


def test_settings_are_said_to_differ_only_where_they_do():
    alone, other = variant("gpm"), variant("trgp", training={"epochs": 7})
    assert "Settings that differ</h3>" not in render(report(alone))
    assert "Settings</h3>" in render(report(alone))
    assert "Settings that differ</h3>" in render(report(alone, other))


def test_every_kind_of_memory_has_a_color_of_its_own(kinds):
    figure = figures.memory_bars(Group("made-up", [variant("all", bytes=[dict.fromkeys(kinds, 1000)])]), {})
    bars = figure.axes[0].patches
    assert len(bars) == len(kinds)
    assert len({bar.get_facecolor() for bar in bars}) == len(kinds)


def test_every_method_has_a_color_and_a_form_of_its_own():
    marks = marks_of(report(*map(variant, METHODS))).values()
    assert len({mark.color for mark in marks}) == len({mark.marker for mark in marks}) == len(METHODS)


def test_tables_and_figures_show_a_variant_in_the_same_color():
    made = report(*map(variant, METHODS), variant("one more"))
    page, marks = render(made), marks_of(made)
    keys = re.findall(r'<path d="[^"]+" style="fill:var\(--(\w+)\)"/></svg>\s*(?=[a-z -]+</th><td>0<)', page)
    assert [LIGHT[key] for key in keys] == [mark.color for mark in marks.values()]
    dark = page[page.index("prefers-color-scheme: dark") : page.index("box-sizing")]
    assert set(LIGHT) <= set(re.findall(r"--(\w+):", dark))
