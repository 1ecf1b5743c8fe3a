"""Streams without boundaries: tasks are ended and begun where their inputs change."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import cuber
from cuber import Boundaries, CuberError, Result, Stream, Task
from cuber.cli.main import app
from cuber.core.learner import Method
from cuber.experiments import Experiment
from cuber.experiments.grid import grid
from cuber.runs.checkpoint import Checkpoints
from cuber.streams.unmarked import UnmarkedStream
from cuber.training import RunDirectory, Stopped
from cuber.training.detecting import DetectingTrainer
from tests.training import small

OPTIONS: dict[str, Any] = {"epochs": 1, "lr": 0.1, "batch_size": 8}


def tasks(count: int = 3, samples: int = 480) -> list[Task]:
    return [
        Task(f"blobs {n}", small.blobs(10 * n, samples), small.blobs(10 * n + 1, 60), classes=3) for n in range(count)
    ]


def returning() -> Stream:
    """A B A C B."""
    a, b, c = tasks()
    return Stream("blobs", [a, b, a, c, b], shared_head=True)


def method(kind: type[Method] = cuber.CUBER, **settings: Any) -> Method:
    return kind(small.model(shared_head=True), **settings)


def boundaries(learner: Method) -> Boundaries:
    return Boundaries(learner, warm_up=100)


def learn(learner: Method, stream: Stream, **more: Any) -> Result:
    return cuber.learn(learner, stream, boundaries=boundaries(learner), **(OPTIONS | more))


def test_a_stream_that_is_shorter_than_the_warm_up_is_told() -> None:
    learner = method()
    with pytest.warns(cuber.CuberWarning, match="fewer samples than the warm_up of 1000, so that no change could be"):
        cuber.learn(learner, returning().first(2), boundaries=Boundaries(learner, warm_up=1000), **OPTIONS)


def test_tasks_are_found_and_those_that_come_back_are_not_learned_anew() -> None:
    learner = method()
    result = learn(learner, returning())
    assert learner.tasks == 3
    assert learner.task is None
    found = result.boundaries
    assert found is not None
    assert found["answers"] == [0, 1, 0, 2, 1]
    assert [(each["kind"], each["task"]) for each in found["found"]] == [
        ("new", 1),
        ("known", 0),
        ("new", 2),
        ("known", 1),
    ]
    assert found["changes"] == [60, 120, 180, 240]
    assert found["false_alarms"] == 0
    assert found["batches"] == 300
    assert all(delay is not None and delay < 20 for delay in found["delays"])
    assert len(result.accuracy) == 5
    assert result.acc > 90
    assert result.accuracy[-1][0] == result.accuracy[-1][2]
    assert result.accuracy[-1][1] == result.accuracy[-1][4]
    assert len(result.history) == len(result.seconds) == len(result.bytes) == 3
    assert result.bytes[-1]["boundaries"] > 0


def test_no_step_is_made_on_batches_of_the_next_task_and_end_task_sees_none() -> None:
    stream = Stream("blobs", tasks(2), shared_head=True)
    origin = {tuple(x[0].tolist()): n for n, task in enumerate(stream) for x in task.train.x.split(1)}  # type: ignore[attr-defined]

    def of(batch: tuple[Tensor, Tensor]) -> set[int]:
        return {origin[tuple(x.tolist())] for x in batch[0]}

    seen: dict[str, list[set[int]]] = {"steps": [], "begin": [], "end": []}

    class Spy(cuber.GPM):
        def loss(self, batch: Any) -> Tensor:
            if torch.is_grad_enabled() and self.task is not None and self.model.training:
                seen["steps"].append(of(batch) | {10 + self.task})
            return super().loss(batch)

        def begin_task(self, loader: Any, *args: Any, **named: Any) -> None:
            seen["begin"].append(set().union(*map(of, loader)))
            super().begin_task(loader, *args, **named)

        def end_task(self, loader: Any) -> None:
            seen["end"].append(set().union(*map(of, loader)))
            super().end_task(loader)

    result = learn(method(Spy), stream)
    assert result.boundaries is not None
    assert result.boundaries["found"][0]["change"] == 60
    assert seen["steps"] == [{0, 10}] * 60 + [{1, 11}] * 60
    assert seen["begin"] == seen["end"] == [{0}, {1}]


def test_weights_are_those_of_known_boundaries_where_changes_are_located_exactly() -> None:
    """Fine-tuning, because the other methods also look at different samples when tasks begin and end."""
    stream, learners = Stream("blobs", tasks(2), shared_head=True), [method(cuber.FineTune), method(cuber.FineTune)]
    found = learn(learners[0], stream, epochs=2).boundaries
    cuber.learn(learners[1], stream, **(OPTIONS | {"epochs": 2}))
    assert found is not None
    assert [each["change"] for each in found["found"]] == found["changes"]
    detected, known = (learner.model.state_dict() for learner in learners)
    assert all(torch.equal(detected[name], known[name]) for name in known)


def test_a_stream_of_one_task_is_one_task() -> None:
    learner = method(cuber.FineTune)
    result = learn(learner, Stream("blobs", tasks(1, 960), shared_head=True))
    assert learner.tasks == 1
    assert result.boundaries is not None
    assert result.boundaries["found"] == [] == result.boundaries["changes"]
    assert result.boundaries["false_alarms"] == 0


@pytest.mark.parametrize("kind", [cuber.EWC, cuber.ER, cuber.HAT, cuber.SoftCUBER, cuber.OWM])
def test_every_method_can_do_without_boundaries(kind: type[Method]) -> None:
    learner = method(kind)
    result = learn(learner, Stream("blobs", tasks(2, 320), shared_head=True))
    assert learner.tasks == 2
    assert len(result.accuracy) == 2


def test_tasks_that_end_before_their_change_is_noticed() -> None:
    """A short task, and batches as large as a task: tests wait until batches that are held back have been used."""
    sizes = zip(tasks(3, 960), (960, 40, 960), strict=True)
    short = [Task(t.name, (t.train.x[:n], t.train.y[:n]), t.test, classes=3) for t, n in sizes]  # type: ignore[attr-defined]
    for stream, batch_size in ((short, 8), (tasks(3, 960), 1000)):
        result = learn(method(), Stream("blobs", stream, shared_head=True), batch_size=batch_size)
        assert len(result.accuracy) == 3


def test_tasks_with_a_head_each() -> None:
    learner = cuber.TRGP(small.model())
    result = learn(learner, Stream("blobs", tasks()))
    assert learner.tasks == 3
    assert result.acc > 80


# Resuming


def outcome(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    result = json.loads((directory / "result.json").read_text())
    del result["seconds"]
    for epoch in (epoch for epochs in result["history"] for epoch in epochs):
        del epoch["seconds"]
    return result, Checkpoints(directory / "checkpoint").load()["model"]


@pytest.mark.parametrize("at", [3, 59, 64, 70, 130, 299])
def test_a_stopped_run_is_resumed_to_the_bit(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (tmp_path.parent / "undisturbed" / "result.json").exists():
        learn(method(), returning(), directory=tmp_path.parent / "undisturbed")
    observe = Boundaries.observe

    def interrupted(self: Boundaries, batch: Any) -> Any:
        if self.batches == at and not (tmp_path / "run" / "checkpoint").exists():
            signal.raise_signal(signal.SIGINT)
        return observe(self, batch)

    monkeypatch.setattr(Boundaries, "observe", interrupted)
    with pytest.raises(Stopped, match=rf"before batch {at + 1} of the stream"):
        learn(method(), returning(), directory=tmp_path / "run")
    learn(method(), returning(), directory=tmp_path / "run")
    (result, weights), (expected, final) = outcome(tmp_path / "run"), outcome(tmp_path.parent / "undisturbed")
    assert result == expected
    assert all(torch.equal(weights[name], value) for name, value in final.items())
    assert Result.load(tmp_path / "run").boundaries == expected["boundaries"]


def test_a_run_that_is_stopped_in_a_test_is_resumed_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(method(), returning(), directory=tmp_path / "undisturbed")
    score, calls = DetectingTrainer._score, 0

    def interrupted(self: DetectingTrainer, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            signal.raise_signal(signal.SIGTERM)
        torch.rand(1)
        return score(self, *args, **named)

    monkeypatch.setattr(DetectingTrainer, "_score", interrupted)
    with pytest.raises(Stopped):
        learn(method(), returning(), directory=tmp_path / "run")
    learn(method(), returning(), directory=tmp_path / "run")
    assert outcome(tmp_path / "run")[0] == outcome(tmp_path / "undisturbed")[0]


def test_a_finished_run_is_read_and_one_with_told_boundaries_refused(tmp_path: Path) -> None:
    stream = Stream("blobs", tasks(1, 200), shared_head=True)
    learn(method(), stream, directory=tmp_path)
    assert learn(method(), stream, directory=tmp_path).boundaries is not None
    with pytest.raises(CuberError, match=r"holds a run with another configuration: .*training.boundaries was"):
        cuber.learn(method(), stream, directory=RunDirectory(tmp_path), **OPTIONS)


def test_a_run_whose_epochs_had_another_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream("blobs", tasks(1, 200), shared_head=True)
    monkeypatch.setattr("cuber.training.detecting.EPOCH_SAMPLES", 800)
    learn(method(), stream, directory=tmp_path)
    monkeypatch.undo()
    with pytest.raises(CuberError, match=r"another configuration: training.epoch_samples was 800 and is now 1000;"):
        learn(method(), stream, directory=tmp_path)


def test_checkpoints_are_written_after_epochs_and_not_after_each_batch_between_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cuber.training.detecting.EPOCH_SAMPLES", 160)
    saved = []
    monkeypatch.setattr(RunDirectory, "save", lambda self, state: saved.append(state["trainer"]["accepted"]))
    result = learn(method(), returning(), directory=RunDirectory(tmp_path, checkpoint_every=1))
    assert 3 < len(saved) <= sum(map(len, result.history)) + 1  # and at the end


def test_rows_of_accuracies_are_numbered_by_the_tasks_of_the_stream(tmp_path: Path) -> None:
    learner = method(cuber.FineTune)
    found = Boundaries(learner, warm_up=600, delay=2)
    cuber.learn(learner, Stream("blobs", tasks(), shared_head=True), boundaries=found, directory=tmp_path, **OPTIONS)
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [event["task"] for event in events if event["event"] == "evaluation"] == [0, 1, 2]


# The stream


def test_the_batches_are_the_same_from_any_number_on() -> None:
    stream = UnmarkedStream(Stream("blobs", tasks(2, 30), shared_head=True), 8, 2, seed=3)
    whole = list(stream.batches())
    assert len(whole) == len(stream) == 16
    assert stream.ends == [8, 16]
    assert stream.changes == [8]
    for first in (0, 3, 4, 8, 11, 15, 16):
        rest = list(stream.batches(first))
        assert len(rest) == 16 - first
        assert all(
            torch.equal(x, y) for a, b in zip(rest, whole[first:], strict=True) for x, y in zip(a, b, strict=True)
        )
    assert [stream.position(batch) for batch in (0, 7, 8, 15)] == [0, 0, 1, 1]


# The command line


def test_the_command_line_says_what_was_noticed(tmp_path: Path) -> None:
    command = ["run", "permuted-digits", "--tasks", "2", "--epochs", "1", "--boundaries", "detect", "--out"]
    ran = CliRunner().invoke(app, [*command, str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    assert "boundaries: 1 of 1 changes noticed" in ran.output
    assert "0 false alarms, 0 drifts" in ran.output
    assert "0 as 0, 1 as 1" in ran.output
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'boundaries = "detect"' in config
    assert "false_alarms = 0.001" in config


def test_a_grid_keeps_runs_with_detected_boundaries_apart() -> None:
    cells = grid("runs", ["permuted-digits"], ["gpm"], [0], boundaries="detect")
    assert [str(cell.directory) for cell in cells] == ["runs/permuted-digits/gpm-boundaries=detect/seed-0"]
    assert cells[0].experiment.about()["boundaries"] == "detect"
    assert "boundaries" not in Experiment("permuted-digits").about()


# Bad use


def refused(message: str, learner: Method | None = None, **options: Any) -> None:
    with pytest.raises(CuberError, match=message):
        cuber.learn(learner or method(), Stream("blobs", tasks(1), shared_head=True), **(OPTIONS | options))


def test_what_cannot_be_detected_is_one_sentence() -> None:
    refused(r"boundaries must be 'detect', a cuber.Boundaries or None, not 'find'", boundaries="find")
    refused(r"early stopping needs the validation data of a task", boundaries="detect", patience=2)
    refused(r"these boundaries belong to another learner", boundaries=Boundaries(method()))
    refused(r"Multitask learns all tasks at once", method(cuber.Multitask), boundaries="detect")
    learner = method()
    used = Boundaries(learner)
    used.observe(torch.randn(4, 8))
    refused(r"these boundaries have observed batches already", learner, boundaries=used)
    with pytest.raises(CuberError, match=r"choice of boundaries"):
        Experiment("permuted-digits", boundaries="guess")


def test_more_tasks_than_heads_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = [task.train for task in tasks(2)]
    both = tuple(torch.cat(parts) for parts in zip(*((split.x, split.y) for split in halves), strict=True))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.arange(count))  # samples that are not shuffled
    with pytest.raises(CuberError, match=r"2 tasks were found up to batch 60, but the model has 1 heads"):
        learn(cuber.GPM(small.model(tasks=1)), Stream("blobs", [Task("both", both, both, classes=3)]))


def test_a_result_whose_boundaries_are_damaged_is_refused(tmp_path: Path) -> None:
    learn(method(), Stream("blobs", tasks(1, 200), shared_head=True), directory=tmp_path)
    path = tmp_path / "result.json"
    values = json.loads(path.read_text())
    del values["boundaries"]["found"]
    path.write_text(json.dumps(values))
    with pytest.raises(CuberError, match=r"boundaries.found is missing"):
        Result.load(tmp_path)
