"""Tasks made of some classes of a dataset."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cuber.core.formatting import pluralize
from cuber.datasets import Dataset
from cuber.streams.copies import without_copies
from cuber.streams.images import ImageSplit, Transform
from cuber.streams.task import Task


def class_task(
    name: str,
    dataset: Dataset,
    classes: Sequence[int],
    transform: Transform,
    held_out: float,
    generator: torch.Generator,
) -> Task:
    """The images of ``classes``, labelled by their position there, a fraction of them held out for validation.

    TrainingConfig images that are test images too are left out, which the task notes.
    """
    train = class_part(dataset.train_images, dataset.train_labels, classes, transform)
    test = class_part(dataset.test_images, dataset.test_labels, classes, transform)
    train, copies = without_copies(train, test, f"task '{name}'")
    notes = [f"{pluralize(copies, 'training image')} left out, found among the test images too"] if copies else []
    task = Task(name, train, test, classes=len(classes), notes=notes)
    return task.split(held_out, generator) if held_out else task


def class_part(images: np.ndarray, labels: np.ndarray, classes: Sequence[int], transform: Transform) -> ImageSplit:
    """Every image of ``classes``, in an order that is always the same.

    Some sets lie on disk class after class; a batch of one class would have batch statistics that mean nothing.
    """
    rows = torch.from_numpy(np.flatnonzero(np.isin(labels, classes)))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    position = torch.full((max(*classes, int(labels.max())) + 1,), -1)
    position[list(classes)] = torch.arange(len(classes))
    return ImageSplit(images, rows, position[torch.from_numpy(labels).long()[rows]], transform)
