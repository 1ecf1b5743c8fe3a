"""Streams of scikit-learn's handwritten digits, 1797 images of 8 x 8 pixels that need no download."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from cuber.errors import CuberError, needs_extra
from cuber.streams.splits import Data
from cuber.streams.task import Stream, Task


def overlap_digits(
    seed: int = 0, *, train_per_class: int = 15, validation_per_class: int = 15, test_per_class: int = 80
) -> Stream:
    """Return five tasks of four digits each, two of them shared with the task before: 0-3, 2-5, 4-7, 6-9, 8-1.

    Tasks have different training samples of a shared digit, and few of each, so later tasks can improve earlier ones.

    Args:
        seed: Determines which images are in which task and split.
        train_per_class: Training images of each digit in each task.
        validation_per_class: The same for validation; 0: no validation data.
        test_per_class: The same for testing. Tasks that share a digit share its test images.

    >>> overlap_digits(train_per_class=20)[1]
    Task('digits 2-5': 80 training, 60 validation, 320 test samples, 4 classes)
    """
    sampler = DigitSampler(seed)
    images, labels = sampler.take(list(range(10)), test_per_class)
    tasks = []
    for start in range(0, 10, 2):
        digits = [(start + step) % 10 for step in range(4)]
        train = sampler.take(digits, train_per_class)
        validation = sampler.take(digits, validation_per_class) if validation_per_class else None
        test = torch.cat([images[labels == digit] for digit in digits])
        tasks.append(_task(digits, train, (test, torch.arange(4).repeat_interleave(test_per_class)), validation))
    return Stream("overlap-digits", tasks)


def split_digits(seed: int = 0, *, validation_per_class: int = 15, test_per_class: int = 60) -> Stream:
    """Return five tasks of two digits each: 0-1, 2-3, 4-5, 6-7, 8-9.

    Args:
        seed: Determines which images are in which split.
        validation_per_class: Validation images of each digit; 0: no validation data.
        test_per_class: Test images of each digit; all others are for training.

    >>> split_digits()[0]
    Task('digits 0-1': 210 training, 30 validation, 120 test samples, 2 classes)
    """
    sampler = DigitSampler(seed)
    tasks = []
    for start in range(0, 10, 2):
        digits = [start, start + 1]
        test = sampler.take(digits, test_per_class)
        validation = sampler.take(digits, validation_per_class) if validation_per_class else None
        tasks.append(_task(digits, sampler.take(digits), test, validation))
    return Stream("split-digits", tasks)


def permuted_digits(seed: int = 0, *, tasks: int = 10, validation: int = 100, test: int = 597) -> Stream:
    """Return tasks of the same ten digits, whose pixels are permuted differently in each task but the first.

    Args:
        seed: Determines the permutations and the splits.
        tasks: Number of tasks.
        validation: Number of validation images, the same ones in each task; 0: no validation data.
        test: Number of test images, the same ones in each task; all others are for training.

    Raises:
        CuberError: The images do not suffice.

    >>> permuted_digits(tasks=3)[2]
    Task('permutation 2': 1100 training, 100 validation, 597 test samples, 10 classes)
    """
    x, y = load_digits()
    if validation < 0 or test < 1 or validation + test >= len(y):
        raise CuberError(f"there are {len(y)} digits: {validation} for validation and {test} for testing leave none")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    rows = order.split([validation, test, len(y) - validation - test])
    stream = []
    for position in range(tasks):
        pixels = torch.randperm(x.shape[1], generator=generator) if position else torch.arange(x.shape[1])
        held_out, tested, trained = ((x[some][:, pixels], y[some]) for some in rows)
        name = f"permutation {position}"
        stream.append(Task(name, trained, tested, held_out if validation else None, classes=10))
    return Stream("permuted-digits", stream, shared_head=True)


@cache
def load_digits() -> tuple[Tensor, Tensor]:
    """Return all images, as rows of 64 numbers in [0, 1], and their labels."""
    with needs_extra("data", "the digits of scikit-learn"):
        from sklearn import datasets  # imported here because it takes a second

    images, labels = datasets.load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class DigitSampler:
    """Draw images of each digit without replacement, in an order determined by the seed."""

    def __init__(self, seed: int) -> None:
        self.x, y = load_digits()
        generator = torch.Generator().manual_seed(seed)
        rows = [(y == digit).nonzero().flatten() for digit in range(10)]
        self.rows = [some[torch.randperm(len(some), generator=generator)] for some in rows]

    def take(self, digits: list[int], count: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the next ``count`` images of each digit, or all that are left, labeled by the digit's position."""
        images, labels = [], []
        for label, digit in enumerate(digits):
            rows = self.rows[digit]
            wanted = len(rows) if count is None else count
            if not 0 < wanted <= len(rows):
                raise CuberError(f"{wanted} more images of digit {digit} are wanted, but {len(rows)} are left")
            images.append(self.x[rows[:wanted]])
            labels.append(torch.full((wanted,), label))
            self.rows[digit] = rows[wanted:]
        return torch.cat(images), torch.cat(labels)


def _task(digits: list[int], train: Data, test: Data, validation: Data | None) -> Task:
    return Task(f"digits {digits[0]}-{digits[-1]}", train, test, validation, classes=len(digits))
