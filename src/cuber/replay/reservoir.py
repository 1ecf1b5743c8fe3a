"""Reservoir sampling: a uniform random choice from a stream of unknown length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.errors import CuberError


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample of a batch: its row (``1 x ...``) of each tensor, and the rest of the batch; see `split_batch`."""

    rows: list[Tensor]
    rest: Batch


def split_batch(batch: Batch) -> tuple[list[Tensor], Batch]:
    """Return the tensors that have one row per sample, and the batch with an empty tensor in place of each."""
    count = batches.size(batch)
    columns: list[Tensor] = []

    def extract(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != count:
            return tensor
        columns.append(tensor.detach())
        return torch.empty(0)

    return columns, batches.map_tensors(batch, extract)


def join_batch(columns: Iterable[Tensor], rest: Batch) -> Batch:
    """Invert `split_batch`."""
    remaining = iter(columns)
    return batches.map_tensors(rest, lambda tensor: next(remaining) if tensor.shape == (0,) else tensor)


def check_alike(first: Batch, other: Batch) -> None:
    """Raise CuberError unless two batches differ only in tensors with one row per sample."""
    columns, rest = split_batch(other)
    (structure, constants), (other_structure, others) = _describe(split_batch(first)[1]), _describe(rest)
    if not columns or structure != other_structure or not all(map(torch.equal, constants, others)):
        raise CuberError(
            "a replay memory keeps tensors with a row for each sample, and what is the same in all batches of a task; "
            "this loader's batches differ in something else: leave it out, or make a tensor of it"
        )


def _describe(rest: Batch) -> tuple[str, list[Tensor]]:
    tensors: list[Tensor] = []
    return repr(batches.map_tensors(rest, tensors.append)), tensors


class Reservoir:
    """Sample uniformly from the samples that are read (Vitter's algorithm R).

    Args:
        capacity: Number of places.
        generator: Source of random numbers.
        seen: Number of samples read by an earlier reservoir, of which ``min(seen, capacity)`` hold a place.
    """

    def __init__(self, capacity: int, generator: torch.Generator, seen: int = 0) -> None:
        self.capacity = capacity
        self.generator = generator
        self.seen = seen
        self._occupied = min(seen, capacity)
        self._places: dict[int, Sample] = {}

    def read(self, loader: Iterable[Batch]) -> Reservoir:
        """Read all samples of a loader."""
        first: Batch = None
        for batch in loader:
            first = batch if first is None else first
            check_alike(first, batch)
            columns, rest = split_batch(batch)
            for row, place in self._draw(batches.size(batch)):
                self._places[place] = Sample([column[row : row + 1].clone() for column in columns], rest)
            self.seen += batches.size(batch)
        if first is None:
            raise CuberError("the loader yields no batch: give end_task the task's training data")
        return self

    def new(self) -> list[Sample]:
        """Return the samples read by this reservoir that hold a place."""
        return [sample for _, sample in sorted(self._places.items())]

    def old(self) -> list[int]:
        """Return the places that still hold a sample of the earlier reservoir."""
        return [place for place in range(self._occupied) if place not in self._places]

    def _draw(self, count: int) -> list[tuple[int, int]]:
        """Return the rows of the next batch that get a place, and the places: sample n gets a random one below n."""
        before = torch.arange(self.seen, self.seen + count, dtype=torch.float64)
        drawn = torch.rand(count, generator=self.generator, dtype=torch.float64).mul_(before + 1).floor_()
        place = torch.where(before < self.capacity, before, drawn).long()
        rows = (place < self.capacity).nonzero().flatten()
        return list(zip(rows.tolist(), place[rows].tolist(), strict=True))
