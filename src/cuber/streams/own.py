"""Streams of your own images: a few classes per task, a set per task, or two lists of files per task."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from cuber.datasets import Dataset, read_lists
from cuber.datasets.own import Location
from cuber.errors import CuberError
from cuber.streams.classes import class_task
from cuber.streams.images import Transform
from cuber.streams.task import Stream


def stream_by_classes(
    dataset: Dataset, classes_per_task: int, *, held_out: float = 0.0, seed: int = 0, shuffle: bool = False
) -> Stream:
    """Tasks of so many classes, each with a head of its own; fewer in the last where they do not come out even.

    ``held_out`` is the fraction of the training images to validate with; ``shuffle`` lets the seed order the classes.
    """
    if classes_per_task < 1:
        raise CuberError(f"a task needs at least 1 class, not {classes_per_task}")
    generator = torch.Generator().manual_seed(seed)
    count = len(dataset.classes)
    order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
    transform = Transform(dataset.mean, dataset.std)
    tasks = []
    for group in order.split(classes_per_task):
        classes = group.tolist()
        name = ", ".join(dataset.classes[number] for number in classes)
        tasks.append(class_task(name, dataset, classes, transform, held_out, generator))
    return Stream(dataset.name, tasks, notes=dataset.notes)


def stream_by_domains(
    domains: Mapping[str, Dataset],
    *,
    held_out: float = 0.0,
    seed: int = 0,
    shared_head: bool = True,
    name: str = "domains",
) -> Stream:
    """A set for each task, in the order given; they share a head, and so must have the same classes, unless told."""
    generator = torch.Generator().manual_seed(seed)
    tasks, first = [], next(iter(domains.values()), None)
    for title, dataset in domains.items():
        if shared_head and first is not None and dataset.classes != first.classes:
            odd = sorted(set(dataset.classes) ^ set(first.classes))
            raise CuberError(
                f"{title} has other classes than {next(iter(domains))}, first '{odd[0]}', so they cannot share a head; "
                "say shared_head=False"
            )
        transform = Transform(dataset.mean, dataset.std)
        classes = range(len(dataset.classes))
        task = class_task(title, dataset, classes, transform, held_out, generator)
        task.notes = (*dataset.notes, *task.notes)
        tasks.append(task)
    return Stream(name, tasks, shared_head=shared_head)


def stream_by_files(
    lists: Mapping[str, tuple[Location, Location]],
    *,
    side: int,
    grey: bool = False,
    folder: Location | None = None,
    held_out: float = 0.0,
    seed: int = 0,
    shared_head: bool = False,
    name: str = "files",
) -> Stream:
    """Two csv files for each task, for training and testing: ``{"first": ("first-train.csv", "first-test.csv")}``."""
    domains = {
        title: read_lists(train, test, side=side, grey=grey, folder=folder) for title, (train, test) in lists.items()
    }
    return stream_by_domains(domains, held_out=held_out, seed=seed, shared_head=shared_head, name=name)
