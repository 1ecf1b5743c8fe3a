"""What the figures draw, and in which colours."""

from __future__ import annotations

import re

import pytest
from torch import nn

from cuber.methods import METHODS
from cuber.report import plots
from cuber.report.content import Benchmark, Content, Variant
from cuber.report.figures import marks_of
from cuber.report.page import render
from cuber.report.style import DARK, LIGHT
from tests.made_up import result


def content(*variants: Variant) -> Content:
    return Content([Benchmark("made-up", list(variants))], [])


def variant(label: str, **changes) -> Variant:
    return Variant(label, [result(label, **changes).to_dict()])


@pytest.fixture(scope="module")
def kinds() -> list[str]:
    """All that the methods of this package keep."""
    sizes = [method(nn.Sequential(nn.Linear(2, 2))).memory_bytes() for method in METHODS.values()]
    return list(dict.fromkeys(kind for by_kind in sizes for kind in by_kind))


def test_every_kind_of_memory_has_a_colour_of_its_own(kinds):
    figure = plots.memory_bars(Benchmark("made-up", [variant("all", bytes=[dict.fromkeys(kinds, 1000)])]))
    bars = figure.axes[0].patches
    assert len(bars) == len(kinds)
    assert len({bar.get_facecolor() for bar in bars}) == len(kinds)


def test_every_method_has_a_colour_and_a_form_of_its_own():
    marks = marks_of(content(*map(variant, METHODS))).values()
    assert len({mark.colour for mark in marks}) == len({mark.marker for mark in marks}) == len(METHODS)


def test_tables_and_figures_show_a_variant_in_the_same_colour():
    made = content(*map(variant, METHODS), variant("one more"))
    page, marks = render(made), marks_of(made)
    keys = re.findall(r'<path d="[^"]+" style="fill:var\(--(\w+)\)"/></svg>\s*(?=[a-z ]+</th><td>0<)', page)
    assert [LIGHT[key] for key in keys] == [mark.colour for mark in marks.values()]
    assert set(keys) <= set(DARK)
