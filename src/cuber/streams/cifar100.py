"""CIFAR-100 in tasks of ten classes: apart from each other, or overlapping."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from cuber.datasets import load
from cuber.streams.classes import class_task
from cuber.streams.images import Transform
from cuber.streams.task import Stream

HELD_OUT = 0.05
CLASSES_PER_TASK = 10
OVERLAPPING = (0, 5, 10, 20, 25, 30, 40)
"""The first class of each task of OL-CIFAR100."""


def split_cifar100(seed: int = 0, *, data_dir: str | os.PathLike[str] | None = None) -> Stream:
    """Ten tasks, class c in task c // 10; the seed decides which 5 % are held out for validation."""
    return _stream("split-cifar100", range(0, 100, CLASSES_PER_TASK), seed, data_dir)


def overlap_cifar100(seed: int = 0, *, data_dir: str | os.PathLike[str] | None = None) -> Stream:
    """Seven tasks, some of which share five classes, with all their images, with the one before: OL-CIFAR100."""
    return _stream("overlap-cifar100", OVERLAPPING, seed, data_dir)


def _stream(name: str, starts: Sequence[int], seed: int, data_dir: str | os.PathLike[str] | None) -> Stream:
    dataset = load("cifar-100", data_dir)
    transform = Transform(dataset.mean, dataset.std)
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for start in starts:
        classes = range(start, start + CLASSES_PER_TASK)
        tasks.append(class_task(f"classes {start}-{classes[-1]}", dataset, classes, transform, HELD_OUT, generator))
    return Stream(name, tasks, notes=dataset.notes)
