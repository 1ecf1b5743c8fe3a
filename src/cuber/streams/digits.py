"""Streams of scikit-learn's handwritten digits: 1797 images of 8 x 8 that ship with it, so nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.streams.task import Stream, Task

Labelled = tuple[Tensor, Tensor]


def overlap_digits(
    seed: int = 0, *, train_per_class: int = 15, validation_per_class: int = 15, test_per_class: int = 80
) -> Stream:
    """Five tasks of four neighbouring digits, two of them shared with the task before: 0-3, 2-5, 4-7, 6-9, 8-1.

    A task brings new samples of the digits it shares, and few of all: what a later task adds, an earlier one can use.
    """
    cards = Cards(seed)
    test = {digit: cards.deal(digit, test_per_class) for digit in range(10)}
    tasks = []
    for start in range(0, 10, 2):
        digits = [(start + step) % 10 for step in range(4)]
        train = [cards.deal(digit, train_per_class) for digit in digits]
        validation = [cards.deal(digit, validation_per_class) for digit in digits] if validation_per_class else None
        tasks.append(_task(f"digits {digits[0]}-{digits[-1]}", train, validation, [test[digit] for digit in digits]))
    return Stream("overlap-digits", tasks)


def split_digits(seed: int = 0, *, validation_per_class: int = 15, test_per_class: int = 60) -> Stream:
    """Five tasks of two digits each: 0-1, 2-3, 4-5, 6-7, 8-9."""
    cards = Cards(seed)
    tasks = []
    for start in range(0, 10, 2):
        digits = [start, start + 1]
        test = [cards.deal(digit, test_per_class) for digit in digits]
        validation = [cards.deal(digit, validation_per_class) for digit in digits] if validation_per_class else None
        train = [cards.deal(digit, cards.left(digit)) for digit in digits]
        tasks.append(_task(f"digits {digits[0]}-{digits[-1]}", train, validation, test))
    return Stream("split-digits", tasks)


def permuted_digits(seed: int = 0, *, tasks: int = 10, validation: int = 100, test: int = 597) -> Stream:
    """The same ten digits again and again, their pixels permuted in another way each time but the first."""
    x, y = load_digits()
    if validation < 0 or test < 1 or validation + test >= len(y):
        raise CuberError(f"there are {len(y)} digits: {validation} for validation and {test} for testing leave none")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(y), generator=generator)
    held_out, tested, trained = order.split([validation, test, len(y) - validation - test])
    stream = []
    for position in range(tasks):
        pixels = torch.randperm(x.shape[1], generator=generator) if position else torch.arange(x.shape[1])
        train, other, tests = ((x[rows][:, pixels], y[rows]) for rows in (trained, held_out, tested))
        stream.append(Task(f"permutation {position}", train, tests, other if validation else None, classes=10))
    return Stream("permuted-digits", stream, shared_head=True)


@cache
def load_digits() -> Labelled:
    """All images as rows of 64 numbers from 0 to 1, and which digit each is."""
    from sklearn import datasets  # takes a second, and only these streams need it

    images, labels = datasets.load_digits(return_X_y=True)
    return torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


class Cards:
    """The images of each digit, shuffled and dealt out: no image is given twice."""

    def __init__(self, seed: int) -> None:
        self.x, y = load_digits()
        generator = torch.Generator().manual_seed(seed)
        rows = [(y == digit).nonzero().flatten() for digit in range(10)]
        self.decks = [deck[torch.randperm(len(deck), generator=generator)] for deck in rows]

    def left(self, digit: int) -> int:
        """How many images of a digit have not been dealt yet."""
        return len(self.decks[digit])

    def deal(self, digit: int, count: int) -> Tensor:
        """The next ``count`` images of a digit."""
        if not 0 < count <= self.left(digit):
            raise CuberError(f"{count} more images of digit {digit} are wanted, but {self.left(digit)} are left")
        dealt, self.decks[digit] = self.decks[digit].split([count, self.left(digit) - count])
        return self.x[dealt]


def _task(name: str, train: list[Tensor], validation: list[Tensor] | None, test: list[Tensor]) -> Task:
    other = None if validation is None else _labelled(validation)
    return Task(name, _labelled(train), _labelled(test), other, classes=len(train))


def _labelled(images: Sequence[Tensor]) -> Labelled:
    """One set of images per class, put together, with the position of the class as the label."""
    labels = [torch.full((len(part),), label) for label, part in enumerate(images)]
    return torch.cat(list(images)), torch.cat(labels)
