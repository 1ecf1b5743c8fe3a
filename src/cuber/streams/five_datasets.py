"""5-Datasets: five sets of ten classes that have little in common."""

from __future__ import annotations

import os

import torch

from cuber.datasets import Dataset, load
from cuber.errors import unknown
from cuber.streams.classes import class_task
from cuber.streams.images import Transform
from cuber.streams.task import Stream, Task

HELD_OUT = 0.05
SIDE = 32
ORDERS = {
    "code": ("cifar-10", "mnist", "svhn", "fashion-mnist", "notmnist"),
    "paper": ("cifar-10", "mnist", "svhn", "notmnist", "fashion-mnist"),
}
"""The order of the published code, and that of the paper's text."""


def five_datasets(
    seed: int = 0,
    *,
    order: str = "code",
    mnist_twice: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
) -> Stream:
    """CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, all as 32x32 images of three channels.

    ``mnist_twice`` puts MNIST in the place of Fashion-MNIST: what the published code does with later versions of
    torchvision, where its own FashionMNIST downloads MNIST.
    """
    if order not in ORDERS:
        raise unknown("order of 5-Datasets", order, ORDERS)
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for name in ORDERS[order]:
        again = mnist_twice and name == "fashion-mnist"
        dataset = load("mnist" if again else name, data_dir)
        tasks.append(_task("mnist again" if again else name, dataset, generator))
    return Stream("five-datasets", tasks, notes=["MNIST in the place of Fashion-MNIST"] if mnist_twice else [])


def _task(name: str, dataset: Dataset, generator: torch.Generator) -> Task:
    padding = (SIDE - dataset.train_images.shape[1]) // 2
    grey = dataset.train_images.ndim == 3
    mean, std = dataset.padded_normalization(padding)
    transform = Transform(mean, std, padding, channels=3 if grey else None)
    task = class_task(name, dataset, range(len(dataset.classes)), transform, HELD_OUT, generator)
    task.notes = (*dataset.notes, *task.notes)
    return task
