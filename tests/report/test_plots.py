"""Contents and colors of the figures."""

from __future__ import annotations

import re

import pytest
from torch import nn

from cuber.methods import METHODS
from cuber.report import figures
from cuber.report.drawing import COLORS, DARK, LIGHT, PAIRS
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


def contrast(one: str, other: str) -> float:
    """Contrast of two colors by WCAG 2."""

    def luminance(color: str) -> float:
        parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("mode", "page"), [(0, LIGHT["page"]), (1, DARK["page"])], ids=["light", "dark"])
def test_every_color_is_visible_and_cuber_and_trgp_are_not_the_faintest(mode, page):
    found = {method: contrast(pair[mode], page) for method, pair in COLORS.items()}
    assert min(found.values()) >= 3  # of graphics, by WCAG 2
    assert min(contrast(pair[mode], page) for pair in PAIRS) >= 3
    faintest = sorted(found, key=lambda method: found[method])[:4]
    assert not {"cuber", "trgp"} & set(faintest)
    assert min(found["cuber"], found["trgp"]) >= 5
    assert len({pair[mode] for pair in PAIRS}) == len(PAIRS)


def test_a_method_has_the_same_color_in_every_report():
    alone = marks_of(report(variant("cuber")))["cuber"]
    swept = [Variant("cuber", {"eps2": eps2}, {0: result("cuber")}) for eps2 in (0.0, 0.1)]
    among = marks_of(report(variant("b, from outside"), variant("a, from outside"), *map(variant, METHODS), *swept))
    assert {among[name].color for name in ("cuber", "cuber eps2=0", "cuber eps2=0.1")} == {alone.color}
    assert (alone.marker, alone.dashes) == (among["cuber"].marker, among["cuber"].dashes)
    assert among["cuber eps2=0"].marker != among["cuber eps2=0.1"].marker
    # Methods from outside have the first colors that no method of this package has, by their names
    assert [among[f"{name}, from outside"].color for name in "ab"] == [light for light, _ in PAIRS[len(COLORS) :]][:2]
    assert METHODS.keys() == COLORS.keys()


def test_every_method_has_a_color_and_a_form_of_its_own():
    marks = marks_of(report(*map(variant, METHODS))).values()
    assert len({mark.color for mark in marks}) == len({mark.marker for mark in marks}) == len(METHODS)


def test_tables_and_figures_show_a_variant_in_the_same_color():
    made = report(*map(variant, METHODS), variant("one more"))
    page, marks = render(made), marks_of(made)
    keys = re.findall(r'<path d="[^"]+" style="fill:var\(--(\w+)\)"/></svg>\s*(?=[a-z -]+</th><td>0<)', page)
    assert [LIGHT[key] for key in keys] == [mark.color for mark in marks.values()]
    assert "--c0:#93bdff" in page
    dark = page[page.index("prefers-color-scheme: dark") : page.index("box-sizing")]
    assert set(LIGHT) <= set(re.findall(r"--(\w+):", dark))
