"""Terminal tables and progress: colors, and signs where there are none."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from cuber.experiments import Experiment
from cuber.experiments.campaign import JobStatus
from cuber.experiments.grid import Cell
from cuber.report import Bars, Lines, show_result, show_summary
from cuber.report.live import GridTable
from cuber.training import Epoch, ProgressEvent, Result
from tests.made_up import result as made_up
from tests.made_up import shifted

GREEN, RED = "\x1b[32m", "\x1b[31m"


def result(tasks: int = 3, regimes=None, bare: bool = False) -> Result:
    accuracy = [[80.0 + i - 2 * j * (i > j) if j <= i else None for j in range(tasks)] for i in range(tasks)]
    return Result(
        benchmark="made-up",
        method="cuber",
        seed=4,
        tasks=[{"name": f"part {n}"} for n in range(tasks)],
        settings={},
        training={},
        accuracy=accuracy,
        accuracy_bare=accuracy if bare else None,
        regimes=regimes or [],
        history=[[Epoch(0.5, 0.1, 1.0)]] * tasks,
        seconds=[1.5] * tasks,
        bytes=[{"bases": 2500, "heads": 0}] * tasks,
    )


def printed(show, *arguments, width: int = 80, colors: bool = False) -> str:
    file = io.StringIO()
    # Explicit, so that the terminal of the test run has no effect.
    system = "standard" if colors else None
    show(*arguments, Console(file=file, width=width, force_terminal=colors, color_system=system))
    return file.getvalue()


def line(text: str, start: str) -> list[str]:
    return next(row for row in text.splitlines() if row.strip().startswith(start)).split()


def test_changes_are_signed():
    text = printed(show_result, result())
    assert line(text, "0 part 0") == ["0", "part", "0", "80.0"]
    assert line(text, "1 part 1") == ["1", "part", "1", "81.0+", "81.0"]
    assert line(text, "2 part 2") == ["2", "part", "2", "82.0+", "80.0-", "82.0"]
    assert line(text, "change") == ["change", "+2.0", "-1.0"]
    assert "ACC 81.33 %  BWT +0.50  forgetting 0.50  time 4.5 s" in text
    assert "memory 2.5 kB (bases 2.5 kB)" in text


def test_what_was_predicted_of_old_losses_stands_beside_what_became_of_old_tasks():
    assert "predicted" not in printed(show_result, result())
    predicted = dataclasses.replace(result(), predictions=[0.0, -0.25, 0.125])
    text = printed(show_result, predicted).partition("predicted change")[2]
    assert line(text, "1") == ["1", "-0.250", "+1.00"]
    assert line(text, "2") == ["2", "+0.125", "0.00"]


@pytest.mark.parametrize("change", [-0.001, 0.0, 0.001])
def test_hardly_any_change_has_no_sign(change):
    unchanged = made_up(accuracy=shifted(bwt=change))
    assert "BWT 0.00  forgetting" in printed(show_summary, unchanged)
    assert repr(unchanged).endswith("BWT 0.00)")
    two = made_up(accuracy=[[80.0, None], [80.0 + change, 70.0]])
    assert line(printed(show_result, two), "change") == ["change", "0.0"]


def test_better_is_green_and_worse_is_red():
    text = printed(show_result, result(), colors=True)
    assert f"{GREEN}82.0+" in text
    assert f"{RED}80.0-" in text


def test_changes_too_small_to_see_have_no_sign():
    made = result(2)
    made.accuracy = [[80.0, None], [80.04, 70.0]]
    text = printed(show_result, made)
    assert line(text, "1 part 1") == ["1", "part", "1", "80.0", "70.0"]
    assert line(text, "change") == ["change", "0.0"]


@pytest.mark.parametrize("tasks", [1, 2, 10, 11, 20])
@pytest.mark.parametrize("bare", [False, True])
def test_any_number_of_tasks_fits(tasks, bare):
    text = printed(show_result, result(tasks, bare=bare))
    assert max(len(row.rstrip()) for row in text.split("ACC")[0].splitlines()) <= 80
    assert "…" not in text
    assert ("task not told" in text) == bare
    assert f"{tasks - 1} part {tasks - 1}" in text


@pytest.mark.parametrize("bare", [False, True])
def test_tasks_learned_at_once_have_one_row(bare):
    made = result(5, bare=bare)
    made.accuracy = [[80.0, 81.0, 82.0, 83.0, 84.0]]
    made.accuracy_bare = [[70.0] * 5] if bare else None
    text = printed(show_result, made)
    assert line(text, "all tasks") == ["all", "tasks", "80.0", "81.0", "82.0", "83.0", "84.0"]
    assert "change" not in text
    assert "part" not in text
    assert ("task not told" in text) == bare
    assert "ACC 82.00 %  BWT -  forgetting -" in text


@pytest.mark.parametrize("bare", [False, True])
def test_many_tasks_learned_at_once_have_a_row_each(bare):
    made = result(20)
    made.accuracy = [[60.0 + task for task in range(20)]]
    made.accuracy_bare = [[50.0] * 20] if bare else None
    text = printed(show_result, made)
    assert line(text, "19 part 19") == ["19", "part", "19", "79.0", *(["50.0"] if bare else [])]
    assert "when learned" not in text
    assert "change" not in text


def regime(number, demoted_at=None):
    return {"regime": number, "ratio": 0.5, "cosine": 0.1, "demoted_at": demoted_at}


def test_regimes_and_falls():
    regimes = [{"a": {}}, {"a": {0: regime(3)}}, {"a": {0: regime(1), 1: regime(2, demoted_at=7)}}]
    text = printed(show_result, result(3, regimes))
    assert line(text, "1  a") == ["1", "a", "0"]
    assert line(text, "2  a") == ["2", "a", "0", "1@7"]
    assert text.index("3: may improve") > text.index("2: reused") > text.index("1: protected")


def test_where_everything_is_only_protected_there_is_no_table_of_regimes():
    assert "Regimes" not in printed(show_result, result(2, [{"a": {}}, {"a": {0: regime(1)}}]))
    assert "Regimes" not in printed(show_result, result(2, []))


def test_the_summary_alone():
    assert len(printed(show_summary, result()).splitlines()) == 2


def moments():
    for task in range(2):
        for epoch in (1, 2):
            yield ProgressEvent(task, 2, f"part {task}", epoch, 5, 0.25, 50.0 + epoch, task == 0, 1.5)
        # stopped early
        yield ProgressEvent(task, 2, f"part {task}", 2, 5, 0.25, 52.0, task == 0, 1.5, finished=True)


def test_a_line_for_each_task_in_a_pipe():
    def show(console):
        with Lines(console) as progress:
            for moment in moments():
                progress(moment)

    assert printed(show).splitlines() == [
        "task 0  part 0  loss 0.250  validation accuracy  52.0 %    1.5 s",
        "task 1  part 1  loss 0.250  training accuracy  52.0 %    1.5 s",
    ]


def test_a_bar_for_each_task_on_a_terminal():
    def show(console):
        with Bars(console) as progress:
            for moment in moments():
                progress(moment)
            assert [bar.percentage for bar in progress.tasks] == [100, 100]

    text = printed(show, colors=True)
    last = [row for row in text.splitlines() if "part" in row][-2:]
    assert "task 0  part 0" in last[0]
    assert "52.0 %" in last[1]


def test_bars_are_taken_down_when_training_fails():
    def show(console):
        with contextlib.suppress(ValueError), Bars(console) as progress:
            progress(next(moments()))
            raise ValueError

    assert printed(show, colors=True).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_table_of_all_runs_of_a_grid_on_a_terminal():
    cell = Cell(Experiment(), Path("runs/overlap-digits/cuber/seed-0"))
    running = JobStatus(cell, "running", done=0.5, began=time.monotonic() - 10, done_at_start=0.0)

    def show(console):
        with GridTable(console) as watch:
            watch([running, JobStatus(cell, "finished", done=1.0)])

    text = printed(show, colors=True)
    assert re.search(r"overlap-digits/cuber/seed-0 +running +50% +10 s", text)
    assert "1 running, 1 finished" in text


def test_tasks_learned_at_once_have_one_line_and_one_bar():
    moment = ProgressEvent(None, 5, "all tasks", 2, 5, 0.25, 52.0, True, 1.5, finished=True)

    def show(kind, console):
        with kind(console) as progress:
            progress(moment)

    assert printed(show, Lines) == "all tasks  loss 0.250  validation accuracy  52.0 %    1.5 s\n"
    assert "all tasks" in printed(show, Bars, colors=True)
