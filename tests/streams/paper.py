"""Checks of the paper's streams, for official and for small files."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from cuber import Stream, Task
from cuber.streams import ImageSplit

OVERLAP = [(0, 9), (5, 14), (10, 19), (20, 29), (25, 34), (30, 39), (40, 49)]
FIVE = ["cifar-10", "mnist", "svhn", "fashion-mnist", "notmnist"]


def splits(task: Task) -> list[ImageSplit]:
    found = [task.train, task.validation, task.test]
    assert all(isinstance(split, ImageSplit) for split in found)
    return found  # type: ignore[return-value]


def classes_of(split: ImageSplit, labels: np.ndarray) -> list[int]:
    """Return the class of each label of a split; fail unless it is unique."""
    truth, own = labels[split.rows.numpy()], split.y.numpy()
    found = [set(truth[own == label].tolist()) for label in range(own.max() + 1)]
    assert all(len(classes) == 1 for classes in found)
    return [classes.pop() for classes in found]


def check_rows(stream: Stream) -> None:
    """Training and validation share no image, and no image occurs twice."""
    for task in stream:
        train, validation, test = splits(task)
        rows = np.concatenate([train.rows, validation.rows])
        assert len(set(rows.tolist())) == len(rows)
        assert len(set(test.rows.tolist())) == len(test)
        assert np.shares_memory(train.images, validation.images)


def check_no_leak(stream: Stream) -> None:
    """No image is in both train and test of a task, not even as a copy."""
    for task in stream:
        train, validation, test = splits(task)
        seen = {train.images[row].tobytes() for row in np.concatenate([train.rows, validation.rows])}
        assert not [row for row in test.rows.tolist() if test.images[row].tobytes() in seen], task.name


def check_mixed(stream: Stream) -> None:
    """A batch of test images has many classes, as batch statistics need it."""
    for task in stream:
        assert len(task.test.y[:40].unique()) > task.classes // 2


def check_different(tasks: list[Task]) -> None:
    for one, other in combinations(tasks, 2):
        assert not np.array_equal(one.train.images[:20], other.train.images[:20])  # type: ignore[union-attr]
