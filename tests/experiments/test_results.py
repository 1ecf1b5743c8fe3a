"""Reading run directories: finished, stopped, failed, damaged, foreign."""

from __future__ import annotations

import json
import math
import os
from functools import reduce

import pytest

from cuber import CuberError
from cuber.experiments.results import DAMAGED, FAILED, FINISHED, RUNNING, STOPPED, load
from cuber.metrics import Measure
from cuber.training import RunDirectory
from tests.made_up import MATRIX, result, write

CONFIG = """
[experiment]
benchmark = "split-digits"
method = "gpm"
seed = 3

[stream]
tasks = [{name = "a"}, {name = "b"}, {name = "c"}]
"""


def logged(*lines: dict) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_result_is_read_as_it_was_written(tmp_path):
    regimes = [{}, {"first": {}}, {"first": {0: {"regime": 3, "ratio": 0.5, "cosine": 0.1, "demoted_at": None}}}]
    made = result(regimes=regimes, reshuffled=[[1.0, 2.0, 3.0]], accuracy_bare=MATRIX)
    (run,) = load([write(tmp_path / "a", made, CONFIG)])
    assert run.state == FINISHED
    assert run.reason == ""
    assert run.result.to_dict() == made.to_dict()
    assert run.result.regimes == regimes  # the numbers of old tasks are numbers again
    assert run.config["experiment"]["method"] == "gpm"
    assert run.name == "cuber on made-up, seed 0"  # what was run, whatever the configuration says


def test_folders_are_searched_and_each_run_is_found_once(tmp_path):
    write(tmp_path / "b" / "2", result(seed=2))
    write(tmp_path / "b" / "1", config=CONFIG)
    write(tmp_path / "b", result(seed=0))
    write(tmp_path / "b" / "1" / "checkpoint", result(seed=9))
    runs = load([tmp_path / "b" / "2", tmp_path, tmp_path / "b" / ".." / "b" / "1"])
    assert [run.directory for run in runs] == [tmp_path / "b" / "2", tmp_path / "b", tmp_path / "b" / "1"]


def test_how_far_an_unfinished_run_got(tmp_path):
    log = logged(
        {"event": "started"},
        {"event": "epoch", "task": 0, "epoch": 1},
        {"event": "evaluation", "task": 0, "accuracy": [1.0, None, None]},
        {"event": "epoch", "task": 1, "epoch": 1},
        {"event": "epoch", "task": 1, "epoch": 2},
        {"event": "resumed"},
    )
    (run,) = load([write(tmp_path, config=CONFIG, log_jsonl=log + '[1]\n{"event": "epoch", "ta')])
    assert (run.state, run.reason) == (STOPPED, "1 of 3 tasks learned, epoch 2 of the next")
    assert run.result is None
    assert run.name == "gpm on split-digits, seed 3"


def test_between_two_tasks_no_epoch_is_named(tmp_path):
    log = logged({"event": "epoch", "task": 0, "epoch": 5}, {"event": "evaluation", "task": 0, "accuracy": [1.0]})
    (run,) = load([write(tmp_path, config=CONFIG, log_jsonl=log)])
    assert run.reason == "1 of 3 tasks learned"
    (run,) = load([write(tmp_path, config="[experiment]", log_jsonl=log)])
    assert run.reason == "1 task learned"


def test_a_run_that_has_only_begun(tmp_path):
    (run,) = load([write(tmp_path, config='[experiment]\nmethod = "gpm"\nseed = 0\n')])
    assert (run.state, run.reason, run.name) == (STOPPED, "0 tasks learned", "seed 0")


def test_a_run_in_progress(tmp_path):
    """Reading the state does not take the lock, and does not keep others from taking it."""
    write(tmp_path, config=CONFIG)
    with RunDirectory(tmp_path):
        assert [run.state for run in load([tmp_path])] == [RUNNING]
    assert [run.state for run in load([tmp_path])] == [STOPPED]
    with RunDirectory(tmp_path):
        pass


def test_a_run_that_was_replaced_is_none(tmp_path):
    write(tmp_path, result(seed=1))
    write(tmp_path / "replaced", result(seed=0))
    assert [run.result.seed for run in load([tmp_path])] == [1]


def test_a_failure_says_why(tmp_path):
    error = json.dumps({"message": "the loss is nan\nsecond line", "traceback": "..."})
    (run,) = load([write(tmp_path, config=CONFIG, error_json=error)])
    assert (run.state, run.reason) == (FAILED, "the loss is nan (0 of 3 tasks learned)")


def test_a_run_that_failed_and_was_run_again_has_finished(tmp_path):
    (run,) = load([write(tmp_path, result(), CONFIG, error_json="{}")])
    assert run.state == FINISHED


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"benchmark": "spl',
        "[]",
        "3",
        '{"accuracy": 0.9, "model": "of another program"}',
        json.dumps(result().to_dict() | {"history": [[{"loss": 1}]]}),
        "\x00\x01",
    ],
)
def test_a_damaged_or_foreign_result_is_a_sentence_that_names_the_file(tmp_path, text):
    (run,) = load([write(tmp_path, result_json=text)])
    assert run.state == DAMAGED
    assert run.reason.startswith(f"{tmp_path / 'result.json'} is damaged, or not the result of a run (")


