"""Reading run directories: finished, stopped, failed, damaged, foreign."""

from __future__ import annotations

import json

import pytest

from cuber import CuberError
from cuber.experiments.results import DAMAGED, FAILED, FINISHED, RUNNING, STOPPED, load
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
    regimes = [{"first": {}}, {"first": {0: {"regime": 3, "ratio": 0.5, "cosine": 0.1, "demoted_at": None}}}]
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "0"),
        ("benchmark", None),
        ("tasks", []),
        ("tasks", [1, 2, 3]),
        ("accuracy", []),
        ("accuracy", MATRIX[:2]),
        ("accuracy", [[90.0, None, None], [91.0, None, None], [92.0, 78.0, 70.0]]),
        ("accuracy", [[90.0], [91.0, 80.0], [92.0, 78.0, 70.0]]),
        ("accuracy", [["90", None, None], *MATRIX[1:]]),
        ("accuracy_bare", 0),
        ("accuracy_bare", MATRIX[1:]),
        ("reshuffled", [[1.0, 2.0]]),
        ("regimes", [{}, {"a": {"1": {"regime": 3, "demoted_at": None}}}]),
        ("regimes", [{}, {"a": {"0": {"regime": 3}}}]),
        ("seconds", []),
        ("seconds", [None]),
        ("bytes", []),
        ("bytes", [3]),
        ("bytes", [{"bases": None}]),
        ("settings", []),
        ("tasks", [{"name": 3}, {"name": "b"}, {"name": "c"}]),
        ("tasks", [{}, {}, {}]),
        ("pool", 3),
        ("pool", [3]),
        ("pool", [{"a": 3}]),
        ("pool", [{"a": {"size": 3}}]),
        ("pool", [{"a": {"size": 3, "dimension": 0}}]),
        ("notes", [3]),
    ],
)
def test_what_no_table_can_be_made_of_is_not_a_result(tmp_path, name, value):
    (run,) = load([write(tmp_path, result_json=json.dumps(result().to_dict() | {name: value}))])
    assert run.state == DAMAGED
    assert f"(its '{name}' is invalid)" in run.reason


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
