"""Build tasks and streams from datasets."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from cuber.core.formatting import pluralize
from cuber.datasets import ImageDataset
from cuber.errors import CuberError
from cuber.streams.splits import ImageSplit, Transform
from cuber.streams.task import Stream, Task


def stream_by_classes(
    dataset: ImageDataset, classes_per_task: int, *, held_out: float = 0.0, seed: int = 0, shuffle: bool = False
) -> Stream:
    """Split the classes of a dataset into tasks, each with a head of its own; the last task may have fewer.

    Args:
        dataset: A dataset of ``cuber.datasets``, such as ``read_folder(...)`` returns.
        classes_per_task: Number of classes in each task.
        held_out: Fraction of the training images that is held out for validation.
        seed: Determines which images are held out, and with ``shuffle`` the order of the classes.
        shuffle: Whether the classes come in random order.

    Returns:
        The stream.

    >>> from cuber.datasets import read_items
    >>> rows = [{"image": torch.rand(1, 8, 8), "label": k % 4} for k in range(40)]
    >>> stream = stream_by_classes(read_items(rows, side=8, grey=True), 2)
    >>> [task.classes for task in stream]
    [2, 2]
    """
    if classes_per_task < 1:
        raise CuberError(f"a task needs at least 1 class, not {classes_per_task}")
    generator = torch.Generator().manual_seed(seed)
    count = len(dataset.classes)
    order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
    groups = [group.tolist() for group in order.split(classes_per_task)]
    names = [", ".join(dataset.classes[number] for number in group) for group in groups]
    stream = class_stream(dataset.name, dataset, zip(names, groups, strict=True))
    return stream.split(held_out, generator) if held_out else stream


def stream_by_domains(
    domains: Mapping[str, ImageDataset],
    *,
    held_out: float = 0.0,
    seed: int = 0,
    shared_head: bool = True,
    name: str = "domains",
) -> Stream:
    """Make a task of each dataset, in the given order.

    Args:
        domains: Name -> dataset; those that share a head must have the same classes.
        held_out: Fraction of the training images that is held out for validation.
        seed: Determines which images are held out.
        shared_head: Whether all tasks share one head.
        name: Name of the stream.

    Returns:
        The stream.

    Raises:
        CuberError: Datasets that are to share a head have different classes.

    >>> from cuber.datasets import read_items
    >>> rows = [{"image": torch.rand(1, 8, 8), "label": k % 4} for k in range(40)]
    >>> pens, scans = (read_items(half, side=8, grey=True) for half in (rows[:20], rows[20:]))
    >>> [task.name for task in stream_by_domains({"pens": pens, "scans": scans})]
    ['pens', 'scans']
    """
    tasks = []
    for title, dataset in domains.items():
        if shared_head:
            classes = next(iter(domains.values())).classes
            if odd := sorted(set(dataset.classes) ^ set(classes)):
                raise CuberError(
                    f"{title} has other classes than {next(iter(domains))}, first '{odd[0]}', so they cannot share a "
                    "head; pass shared_head=False"
                )
            if dataset.classes != classes:  # the same ones in another order
                if len(set(classes)) < len(classes) or len(classes) < len(dataset.classes):
                    raise CuberError(
                        f"{title}: two classes have the same name, so labels cannot be matched: rename one"
                    )
                dataset = dataset.renumbered(classes)
        tasks.append(make_task(title, dataset))
    stream = Stream(name, tasks, shared_head=shared_head)
    return stream.split(held_out, seed) if held_out else stream


def class_stream(name: str, dataset: ImageDataset, groups: Iterable[tuple[str, Sequence[int]]]) -> Stream:
    """Make a task of each group of classes, given as ``(name, classes)``."""
    return Stream(name, [make_task(title, dataset, classes) for title, classes in groups], notes=dataset.notes)


def overlapping_stream(
    name: str,
    dataset: ImageDataset,
    groups: Sequence[tuple[str, Sequence[int]]],
    generator: torch.Generator,
    *,
    train_per_class: int | None = None,
    validation_per_class: int = 0,
) -> Stream:
    """Make a task of each group of classes, with different training images of the classes that tasks share.

    ``train_per_class`` is by default as many as there are for every task: half of the images of a class if no class
    is in more than two tasks.
    """
    parts = max(Counter(number for _, classes in groups for number in classes).values())
    share = int(np.bincount(dataset.train_labels).min()) // parts
    train = share - validation_per_class if train_per_class is None else train_per_class
    if not 0 < train <= share - validation_per_class:
        raise CuberError(
            f"{name}: {train} training and {validation_per_class} validation images per class are wanted, but a task "
            f"has {share} of {dataset.name} to itself"
        )
    ranks = _ranks_in_classes(torch.from_numpy(dataset.train_labels), generator)
    used: Counter[int] = Counter()
    tasks = []
    for task, (_, classes) in zip(class_stream(name, dataset, groups), groups, strict=True):
        whole = task.train
        assert isinstance(whole, ImageSplit)
        start = share * torch.tensor([used[number] for number in classes])[whole.y]
        rank = ranks[whole.rows] - start
        chosen, held_out = (
            whole.subset(((low <= rank) & (rank < high)).nonzero().flatten())
            for low, high in ((0, train), (train, train + validation_per_class))
        )
        validation = held_out if validation_per_class else None
        tasks.append(Task(task.name, chosen, task.test, validation, classes=task.classes, notes=task.notes))
        used.update(classes)
    return Stream(name, tasks, notes=dataset.notes)


def _ranks_in_classes(labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Number the images of each class from 0 on, in random order."""
    ranks = torch.empty(len(labels), dtype=torch.long)
    for label in labels.unique():
        rows = (labels == label).nonzero().flatten()
        ranks[rows[torch.randperm(len(rows), generator=generator)]] = torch.arange(len(rows))
    return ranks


