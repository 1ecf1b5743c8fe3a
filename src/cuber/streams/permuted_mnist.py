"""Permuted MNIST: the same digits again and again, their pixels in another order each time."""

from __future__ import annotations

import os

import torch

from cuber.datasets import load
from cuber.streams.images import ImageSplit, Transform
from cuber.streams.task import Stream, Task

HELD_OUT = 0.1


def permuted_mnist(seed: int = 0, *, tasks: int = 10, data_dir: str | os.PathLike[str] | None = None) -> Stream:
    """Ten tasks of ten digits with one head; every task is permuted, the first too, as in GPM's published code.

    One digit in ten of the training set, the same in all tasks, is held out for validation.
    """
    dataset = load("mnist", data_dir)
    generator = torch.Generator().manual_seed(seed)
    count, pixels = len(dataset.train_labels), dataset.train_images[0].size
    held_out, trained = torch.randperm(count, generator=generator).split(
        [round(HELD_OUT * count), count - round(HELD_OUT * count)]
    )
    labels, tested = (torch.from_numpy(y).long() for y in (dataset.train_labels, dataset.test_labels))
    stream = []
    for position in range(tasks):
        transform = Transform(dataset.mean, dataset.std, order=torch.randperm(pixels, generator=generator))
        train, validation = (
            ImageSplit(dataset.train_images, rows, labels[rows], transform) for rows in (trained, held_out)
        )
        test = ImageSplit(dataset.test_images, torch.arange(len(tested)), tested, transform)
        stream.append(Task(f"permutation {position}", train, test, validation, classes=len(dataset.classes)))
    return Stream("permuted-mnist", stream, shared_head=True, notes=dataset.notes)
