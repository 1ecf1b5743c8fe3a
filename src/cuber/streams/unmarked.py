"""A stream as a learner without task boundaries sees it: batch after batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

import torch
from torch import Tensor

from cuber.core.randomness import derive
from cuber.streams.loaders import ShuffledLoader
from cuber.streams.task import Stream


class UnmarkedStream:
    """The batches of all tasks one after another, with nothing that marks where a task ends.

    Args:
        stream: The tasks; one that is listed several times comes back.
        batch_size: Samples per batch.
        epochs: Passes over the samples of each task, each in another order.
        seed: Of the orders, which are those that a trainer with known boundaries draws from the same seed.
    """

    def __init__(self, stream: Stream, batch_size: int, epochs: int, seed: int) -> None:
        self.stream, self.batch_size, self.epochs, self.seed = stream, batch_size, epochs, seed
        steps = [epochs * len(self._loader(position)) for position in range(len(stream))]
        self.ends = list(accumulate(steps))
        """Number of batches up to the end of each task: the truth, for tests and reports only."""

    def __len__(self) -> int:
        return self.ends[-1]

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches, starting with number ``first``."""
        for position in range(len(self.stream)):
            loader = self._loader(position)
            for _ in range(self.epochs):
                batches = loader.batches(first)  # draws the order of this epoch, even if all of it is skipped
                if first < len(loader):
                    yield from batches
                first = max(0, first - len(loader))

    def position(self, batch: int) -> int:
        """Return the position in the stream of the task that a batch belongs to."""
        return bisect_right(self.ends, batch)

    @property
    def changes(self) -> list[int]:
        """The first batch of each task that is another than the one before."""
        tasks = self.stream.tasks
        return [end for end, task, after in zip(self.ends, tasks, tasks[1:], strict=False) if after is not task]

    def _loader(self, position: int) -> ShuffledLoader:
        order = torch.Generator().manual_seed(derive(self.seed, "order", position))
        return ShuffledLoader(self.stream[position].train, self.batch_size, order)
