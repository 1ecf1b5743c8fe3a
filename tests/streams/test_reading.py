"""Reading in other processes changes nothing but who reads."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

import cuber
from cuber import CuberError, Stream, Task
from cuber.streams.loaders import FixedLoader, JointSplit, ShuffledLoader
from cuber.streams.reading import reading
from cuber.streams.splits import ImageSplit, Transform
from cuber.training import RunDirectory, Stopped
from tests.training import small
from tests.training.test_directory import StopAt


class Augmented(Dataset[Any]):
    """Adds random numbers of all three generators to its samples."""

    def __init__(self, seed: int, count: int = 40) -> None:
        self.x, self.y = small.blobs(seed, count)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(8) + float(np.random.randn()) + random.random()
        return self.x[index] + 0.1 * noise, int(self.y[index])


def stream() -> Stream:
    return Stream("augmented", [Task("0", Augmented(0), Augmented(1), classes=3)])


def learn(workers: int, directory: Any = None) -> tuple[list[list[float | None]], Tensor]:
    learner = cuber.FineTune(small.model_with_norm(1))
    options = {**small.FAST, "epochs": 2, "batch_size": 16}
    result = cuber.learn(learner, stream(), workers=workers, directory=directory, **options)
    return result.accuracy, torch.cat([parameter.detach().flatten() for parameter in learner.model.parameters()])


def test_results_are_the_same_bits_with_any_number_of_workers(tmp_path: Path) -> None:
    accuracy, weights = learn(0)
    with pytest.raises(Stopped):
        learn(0, RunDirectory(tmp_path, loggers=[StopAt(1)]))
    for found in (learn(2), learn(1, tmp_path)):  # from the beginning, and from a checkpoint
        assert found[0] == accuracy
        assert torch.equal(found[1], weights)


class Noise(Augmented):
    """Nothing but a random number; the label is the number of the sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(1), index


def test_epochs_differ_and_nothing_else_draws_other_numbers() -> None:
    split = Task("noise", Noise(0), Noise(0), classes=40).train
    loader = ShuffledLoader(split, 1, torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    first, second = ({int(y): float(x) for x, y in loader} for _ in range(2))
    assert len(set(first.values()) | set(second.values())) == 80
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("joint", [False, True])
def test_images_and_several_tasks_at_once_are_read_by_workers_too(joint: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 1, 8), np.uint8)
    split: Any = ImageSplit(
        images, torch.randperm(30), torch.arange(30), Transform((0.5,), (0.5,), order=torch.arange(8))
    )
    if joint:
        split = JointSplit([stream()[0].train, split])
    here = list(FixedLoader(split, 7, seed=1))
    with reading(2, pinned=False):
        there = list(FixedLoader(split, 7, seed=1))
    for one, other in zip(here, there, strict=True):
        assert all(map(torch.equal, one, other))


class Broken(Augmented):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] * float("nan"), 0


class Deadly(Augmented):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Raising(Augmented):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise RuntimeError("image 13 is broken")


def test_an_error_of_the_dataset_stays_that_error() -> None:
    split = Task("0", Raising(0), Augmented(1), classes=3).train
    with reading(1, pinned=False), pytest.raises(RuntimeError, match="image 13 is broken"):
        list(FixedLoader(split, 8))


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Broken, "^task '0', training split: some inputs are NaN or infinite$"),
        (Deadly, "^a process that reads data has died: DataLoader worker .*$"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_one_sentence(dataset: type[Augmented], sentence: str) -> None:
    split = Task("0", dataset(0), Augmented(1), classes=3).train
    with reading(1, pinned=False), pytest.raises(CuberError, match=sentence):
        list(FixedLoader(split, 8))


def test_the_message_of_a_worker_that_has_died_may_begin_with_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: Any, **__: Any) -> Iterator[Any]:
        raise RuntimeError("\nDataLoader worker (pid 7) exited unexpectedly\nmore")
        yield

    monkeypatch.setattr("cuber.streams.reading.DataLoader", dead)
    said = r"^a process that reads data has died: DataLoader worker \(pid 7\) exited unexpectedly$"
    with pytest.raises(CuberError, match=said):
        list(FixedLoader(Task("0", Augmented(0), Augmented(1), classes=3).train, 8))


@pytest.mark.parametrize(
    ("workers", "sentence"),
    [
        (2, "all samples of 'blobs' are in memory, so that workers=2 has nothing to read: leave it out"),
        (-1, "workers must be a whole number of at least 0, not -1"),
        (1.5, "workers must be a whole number of at least 0, not 1.5"),
    ],
)
def test_workers_without_work_are_refused(workers: Any, sentence: str) -> None:
    with pytest.raises(CuberError, match=f"^{sentence}$"):
        cuber.learn(cuber.FineTune(small.model()), small.stream(), **small.FAST, workers=workers)