REGIME = {"regime": 3, "ratio": 0.5, "cosine": 0.1, "demoted_at": None}
CONDITIONS = {"ratio": 0.5, "cosine": 0.1, "eps2": 0.2, "step_size": 0.1, "agreement": None}
EPOCH = {"train_loss": 1.0, "lr": 0.1, "seconds": 1.0}


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("seed", "0", "seed must be a whole number from 0 to 9.22337e+18, not '0'"),
        ("seed", True, "seed must be"),
        ("seed", 2**63, "seed must be"),
        ("benchmark", None, "benchmark must be text"),
        ("benchmark", "x" * 10_001, "benchmark must be text of at most 10,000 characters"),
        ("tasks", [], "the length of tasks must be 1 to"),
        ("tasks", [1, 2, 3], "tasks[0] must be a table"),
        ("tasks", [{"name": 3}, {"name": "b"}, {"name": "c"}], "tasks[0].name must be text"),
        ("tasks", [{}, {}, {}], "tasks[0].name is missing"),
        ("accuracy", "90", "accuracy must be a list"),
        ("accuracy", [], "the length of accuracy must be 1 or 3, not 0"),
        ("accuracy", MATRIX[:2], "the length of accuracy must be 1 or 3, not 2"),
        ("accuracy", [5000.0, *MATRIX[1:]], "accuracy[0] must be a list"),
        ("accuracy", [[5000.0, None, None], *MATRIX[1:]], "accuracy[0][0] must be a number from 0 to 100, not 5000.0"),
        ("accuracy", [[math.nan, None, None], *MATRIX[1:]], "accuracy[0][0] must be"),
        ("accuracy", [[True, None, None], *MATRIX[1:]], "accuracy[0][0] must be"),
        (
            "accuracy",
            [[90.0, 0.0, None], *MATRIX[1:]],
            "accuracy[0][1] must be null, because this task is learned later",
        ),
        ("accuracy", [MATRIX[0], [91.0, None, None], MATRIX[2]], "accuracy[1][1] must be a number"),
        ("accuracy", [[90.0], *MATRIX[1:]], "the length of accuracy[0] must be 3, not 1"),
        ("accuracy", [["90", None, None], *MATRIX[1:]], "accuracy[0][0] must be a number"),
        ("accuracy_bare", 0, "accuracy_bare must be a list"),
        ("accuracy_bare", MATRIX[1:], "the length of accuracy_bare must be 3"),
        ("accuracy_inferred", MATRIX[1:], "the length of accuracy_inferred must be 3"),
        ("reshuffled", [[1.0, 2.0]], "the length of reshuffled[0] must be 3"),
        ("regimes", [{}, {"a": {"1": REGIME}}, {}], "regimes[1].a.1 is not a name that can be there"),
        ("regimes", [{}, {"a": {"0": {"regime": 3}}}, {}], "regimes[1].a.0.ratio is missing"),
        ("regimes", [{}, {"a": {"0": REGIME | {"regime": 4}}}, {}], "regimes[1].a.0.regime must be one of 1, 2, 3"),
        ("regimes", "all", "regimes must be a list"),
        ("regimes", [{}] * 4, "the length of regimes must be 0 or 3, not 4"),
        ("regimes", [{}, {}], "the length of regimes must be 0 or 3, not 2"),
        ("theory", [{}, {"a": {"old": {"0": CONDITIONS | {"cosine": "x"}}}}], "theory[1].a.old.0.cosine must be"),
        ("theory", [{}, {"a": {}}], "theory[1].a.old is missing"),
        ("predictions", [0.0], "the length of predictions must be"),
        ("history", [[{"loss": 1}]], "history[0][0].train_loss is missing"),
        ("history", [[EPOCH | {"loss": 1}]], "history[0][0].loss is not a name"),
        ("seconds", [], "the length of seconds must be"),
        ("seconds", [None], "seconds[0] must be a number of at least 0"),
        ("seconds", [-1.0], "seconds[0] must be a number of at least 0"),
        ("seconds", [1e308], "seconds[0] must be"),
        ("bytes", [], "the length of bytes must be"),
        ("bytes", [3], "bytes[0] must be a table"),
        ("bytes", [{"bases": None}], "bytes[0].bases must be a number of at least 0"),
        ("settings", [], "settings must be a table"),
        ("settings", {"eps2": 10**400}, "settings.eps2 must be a number"),
        ("settings", {"epochs": "many"}, "settings.epochs must be a whole number"),
        (
            "settings",
            {"a": reduce(lambda inner, _: [inner], range(30), 1)},
            "settings.a" + "[0]" * 21 + " must be at most 20 lists",
        ),
        ("training", {"epochs": "5", "lr": 0.1}, "training.epochs must be a whole number of at least 1"),
        ("training", {"epochs": 5, "lr": 0}, "training.lr must be a number above 0"),
        ("training", "short", "training must be a table"),
        ("pool", 3, "pool must be a list"),
        ("pool", [3], "pool[0] must be a table"),
        ("pool", [{"a": 3}], "pool[0].a must be a table"),
        ("pool", [{"a": {"size": 3}}], "pool[0].a.dimension is missing"),
        ("pool", [{"a": {"size": 3, "dimension": 0}}], "pool[0].a.dimension must be a number of at least 1"),
        ("machine", "fast", "machine must be a table"),
        ("notes", [3], "notes[0] must be text"),
        ("metric", {"unit": "kg"}, "metric.unit must be one of '%', ''"),
        ("metric", {"higher_is_better": 1}, "metric.higher_is_better must be one of True, False"),
    ],
)
def test_an_invalid_value_is_named_with_its_place_and_its_file(tmp_path, name, value, fault):
    (run,) = load([write(tmp_path, result_json=json.dumps(result().to_dict() | {name: value}))])
    assert run.state == DAMAGED
    assert run.reason.startswith(f"{tmp_path / 'result.json'} is damaged, or not the result of a run ({fault}")


