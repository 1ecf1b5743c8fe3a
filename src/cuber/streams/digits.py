"""Streams of scikit-learn's handwritten digits, 1797 images of 8 x 8 pixels that need no download."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.streams.task import Stream, Task


def overlap_digits(
    seed: int = 0, *, train_per_class: int = 15, validation_per_class: int = 15, test_per_class: int = 80
) -> Stream:
    """Return five tasks of four digits each, two of them shared with the task before: 0-3, 2-5, 4-7, 6-9, 8-1.

    Tasks have different training samples of a shared digit, and few of each, so later tasks can improve earlier ones.
    """
    sampler = DigitSampler(seed)
    test = {digit: sampler.take(digit, test_per_class) for digit in range(10)}
    tasks = []
    for start in range(0, 10, 2):
        digits = [(start + step) % 10 for step in range(4)]
        train = [sampler.take(digit, train_per_class) for digit in digits]
        validation = [sampler.take(digit, validation_per_class) for digit in digits if validation_per_class]
        tasks.append(_task(digits, train, [test[digit] for digit in digits], validation))
    return Stream("overlap-digits", tasks)


def split_digits(seed: int = 0, *, validation_per_class: int = 15, test_per_class: int = 60) -> Stream:
    """Return five tasks of two digits each: 0-1, 2-3, 4-5, 6-7, 8-9."""
    sampler = DigitSampler(seed)
    tasks = []
    for start in range(0, 10, 2):
        digits = [start, start + 1]
        test = [sampler.take(digit, test_per_class) for digit in digits]
        validation = [sampler.take(digit, validation_per_class) for digit in digits if validation_per_class]
        train = [sampler.take(digit, sampler.remaining(digit)) for digit in digits]
        tasks.append(_task(digits, train, test, validation))
    return Stream("split-digits", tasks)


def permuted_digits(seed: int = 0, *, tasks: int = 10, validation: int = 100, test: int = 597) -> Stream:
    """Return tasks of the same ten digits, whose pixels are permuted differently in each task but the first."""
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
    from sklearn import datasets  # imported here because it takes a second

    images, labels = datasets.load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class DigitSampler:
    """Draw images of each digit without replacement, in an order determined by the seed."""

    def __init__(self, seed: int) -> None:
        self.x, y = load_digits()
        generator = torch.Generator().manual_seed(seed)
        rows = [(y == digit).nonzero().flatten() for digit in range(10)]
        self._rows = [some[torch.randperm(len(some), generator=generator)] for some in rows]

    def remaining(self, digit: int) -> int:
        """Return the number of images of a digit that have not been drawn."""
        return len(self._rows[digit])

    def take(self, digit: int, count: int) -> Tensor:
        """Return the next ``count`` images of a digit."""
        if not 0 < count <= self.remaining(digit):
            raise CuberError(f"{count} more images of digit {digit} are wanted, but {self.remaining(digit)} are left")
        taken, self._rows[digit] = self._rows[digit].split([count, self.remaining(digit) - count])
        return self.x[taken]


def _task(digits: list[int], train: list[Tensor], test: list[Tensor], validation: list[Tensor]) -> Task:
    held_out = _labeled(validation) if validation else None
    name = f"digits {digits[0]}-{digits[-1]}"
    return Task(name, _labeled(train), _labeled(test), held_out, classes=len(digits))


def _labeled(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Concatenate the images of each class and label them with the position of the class."""
    labels = [torch.full((len(some),), label) for label, some in enumerate(images)]
    return torch.cat(images), torch.cat(labels)
