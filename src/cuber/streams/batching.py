"""Loaders: a part's samples in batches, in an order that only the seed decides."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cuber.streams.joint import JointSplit
from cuber.streams.splits import Split


class ShuffledLoader:
    """Batches in a new order each time, drawn from one generator: for training."""

    def __init__(self, part: Split | JointSplit, batch_size: int, generator: torch.Generator) -> None:
        self.part = part
        self.batch_size = batch_size
        self.generator = generator
        # A DataLoader draws from the generator it is given; were that ours, Datasets would be shuffled otherwise than
        # the same samples as tensors.
        self._workers = torch.Generator().manual_seed(generator.initial_seed())

    def __len__(self) -> int:
        return _count(len(self.part), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.batches()

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The batches of a new order, from the ``first`` on."""
        order = torch.randperm(len(self.part), generator=self.generator)
        return self.part.batches(_chunks(order, self.batch_size)[first:], self._workers)


class FixedLoader:
    """Batches in the same order each time, shuffled by ``seed``, or as they lie without one: for looking.

    However often a method looks at the data, nobody else's order changes.
    """

    def __init__(self, part: Split | JointSplit, batch_size: int, seed: int | None = None) -> None:
        self.part = part
        self.batch_size = batch_size
        self.seed = seed

    def __len__(self) -> int:
        return _count(len(self.part), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(self.seed or 0)
        count = len(self.part)
        order = torch.arange(count) if self.seed is None else torch.randperm(count, generator=generator)
        return self.part.batches(_chunks(order, self.batch_size), generator)


def _chunks(order: Tensor, batch_size: int) -> list[Tensor]:
    """The order cut into batches; a single sample left over joins the last one: batch norm cannot take it alone."""
    chunks = list(order.split(batch_size))
    if batch_size > 1 and len(chunks) > 1 and len(chunks[-1]) == 1:
        chunks[-2:] = [torch.cat(chunks[-2:])]
    return chunks


def _count(samples: int, batch_size: int) -> int:
    whole, rest = divmod(samples, batch_size)
    return whole + (rest > 1 or (rest == 1 and whole == 0))
