"""Recorded conditions of the theorems on the page; nothing where there are none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cuber.report import drawing
from cuber.report.figures import marks_of, prediction, save_all
from cuber.report.page import render
from cuber.report.theory_conditions import pairs, summary_row
from cuber.training import Result
from tests.report.test_page import Page, report, result, variant

LAYER = "a.0"


def conditions(cosine: float | None, eps2: float | None = 0.5, step_size: float | None = 0.0) -> dict:
    agreement = None if cosine is None else cosine / 100
    return {"ratio": 0.8, "cosine": cosine, "eps2": eps2, "step_size": step_size, "agreement": agreement}


def theory(cosines: list[list[float | None]], **changes: float | None) -> list[dict]:
    """Old tasks by their numbers as text, as they come from ``result.json``."""
    return [
        {LAYER: {"old": {str(old): conditions(cosine, **changes) for old, cosine in enumerate(row)}}} for row in cosines
    ]


def read(values: dict) -> Result:
    return variant(values).results[0]


RECORDED = theory([[], [0.6], [-0.2, 0.1]])
ACCURACY = [[90.0, None, None], [92.0, 80.0, None], [91.0, 80.5, 70.0]]


def test_a_pair_has_what_the_old_task_gained_while_the_new_one_was_learned() -> None:
    found = list(pairs(read(result(theory=RECORDED, accuracy=ACCURACY))))
    assert [(pair.task, pair.old, pair.change, pair.cosine) for pair in found] == [
        (1, 0, 2.0, 0.6),
        (2, 0, -1.0, -0.2),
        (2, 1, 0.5, 0.1),
    ]


def test_a_pair_has_the_mean_cosine_and_the_whole_agreement_of_its_layers() -> None:
    recorded = theory([[], [0.6], [None, None]])
    recorded[1]["b.1"] = {"old": {"0": conditions(0.2)}}
    first, nothing, _ = pairs(read(result(theory=recorded)))
    assert (first.cosine, first.agreement) == pytest.approx((0.4, 0.008))
    assert (nothing.cosine, nothing.agreement) == (None, None)


def test_a_summary_counts_over_layers_pairs_and_seeds() -> None:
    other = theory([[], [0.5], [None, -0.3]], step_size=1.0)
    other[2][LAYER]["old"]["0"] |= {"eps2": None, "step_size": None, "ratio": 0.7}
    row = summary_row(variant(result(theory=RECORDED, accuracy=ACCURACY), result(seed=1, theory=other)))
    assert row["count"] == 6
    assert row["ratio ≥ 0.71"] == pytest.approx(100 * 5 / 6)
    assert row["cosine > 0"] == pytest.approx(50)
    assert row["enough for theorem 1"] == pytest.approx(100 * 2 / 6)
    assert row["steps"] == 4  # (1 / 0.125) ^ (2 / 3)
    assert summary_row(variant(result(theory=RECORDED, accuracy=ACCURACY)))["cosine"] == 1


def test_the_page_shows_it_beside_the_backward_transfer_that_was_measured() -> None:
    text = render(report(result(theory=RECORDED, accuracy=ACCURACY), result("gpm")))
    page = Page(text)
    assert "Conditions of the theorems" in page.text
    row = page.cells[page.cells.index("pairs × layers") :]
    row = row[row.index("cuber") + 1 :]
    assert row[:7] == ["3", "100 %", "67 %", "33 %", "0", "+1.00", "+1.00"]
    assert "gpm" not in row[:9]


@pytest.mark.parametrize("size", [1.0, 0.106, 0.0031])
def test_the_numbers_below_the_figure_do_not_run_into_each_other(size: float) -> None:
    recorded = theory([[], [size], [-size, size / 2]])
    made = report(result(theory=recorded, accuracy=ACCURACY))
    with drawing.styled():
        figure = prediction(made.groups[0], marks_of(made))
        FigureCanvasAgg(figure).draw()
        for axes in figure.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
            assert all(left.x1 + 5 < right.x0 for left, right in pairwise(boxes))


def test_a_page_without_it_does_not_speak_of_it() -> None:
    assert "theorem" not in render(report(result(), result("gpm")))


def test_the_figure_is_written_with_the_others(tmp_path: Path) -> None:
    names = {path.name for path in save_all(report(result(theory=RECORDED)), tmp_path)}
    assert {"made-up_conditions.svg", "made-up_conditions.png"} <= names
