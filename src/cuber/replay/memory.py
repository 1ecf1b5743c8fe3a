"""The episodic memory: samples of old tasks, each with its task, to be drawn from at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.replay.quantized import Column
from cuber.replay.reservoir import Sample, put_together

Drawn = list[tuple[int, Batch]]
"""Tasks, and a batch of samples for each; a task whose samples are of several shapes may come several times."""


@dataclass(frozen=True, eq=False)
class Episode:
    """Samples of one task that are of one shape."""

    task: int
    columns: list[Column]
    rest: Batch
    """What the samples share: see ``take_apart``."""

    def __len__(self) -> int:
        return len(self.columns[0].codes)

    def batch(self, index: Tensor) -> Batch:
        return put_together((column.rows(index) for column in self.columns), self.rest)

    def only(self, index: Tensor) -> Episode:
        return Episode(self.task, [column.only(index) for column in self.columns], self.rest)

    @property
    def nbytes(self) -> int:
        constants: list[int] = []
        batches.map_tensors(self.rest, lambda tensor: constants.append(tensor.nbytes))
        return sum(column.nbytes for column in self.columns) + sum(constants)


class EpisodicMemory:
    """Samples in the order of their tasks; they are counted through, from 0 to ``len(memory) - 1``."""

    def __init__(self, episodes: Sequence[Episode] = ()) -> None:
        self.episodes = [episode for episode in episodes if len(episode)]

    def __len__(self) -> int:
        return sum(map(len, self.episodes))

    @property
    def sizes(self) -> dict[int, int]:
        """Task -> how many of its samples are kept."""
        sizes: dict[int, int] = {}
        for episode in self.episodes:
            sizes[episode.task] = sizes.get(episode.task, 0) + len(episode)
        return sizes

    @property
    def nbytes(self) -> int:
        """Codes, tables, labels and all."""
        return sum(episode.nbytes for episode in self.episodes)

    def add(self, task: int, samples: Sequence[Sample]) -> EpisodicMemory:
        """The memory with a task's samples added."""
        by_shape: dict[tuple[Any, ...], list[Sample]] = {}
        for sample in samples:
            by_shape.setdefault(tuple((row.shape, row.dtype) for row in sample.rows), []).append(sample)
        return EpisodicMemory([*self.episodes, *(_episode(task, alike) for alike in by_shape.values())])

    def only(self, samples: Sequence[int]) -> EpisodicMemory:
        """The memory of some samples, by their numbers in ascending order."""
        numbers = torch.tensor(samples, dtype=torch.long)
        return EpisodicMemory([episode.only(index) for episode, index in self._split(numbers)])

    def limit(self, task: int, count: int, generator: torch.Generator) -> EpisodicMemory:
        """The memory with at most ``count`` samples of a task, left by chance."""
        owners = [episode.task for episode in self.episodes for _ in range(len(episode))]
        own = [number for number, owner in enumerate(owners) if owner == task]
        dropped = {own[position] for position in torch.randperm(len(own), generator=generator)[count:].tolist()}
        return self.only([number for number in range(len(self)) if number not in dropped])

    def draw(self, count: int, generator: torch.Generator) -> Drawn:
        """So many different samples of all tasks, all of them where there are fewer."""
        samples = torch.randperm(len(self), generator=generator)[:count].sort().values
        return [(episode.task, episode.batch(index)) for episode, index in self._split(samples) if len(index)]

    def _split(self, samples: Tensor) -> list[tuple[Episode, Tensor]]:
        """Where the samples of these numbers lie: positions in each episode."""
        ends = torch.tensor([len(episode) for episode in self.episodes], dtype=torch.long).cumsum(0)
        parts = samples.tensor_split(torch.searchsorted(samples, ends)[:-1])
        begins = [0, *ends.tolist()]
        return [(episode, part - begin) for episode, part, begin in zip(self.episodes, parts, begins, strict=False)]

    def to_plain(self) -> list[dict[str, Any]]:
        """Return the memory as plain values and tensors."""
        return [
            {"task": episode.task, "columns": [column.state() for column in episode.columns], "rest": episode.rest}
            for episode in self.episodes
        ]

    @classmethod
    def from_plain(cls, plain: Sequence[dict[str, Any]], device: torch.device | None = None) -> EpisodicMemory:
        """Return the memory that ``to_plain()`` described; its samples stay on their device."""
        return cls([Episode(e["task"], [Column(*column) for column in e["columns"]], e["rest"]) for e in plain])


def _episode(task: int, samples: list[Sample]) -> Episode:
    columns = zip(*(sample.rows for sample in samples), strict=True)
    rest = batches.map_tensors(samples[0].rest, torch.clone)
    return Episode(task, [Column.of(torch.cat(rows)) for rows in columns], rest)


def mixture(drawn: Drawn) -> tuple[Tensor, Tensor, Tensor] | None:
    """Inputs, targets and tasks of all samples drawn as one batch; None where they do not make one."""
    shapes = set()
    for _, batch in drawn:
        if not (isinstance(batch, list | tuple) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)):
            return None
        shapes.add(tuple((tensor.shape[1:], tensor.dtype) for tensor in batch))
    if len(shapes) != 1:
        return None
    x, y = (torch.cat(tensors) for tensors in zip(*(batch for _, batch in drawn), strict=True))
    tasks = torch.tensor([task for task, batch in drawn for _ in range(batches.size(batch))], device=y.device)
    return x, y, tasks