@pytest.mark.parametrize(
    ("name", "place"), [("seed", "seed"), ("threshold", "settings.threshold"), ("name", "tasks[0].name")]
)
def test_a_name_that_occurs_twice_is_damage(tmp_path, name, place):
    text = json.dumps(result().to_dict()).replace(f'"{name}": ', f'"{name}": 3, "{name}": ', 1)
    (run,) = load([write(tmp_path, result_json=text)])
    assert run.state == DAMAGED
    assert f"({place} occurs more than once)" in run.reason


def test_other_metrics_than_accuracy_have_any_values(tmp_path):
    made = result(accuracy=[[-5e9, None, None], [1.0, 0.0, None], [1e9, 2.0, 3.0]], metric=Measure("loss", False, ""))
    (run,) = load([write(tmp_path, made)])
    assert run.result.to_dict() == made.to_dict()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, f'{{"seed": {"9" * 5000}}}'])
@pytest.mark.parametrize("name", ["result.json", "error.json", "config.toml"])
def test_nesting_without_end_is_damage(tmp_path, name, text):
    config = "a = " + text if name == "config.toml" else CONFIG
    (run,) = load([write(tmp_path, **{name: text}, config=config)])
    assert run.state in (DAMAGED, FAILED)
    assert str(tmp_path / name) in run.reason


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device", "large"])
@pytest.mark.parametrize("name", ["config.toml", "result.json", "error.json", "log.jsonl"])
def test_what_is_no_file_or_too_large_does_not_hang(tmp_path, monkeypatch, name, kind):
    """Opening a pipe for reading waits until another process opens it for writing."""
    write(tmp_path, config=CONFIG + "#" * 100)
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    elif kind == "folder":
        (tmp_path / name).mkdir()
    elif kind == "large":
        (tmp_path / name).write_text("#" * 3000)
        monkeypatch.setattr("cuber.runs.files.LARGEST_TEXT", 2500)
    else:
        (tmp_path / name).symlink_to("/dev/zero" if kind == "device" else name)
    write(tmp_path / "other", result())
    runs = load([tmp_path])
    assert runs[-1].state == FINISHED
    assert all(run.reason for run in runs[:-1])


@pytest.mark.parametrize("options", ['options = "x"', "options = [1]", 'seed = "0"', "method = 3", "threads = 0"])
def test_a_configuration_that_no_table_can_be_made_of_is_damaged(tmp_path, options):
    (run,) = load([write(tmp_path, result(), f"[experiment]\n{options}\n")])
    assert run.state == DAMAGED
    assert f"(experiment.{options.split()[0]} must be" in run.reason


@pytest.mark.parametrize("line", ['{"event": "epoch", "task": "x", "epoch": 1}', '{"event": "evaluation"}', "[1]", "3"])
def test_lines_of_a_log_that_are_not_ours_are_passed_over(tmp_path, line):
    log = logged({"event": "epoch", "task": 0, "epoch": 2})
    (run,) = load([write(tmp_path, config=CONFIG, log_jsonl=log + line + "\n")])
    assert run.reason == "0 of 3 tasks learned, epoch 2 of the next"


def test_all_tasks_at_once_are_tested_once(tmp_path):
    (run,) = load([write(tmp_path, result("multitask", accuracy=[[90.0, 80.0, 70.0]]))])
    assert run.state == FINISHED


@pytest.mark.parametrize(("name", "state"), [("config.toml", DAMAGED), ("error.json", FAILED)])
def test_other_damaged_files_are_named_too(tmp_path, name, state):
    (run,) = load([write(tmp_path, config=CONFIG, **{name: "= ["})])
    assert run.state == state
    assert str(tmp_path / name) in run.reason


def test_there_is_nothing_to_read(tmp_path):
    with pytest.raises(CuberError, match=r"directory .*nowhere does not exist$"):
        load([tmp_path / "nowhere"])
    with pytest.raises(CuberError, match=r"there is no run in .*: neither config.toml nor result.json"):
        load([tmp_path])
    (tmp_path / "file").touch()
    with pytest.raises(CuberError, match=r"file is a file: name the directory"):
        load([tmp_path / "file"])
