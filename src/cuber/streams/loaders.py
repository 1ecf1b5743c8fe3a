"""Loaders that yield batches in an order determined by a seed, of one split or of several tasks mixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cuber.core import distributed
from cuber.core.distributed import Share
from cuber.errors import CuberError
from cuber.streams.reading import present_reading, read_batches
from cuber.streams.splits import DatasetSplit, Split

READ_AHEAD = 512
"""Minimum number of samples to read at once: small batches are read together, task by task."""


class JointSplit:
    """The concatenated splits of several tasks; a batch is ``(x, y, task)``, with the task of each sample."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.splits = list(splits)
        sizes = torch.tensor([len(split) for split in self.splits])
        self._ends = sizes.cumsum(0)
        self._begins = self._ends - sizes
        shapes = {task: split.shape for task, split in enumerate(splits) if not isinstance(split, DatasetSplit)}
        for task, shape in shapes.items():
            first, expected = next(iter(shapes.items()))
            if shape != expected:
                raise _do_not_mix(f"those of task {first} are of shape {expected}, those of task {task} of {shape}")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def subsets(self, indices: Tensor) -> dict[int, Split]:
        """Return the samples at ``indices``, one split per task."""
        return {task: self.splits[task].subset(own) for task, own in self._by_task(indices)[1].items()}

    def batches(self, chunks: Sequence[Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield a batch for each chunk of indices."""
        # A Dataset may draw random numbers, so it is read batch by batch: a resumed run then draws the same ones.
        may_draw = any(isinstance(split, DatasetSplit) for split in self.splits)
        if may_draw or present_reading().workers:
            yield from read_batches(self._read, chunks, seed)
            return
        together = max(1, READ_AHEAD // len(chunks[0]))
        groups = [chunks[start : start + together] for start in range(0, len(chunks), together)]
        selected = [self._by_task(torch.cat(list(group))) for group in groups]
        readers = [
            split.batches([own[task] for _, own in selected if task in own], seed)
            for task, split in enumerate(self.splits)
        ]
        for group, (tasks, own) in zip(groups, selected, strict=True):
            x, y = _mixed([next(readers[task]) for task in own])
            places = tasks.argsort(stable=True).argsort()  # from the order of the tasks to that of the chunks
            sizes = [len(chunk) for chunk in group]
            for place, task in zip(places.split(sizes), tasks.split(sizes), strict=True):
                yield x[place], y[place], task

    def _read(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        tasks, own = self._by_task(torch.tensor(indices))
        x, y = _mixed([self.splits[task].read(rows) for task, rows in own.items()])
        places = tasks.argsort(stable=True).argsort()
        return x[places], y[places], tasks

    def _by_task(self, indices: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the task of each index, and the indices into the split of each task that occurs."""
        tasks = torch.searchsorted(self._ends, indices, right=True)
        return tasks, {task: indices[tasks == task] - self._begins[task] for task in tasks.unique().tolist()}


def _mixed(batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the batches of several tasks."""
    try:
        return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    except RuntimeError as error:
        raise _do_not_mix(" ".join(str(error).split())) from error


def _do_not_mix(reason: str) -> CuberError:
    return CuberError(f"samples of different tasks do not make one batch, so they cannot be learned at once: {reason}")


class _Loader:
    """Batches of a split; if ``shared``, the part of each batch that belongs to this process."""

    def __init__(self, split: Split | JointSplit, batch_size: int, *, shared: bool = False) -> None:
        self.split = split
        self.batch_size = batch_size
        self.shared = shared and distributed.is_active()

    def __len__(self) -> int:
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (rest > 1 or (rest == 1 and whole == 0))

    def _chunks(self, order: Tensor) -> list[Tensor]:
        """Split indices into batches; a single last sample joins the batch before it, for batch normalization."""
        chunks = list(order.split(self.batch_size))
        if self.batch_size > 1 and len(chunks) > 1 and len(chunks[-1]) == 1:
            chunks[-2:] = [torch.cat(chunks[-2:])]
        return chunks


class ShuffledLoader(_Loader):
    """Yield batches for training, in a new order at each iteration, drawn from ``generator``."""

    def __init__(
        self, split: Split | JointSplit, batch_size: int, generator: torch.Generator, *, shared: bool = False
    ) -> None:
        super().__init__(split, batch_size, shared=shared)
        self.generator = generator

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return self.batches()

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Draw a new order and yield its batches, starting with number ``first``."""
        order = torch.randperm(len(self.split), generator=self.generator)
        after = torch.Generator()
        after.set_state(self.generator.get_state())  # a copy: with Datasets and tensors, the same orders follow
        seed = int(torch.randint(2**62, (), generator=after))
        chunks = self._chunks(order)[first:]
        if self.shared:
            chunks = [chunk[distributed.share(len(chunk)).part] for chunk in chunks]
        return self.split.batches(chunks, seed)

    def share(self, step: int) -> tuple[int, Share]:
        """Return the size of the whole batch of a step, and the share of this process in it."""
        last = step == len(self) - 1
        size = len(self.split) - step * self.batch_size if last else self.batch_size
        return size, distributed.share(size)


class FixedLoader(_Loader):
    """Yield batches in the same order at each iteration: shuffled by ``seed``, or unshuffled if it is None.

    Iterating over it does not change the random numbers of any other loader.
    """

    def __init__(
        self, split: Split | JointSplit, batch_size: int, seed: int | None = None, *, shared: bool = False
    ) -> None:
        super().__init__(split, batch_size, shared=shared)
        self.seed = seed

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(self.seed or 0)
        count = len(self.split)
        order = torch.arange(count) if self.seed is None else torch.randperm(count, generator=generator)
        chunks = self._chunks(order)
        if self.shared:
            shares = [(chunk, distributed.share(len(chunk))) for chunk in chunks]
            chunks = [chunk[own.part] for chunk, own in shares if own.weight]
        return self.split.batches(chunks, self.seed or 0)
