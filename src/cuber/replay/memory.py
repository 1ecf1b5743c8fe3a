"""Reservoir sampling, and the episodic memory of samples of earlier tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.errors import CuberError
from cuber.replay.quantized import QuantizedTensor

Drawn = list[tuple[int, Batch]]
"""Batches with their tasks; a task whose samples differ in shape has several."""


class Sample(NamedTuple):
    """One sample of a batch: its row (``1 x ...``) of each tensor, and the rest of the batch; see `split_batch`."""

    rows: list[Tensor]
    rest: Batch


def split_batch(batch: Batch) -> tuple[list[Tensor], Batch]:
    """Return the tensors that have one row per sample, and the batch with an empty tensor in place of each."""
    columns: list[Tensor] = []
    batches.map_samples(batch, columns.append)
    return [column.detach() for column in columns], batches.map_samples(batch, lambda _: torch.empty(0))


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
    """Choose uniformly from all samples that are read, whose number is not known before (Vitter's algorithm R).

    ``seen`` is the number of samples read by an earlier reservoir, whose choice holds the first places.
    """

    def __init__(self, capacity: int, generator: torch.Generator, seen: int = 0) -> None:
        self.capacity = capacity
        self.generator = generator
        self.seen = seen
        self._occupied = min(seen, capacity)
        self._places: dict[int, Sample] = {}

    def read(self, loader: Iterable[Batch]) -> Reservoir:
        """Read all samples of a loader, or of those of all processes, which draw the same places and share the rest."""
        first: Batch = None
        before = 0  # number of samples in earlier rounds
        for batch, start, end in batches.rounds(loader):
            first = batch if first is None else first
            if batch is not None:
                check_alike(first, batch)
            columns, rest = ([], None) if batch is None else split_batch(batch)
            own = range(start - before, start - before + (0 if batch is None else batches.size(batch)))
            for number, place in self._draw(end - before):
                self._places.pop(place, None)  # a later sample of another process may replace one of this
                if number in own:
                    row = number - own.start
                    self._places[place] = Sample([column[row : row + 1].clone() for column in columns], rest)
            self.seen += end - before
            before = end
        if first is None:
            raise CuberError("the loader yields no batch: give end_task the task's training data")
        for places in distributed.gather(self._places):
            self._places.update(places)
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


@dataclass(frozen=True, eq=False)
class Episode:
    """Samples of one task with the same shapes; ``rest`` is what they share, see `split_batch`."""

    task: int
    tensors: list[QuantizedTensor]
    rest: Batch

    @classmethod
    def of(cls, task: int, samples: list[Sample]) -> Episode:
        columns = zip(*(sample.rows for sample in samples), strict=True)
        rest = batches.map_tensors(samples[0].rest, torch.clone)
        return cls(task, [QuantizedTensor.of(torch.cat(rows)) for rows in columns], rest)

    def __len__(self) -> int:
        return len(self.tensors[0].codes)

    def batch(self, index: Tensor) -> Batch:
        columns = (tensor.rows(index) for tensor in self.tensors)
        return batches.map_tensors(self.rest, lambda tensor: next(columns) if tensor.shape == (0,) else tensor)

    def only(self, index: Tensor) -> Episode:
        return Episode(self.task, [tensor.only(index) for tensor in self.tensors], self.rest)


class EpisodicMemory:
    """Samples in the order of their tasks, numbered from 0 to ``len(memory) - 1``. Methods return new memories."""

    def __init__(self, episodes: Sequence[Episode] = ()) -> None:
        self.episodes = [episode for episode in episodes if len(episode)]

    def __len__(self) -> int:
        return sum(map(len, self.episodes))

    @property
    def sizes(self) -> dict[int, int]:
        """Number of samples of each task."""
        sizes: Counter[int] = Counter()
        for episode in self.episodes:
            sizes[episode.task] += len(episode)
        return dict(sizes)

    def add(self, task: int, samples: Sequence[Sample]) -> EpisodicMemory:
        """Add samples of a task."""
        by_shape: dict[tuple[Any, ...], list[Sample]] = {}
        for sample in samples:
            by_shape.setdefault(tuple((row.shape, row.dtype) for row in sample.rows), []).append(sample)
        return EpisodicMemory([*self.episodes, *(Episode.of(task, alike) for alike in by_shape.values())])

    def only(self, samples: Sequence[int]) -> EpisodicMemory:
        """Keep only the samples with the given numbers, in ascending order."""
        numbers = torch.tensor(samples, dtype=torch.long)
        return EpisodicMemory([episode.only(index) for episode, index in self._locate(numbers)])

    def limit(self, task: int, count: int, generator: torch.Generator) -> EpisodicMemory:
        """Keep at most ``count`` random samples of a task, and all samples of the others."""
        owners = torch.tensor([episode.task for episode in self.episodes for _ in range(len(episode))])
        own = (owners == task).nonzero().flatten()
        kept = torch.ones(len(self), dtype=torch.bool)
        kept[own[torch.randperm(len(own), generator=generator)[count:]]] = False
        return self.only(kept.nonzero().flatten().tolist())

    def draw(self, count: int, generator: torch.Generator) -> Drawn:
        """Draw ``count`` samples without replacement, or all if there are fewer."""
        samples = torch.randperm(len(self), generator=generator)[:count].sort().values
        return [(episode.task, episode.batch(index)) for episode, index in self._locate(samples) if len(index)]

    def _locate(self, samples: Tensor) -> list[tuple[Episode, Tensor]]:
        """Return the positions of samples in each episode."""
        ends = torch.tensor([len(episode) for episode in self.episodes], dtype=torch.long).cumsum(0)
        groups = samples.tensor_split(torch.searchsorted(samples, ends)[:-1])
        begins = [0, *ends.tolist()]
        return [(episode, group - begin) for episode, group, begin in zip(self.episodes, groups, begins, strict=False)]

    def to_plain(self) -> list[dict[str, Any]]:
        """Return the memory as plain values and tensors."""
        return [
            {"task": e.task, "tensors": [[tensor.codes, tensor.table] for tensor in e.tensors], "rest": e.rest}
            for e in self.episodes
        ]

    @classmethod
    def from_plain(cls, plain: Sequence[dict[str, Any]], device: torch.device | None = None) -> EpisodicMemory:
        """Return the memory that ``to_plain()`` described; its samples stay on their device."""
        return cls([Episode(e["task"], [QuantizedTensor(*t) for t in e["tensors"]], e["rest"]) for e in plain])


def mixture(drawn: Drawn) -> tuple[Tensor, Tensor, Tensor] | None:
    """Concatenate batches ``(x, y)`` to inputs, targets and tasks; None if their types or shapes do not allow it."""
    parts = [batch for _, batch in drawn if isinstance(batch, list | tuple) and len(batch) == 2]
    if len(parts) < len(drawn) or not all(isinstance(tensor, Tensor) for part in parts for tensor in part):
        return None
    if len({tuple((tensor.shape[1:], tensor.dtype) for tensor in part) for part in parts}) != 1:
        return None
    x, y = map(torch.cat, zip(*parts, strict=True))
    tasks = torch.tensor([task for task, batch in drawn for _ in range(batches.size(batch))], device=y.device)
    return x, y, tasks