def make_task(
    name: str, dataset: ImageDataset, classes: Sequence[int] | None = None, transform: Transform | None = None
) -> Task:
    """Make a task of some classes of a dataset, labeled by their position in ``classes``, or of all with its notes.

    Training images that are also test images are left out, and a note says how many.
    """
    transform = transform or Transform(dataset.mean, dataset.std)
    notes = list(dataset.notes) if classes is None else []
    classes = range(len(dataset.classes)) if classes is None else classes
    train = _class_split(dataset.train_images, dataset.train_labels, classes, transform)
    test = _class_split(dataset.test_images, dataset.test_labels, classes, transform)
    known = set(_digests(test))
    if not len(train):
        raise CuberError(f"task '{name}': there are no training images of its classes")
    copies = torch.tensor([digest in known for digest in _digests(train)])
    if copies.all():
        raise CuberError(f"task '{name}': every training image is also a test image; give it others to test with")
    if copies.any():
        train = train.subset((~copies).nonzero().flatten())
        notes += [f"{pluralize(int(copies.sum()), 'training image')} left out, found among the test images too"]
    return Task(name, train, test, classes=len(classes), notes=notes)


def _class_split(images: np.ndarray, labels: np.ndarray, classes: Sequence[int], transform: Transform) -> ImageSplit:
    """Select the images of ``classes``, in a fixed random order.

    Some datasets are sorted by class, and the batch statistics of a single class would be useless.
    """
    rows = torch.from_numpy(np.flatnonzero(np.isin(labels, classes)))
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    position = torch.full((max(*classes, int(labels.max())) + 1,), -1)
    position[list(classes)] = torch.arange(len(classes))
    return ImageSplit(images, rows, position[torch.from_numpy(labels).long()[rows]], transform)


def _digests(split: ImageSplit) -> list[bytes]:
    return [hashlib.sha1(split.images[row].tobytes(), usedforsecurity=False).digest() for row in split.rows.tolist()]
