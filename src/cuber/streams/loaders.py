"""Loaders that yield batches of a split in an order determined by a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cuber.streams.joint import JointSplit
from cuber.streams.splits import Split


class ShuffledLoader:
    """Yield batches for training, in a new order at each iteration, drawn from ``generator``."""

    def __init__(self, split: Split | JointSplit, batch_size: int, generator: torch.Generator) -> None:
        self.split = split
        self.batch_size = batch_size
        self.generator = generator
        # A DataLoader draws from its generator; with a separate one, Datasets and tensors have the same order.
        self._workers = torch.Generator().manual_seed(generator.initial_seed())

    def __len__(self) -> int:
        return _count(len(self.split), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.batches()

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Draw a new order and yield its batches, starting with number ``first``."""
        order = torch.randperm(len(self.split), generator=self.generator)
        return self.split.batches(_chunks(order, self.batch_size)[first:], self._workers)


class FixedLoader:
    """Yield batches in the same order at each iteration: shuffled by ``seed``, or unshuffled if it is None.

    Iterating over it does not change the random numbers of any other loader.
    """

    def __init__(self, split: Split | JointSplit, batch_size: int, seed: int | None = None) -> None:
        self.split = split
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return _count(len(self.split), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(self.seed or 0)
        count = len(self.split)
        order = torch.arange(count) if self.seed is None else torch.randperm(count, generator=generator)
        return self.split.batches(_chunks(order, self.batch_size), generator)


def _chunks(order: Tensor, batch_size: int) -> list[Tensor]:
    """Split indices into batches; a single last sample joins the batch before it, for batch normalization."""
    chunks = list(order.split(batch_size))
    if batch_size > 1 and len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


def _count(samples: int, batch_size: int) -> int:
    whole, rest = divmod(samples, batch_size)
    return whole + (rest > 1 or (rest == 1 and whole == 0))
