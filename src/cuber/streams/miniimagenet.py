"""Split miniImageNet: a hundred classes of photographs in tasks of five."""

from __future__ import annotations

import os

import torch

from cuber.datasets import load
from cuber.streams.classes import class_task
from cuber.streams.images import Transform
from cuber.streams.task import Stream

HELD_OUT = 0.02
CLASSES_PER_TASK = 5


def split_miniimagenet(seed: int = 0, *, data_dir: str | os.PathLike[str] | None = None) -> Stream:
    """Twenty tasks of five classes; the seed shuffles the classes and decides which 2 % are held out."""
    dataset = load("miniimagenet", data_dir)
    transform = Transform(dataset.mean, dataset.std)
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(dataset.classes), generator=generator)
    tasks = []
    for group in shuffled.split(CLASSES_PER_TASK):
        classes = group.tolist()
        name = "classes " + ",".join(map(str, classes))
        tasks.append(class_task(name, dataset, classes, transform, HELD_OUT, generator))
    return Stream("split-miniimagenet", tasks, notes=dataset.notes)
