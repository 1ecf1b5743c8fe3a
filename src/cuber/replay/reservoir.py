"""Choosing samples from a stream whose length nobody knows, each with the same chance."""

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
    """One sample of a batch: what is its own, and what it shares with all others."""

    rows: list[Tensor]
    """Of each tensor with a row for every sample, its row (1 x ...)."""
    rest: Batch
    """The batch without those tensors, each leaving a gap: see ``take_apart``."""


def take_apart(batch: Batch) -> tuple[list[Tensor], Batch]:
    """The tensors of a batch that have a row for each sample, and the batch with a gap in place of each."""
    count = batches.size(batch)
    columns: list[Tensor] = []

    def leave_gap(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != count:
            return tensor
        columns.append(tensor.detach())
        return torch.empty(0)

    return columns, batches.map_tensors(batch, leave_gap)


def put_together(columns: Iterable[Tensor], rest: Batch) -> Batch:
    """The inverse of ``take_apart``."""
    remaining = iter(columns)
    return batches.map_tensors(rest, lambda tensor: next(remaining) if tensor.shape == (0,) else tensor)


def check_alike(first: Batch, other: Batch) -> None:
    """Raise a sentence unless two batches differ in nothing but what is kept of each sample."""
    columns, rest = take_apart(other)
    (one, constants), (another, others) = _describe(take_apart(first)[1]), _describe(rest)
    if not columns or one != another or not all(map(torch.equal, constants, others)):
        raise CuberError(
            "a replay memory keeps tensors with a row for each sample, and what is the same in all batches of a task; "
            "this loader's batches differ in something else: leave it out, or make a tensor of it"
        )


def _describe(rest: Batch) -> tuple[str, list[Tensor]]:
    tensors: list[Tensor] = []
    return repr(batches.map_tensors(rest, tensors.append)), tensors


class Reservoir:
    """Places for samples: after n of them, each has had the same chance to hold one (Vitter's algorithm R).

    ``seen`` counts what came before: so many samples, or as many as there are places, hold one already.
    """

    def __init__(self, capacity: int, generator: torch.Generator, seen: int = 0) -> None:
        self.capacity = capacity
        self.generator = generator
        self.seen = seen
        self._held = min(seen, capacity)
        self._places: dict[int, Sample] = {}

    def read(self, loader: Iterable[Batch]) -> Reservoir:
        """Let every sample of a loader try for a place, one after the other."""
        first: Batch = None
        for batch in loader:
            first = batch if first is None else first
            check_alike(first, batch)
            columns, rest = take_apart(batch)
            for row, place in self._draw(batches.size(batch)):
                self._places[place] = Sample([column[row : row + 1].clone() for column in columns], rest)
            self.seen += batches.size(batch)
        if first is None:
            raise CuberError("the loader yields no batch: give end_task the task's training data")
        return self

    def new(self) -> list[Sample]:
        """Those of the samples read that hold a place."""
        return [sample for _, sample in sorted(self._places.items())]

    def old(self) -> list[int]:
        """The places whose samples were there before, and still are."""
        return [place for place in range(self._held) if place not in self._places]

    def _draw(self, count: int) -> list[tuple[int, int]]:
        """Which of the next samples get a place, and which: the n-th draws one of n, and there are ``capacity``."""
        before = torch.arange(self.seen, self.seen + count, dtype=torch.float64)
        drawn = torch.rand(count, generator=self.generator, dtype=torch.float64).mul_(before + 1).floor_()
        place = torch.where(before < self.capacity, before, drawn).long()
        rows = (place < self.capacity).nonzero().flatten()
        return list(zip(rows.tolist(), place[rows].tolist(), strict=True))
