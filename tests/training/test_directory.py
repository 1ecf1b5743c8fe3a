"""Run directories: what is in them, who may use them, and what a run that goes on finds there."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import cuber
from cuber.errors import CuberError, CuberWarning
from cuber.loggers import Logger
from cuber.runs.checkpoint import Checkpoints
from cuber.training import RunDirectory, Stopped
from tests.training import small

FILES = {"config.toml", "log.jsonl", "metrics.csv", "checkpoint", "result.json", ".lock"}


class StopAt(Logger):
    """Asks the run to stop after so many epochs, as Ctrl-C does."""

    def __init__(self, epochs: int) -> None:
        self.left = epochs

    def epoch(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def learn(directory: Any, *, model: Any = None, **changes: Any) -> cuber.Result:
    learner = cuber.CUBER(model or small.model_with_norm(), eps1=0.1)
    return cuber.learn(learner, small.stream(), **{**small.FAST, "patience": 2, **changes}, directory=directory)


def figures(result: cuber.Result) -> dict[str, Any]:
    """All that clocks have no part in."""
    values = result.to_dict()
    del values["seconds"]
    for epoch in (epoch for epochs in values["history"] for epoch in epochs):
        del epoch["seconds"]
    return values


def test_it_holds_what_was_run_and_what_came_out(tmp_path: Path) -> None:
    result = learn(tmp_path / "run", seed=3)
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    config = (tmp_path / "run" / "config.toml").read_text()
    for line in (
        'method = "cuber"',
        "seed = 3",
        "lr = 0.1",
        "patience = 2",
        "keep = 0.1",
        f'torch = "{torch.__version__}"',
    ):
        assert line in config.splitlines()
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    epochs = sum(map(len, result.history))
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1], kinds.count("epoch"), kinds.count("evaluation")) == ("started", "finished", epochs, 3)
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [float(row["train_loss"]) for row in rows] == [e.train_loss for task in result.history for e in task]
    assert cuber.Result.load(tmp_path / "run").to_dict() == result.to_dict()


@pytest.mark.parametrize("epochs", [1, 4, 7, 13])
def test_stopped_and_gone_on_with_it_is_as_if_nothing_had_happened(tmp_path: Path, epochs: int) -> None:
    whole = learn(tmp_path / "whole", model=(undisturbed := small.model_with_norm()))
    with pytest.raises(Stopped, match="the same command or call resumes it"):
        learn(RunDirectory(tmp_path / "run", loggers=[StopAt(epochs)]))
    result = learn(tmp_path / "run", model=(resumed := small.model_with_norm()))
    assert figures(result) == figures(whole)
    for name, tensor in undisturbed.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert events.count("epoch") == sum(map(len, whole.history))
    assert events.count("resumed") == 1


class Remember(Logger):
    """Its position is a word of its own."""

    def __init__(self, word: str) -> None:
        self.word, self.found = word, None

    def start(self, config: dict[str, Any], position: Any | None) -> None:
        self.found = position

    def position(self) -> str:
        return self.word


class Other(Remember):
    """Another class of logger."""


def test_each_logger_finds_its_own_position_when_a_run_goes_on_with_others(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        learn(RunDirectory(tmp_path / "run", loggers=[StopAt(4), Remember("a"), Remember("b"), Other("c")]))
    now = [Other(""), Remember(""), Remember(""), Remember("")]
    learn(RunDirectory(tmp_path / "run", loggers=now))
    assert [logger.found for logger in now] == ["c", "a", "b", None]


class Noisy(torch.utils.data.Dataset[Any]):
    """Another sample each time that it is asked for one."""

    def __init__(self, seed: int) -> None:
        self.x, self.y = small.blobs(seed, 40)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index] + 0.5 * torch.randn(8), int(self.y[index])


def test_samples_that_are_drawn_anew_are_drawn_again_when_a_run_goes_on(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Look(StopAt):
        learner: cuber.CUBER

        def epoch(self, *arguments: Any) -> None:
            seen.append(torch.cat([x for x, _ in Look.learner.sample]))
            super().epoch(*arguments)

    def watched(directory: Path, epochs: int) -> None:
        tasks = [cuber.Task(f"blobs {n}", Noisy(10 * n), small.blobs(10 * n + 1, 30), classes=3) for n in range(2)]
        Look.learner = cuber.CUBER(small.model(2), eps1=0.1)
        held = RunDirectory(directory, loggers=[Look(epochs)])
        cuber.learn(Look.learner, cuber.Stream("noisy", tasks), **small.FAST, directory=held)

    with pytest.raises(Stopped):
        watched(tmp_path, 8)
    before = seen[-1]
    watched(tmp_path, 100)
    assert torch.equal(seen[8], before)


def test_a_finished_run_gives_its_model_and_learner_back(tmp_path: Path) -> None:
    learn(tmp_path, model=(first := small.model_with_norm()))
    learner = cuber.CUBER(again := small.model_with_norm(), eps1=0.1)
    cuber.learn(learner, small.stream(), **small.FAST, patience=2, directory=tmp_path)
    assert learner.tasks == 3
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_signals_are_given_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped):
        learn(RunDirectory(tmp_path, loggers=[StopAt(2)]))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_process_is_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path), pytest.raises(CuberError, match="another process is using"):
        learn(tmp_path)
    learn(tmp_path)


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    learn(tmp_path)
    with pytest.raises(CuberError, match=r"training.lr was 0.1 and is now 0.2; training.batch_size was 4 and is now 8"):
        learn(tmp_path, lr=0.2, batch_size=8)
    assert learn(RunDirectory(tmp_path, fresh=True), lr=0.2).training["lr"] == 0.2


def test_another_version_is_worth_a_word(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        learn(RunDirectory(tmp_path, loggers=[StopAt(2)]))
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace(f'torch = "{torch.__version__}"', 'torch = "1.0"'))
    with pytest.warns(CuberWarning, match=r"another machine or version \(machine.torch was '1.0'"):
        learn(tmp_path)


def test_a_mistake_leaves_no_directory(tmp_path: Path) -> None:
    learner = cuber.CUBER(small.model(), threshold=[0.9])
    with pytest.raises(CuberError, match="threshold has 1 values"):
        cuber.learn(learner, small.stream(), **small.FAST, directory=tmp_path / "new" / "run")
    assert os.listdir(tmp_path) == []


class FailAt(Logger):
    def evaluation(self, task: int, accuracy: list[float | None]) -> None:
        if task == 1:
            raise RuntimeError("the cable was pulled")


def test_a_failure_says_why_and_the_run_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the cable was pulled"):
        learn(RunDirectory(tmp_path, loggers=[FailAt()]))
    word = json.loads((tmp_path / "error.json").read_text())
    assert word["message"] == "the cable was pulled"
    assert "RuntimeError" in word["traceback"]
    assert figures(learn(tmp_path)) == figures(learn(tmp_path / "whole"))
    assert not (tmp_path / "error.json").exists()


@pytest.mark.parametrize("epochs", [1, 2])
def test_how_often_a_checkpoint_is_written(tmp_path: Path, epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(Checkpoints, "save", lambda self, state: saved.append(state))
    learn(RunDirectory(tmp_path, checkpoint_every=epochs), patience=None)
    assert len(saved) == 3 * (small.FAST["epochs"] // epochs + 1)


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Checkpoints, state: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.warns(CuberWarning, match=r"cannot write a checkpoint to .* \(No space left on device\)"):
        assert learn(tmp_path).accuracy


def test_a_checkpoint_is_no_larger_than_what_it_must_hold(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Weigh(Logger):
        def evaluation(self, task: int, accuracy: list[float | None]) -> None:
            sizes.extend(path.stat().st_size for path in (tmp_path / "checkpoint").glob("*"))

    model = small.model_with_norm()
    learner = cuber.CUBER(model, eps1=0.1)
    cuber.learn(learner, small.stream(), **small.FAST, directory=RunDirectory(tmp_path, loggers=[Weigh()]))
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert max(sizes) < 2 * weights + sum(learner.memory_bytes().values()) + 2**20


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "often"])
def test_what_is_no_number_of_epochs(tmp_path: Path, every: Any) -> None:
    with pytest.raises(CuberError, match="checkpoint_every must be a whole number of epochs"):
        RunDirectory(tmp_path, checkpoint_every=every)
