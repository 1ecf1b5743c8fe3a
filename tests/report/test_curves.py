"""Training curves from metrics.csv, and the choice of methods and tasks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cuber import CuberError
from cuber.experiments import Experiment, run
from cuber.report.curves import curve_of, read_curve
from cuber.report.drawing import COLORS, styled
from cuber.report.figures import MOST_BANDS, accuracy_evolution, marks_of, training_curves
from cuber.report.grouping import load_report
from cuber.report.model import Group, Report, Variant
from cuber.report.page import render
from tests.made_up import result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method, seed in (("finetune", 0), ("finetune", 1), ("gpm", 0)):
        run(Experiment("split-digits", method, seed, tasks=3, epochs=2, train_per_task=40), folder / f"{method}-{seed}")
    return folder


def test_curves_are_means_over_the_seeds(runs: Path) -> None:
    finetune, gpm = load_report([runs]).groups[0].variants
    curve = curve_of(finetune, "train_loss")
    assert list(curve) == [(task, epoch) for task in range(3) for epoch in (1, 2)]
    losses = [read_curve(runs / f"finetune-{seed}", "train_loss")[1, 2] for seed in (0, 1)]
    assert curve[1, 2].mean == pytest.approx(sum(losses) / 2)
    assert curve_of(gpm, "train_loss")[2, 1].deviation is None


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    assert read_curve(tmp_path, "train_loss") == {}
    (tmp_path / "metrics.csv").write_bytes(b"task,epoch,train_loss\n0,1,0.5\n0,x,1\n-1,1,1\n0,2,nan\n0,3\n0,4,\xff\n")
    assert read_curve(tmp_path, "train_loss") == {(0, 1): 0.5}
    assert read_curve(tmp_path, "validation_accuracy") == {}


def test_a_pipe_in_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.csv")
    assert read_curve(tmp_path, "train_loss") == {}


def test_figures_show_the_chosen_methods_and_tasks(runs: Path) -> None:
    report = load_report([runs]).only(["gpm"]).showing([1])
    assert [variant.label for variant in report.groups[0].variants] == ["gpm"]
    with styled():
        curves = training_curves(report.groups[0], marks_of(report))
        evolution = accuracy_evolution(report.groups[0], marks_of(report))
    assert curves is not None
    assert [label.get_text() for label in curves.axes[-1].get_xticklabels()] == ["1"]
    assert evolution is not None
    assert [re.sub(":.*", "", axes.get_title(loc="left")) for axes in evolution.axes] == [
        "mean over tasks seen",
        "task 1",
    ]
    page = render(report)
    assert "Training of each task" in page
    assert "finetune" not in page


def test_unknown_methods_and_tasks_are_named(runs: Path) -> None:
    report = load_report([runs])
    with pytest.raises(CuberError, match="there is no method 'gmp'; did you mean 'gpm'"):
        report.only(["gmp"])
    with pytest.raises(CuberError, match="there is no task 3: the longest stream has tasks 0 to 2"):
        report.showing([3])


def test_many_variants_have_no_bands_and_titles_do_not_touch() -> None:
    accuracy = [[90.0 - task for task in range(after + 1)] + [None] * (19 - after) for after in range(20)]
    tasks = [{"name": f"classes {5 * n}-{5 * n + 4} of miniImageNet"} for n in range(20)]
    made = {"tasks": tasks, "accuracy": accuracy, "history": [], "seconds": [1.0] * 20}
    variants = [
        Variant(method, {}, {seed: result(method, seed, **made) for seed in range(2)}) for method in list(COLORS)[:10]
    ]
    report = Report([Group("made-up", variants)])
    with styled():
        figure = accuracy_evolution(report.groups[0], marks_of(report))
        assert figure is not None
        assert len(report.groups[0].variants) > MOST_BANDS
        assert not [axes for axes in figure.axes if axes.collections]
        figure.draw_without_rendering()
        boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    for place, box in enumerate(boxes):
        assert not [other for other in boxes[place + 1 :] if box.overlaps(other)]
