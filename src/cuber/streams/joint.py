"""Several tasks' parts as one, whose batches mix them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.streams.splits import DatasetSplit, Split

READ_AHEAD = 512
"""Samples read at a time, where batches are smaller: a batch of ten may need something of ten tasks."""


class JointSplit:
    """The samples of one part after those of another, each with the number of the part that it is from."""

    def __init__(self, parts: Sequence[Split]) -> None:
        self.parts = list(parts)
        sizes = torch.tensor([len(part) for part in self.parts])
        self._ends = sizes.cumsum(0)
        self._begins = self._ends - sizes
        shapes = {task: part.shape for task, part in enumerate(parts) if not isinstance(part, DatasetSplit)}
        first = min(shapes, default=0)
        for task, shape in shapes.items():
            if shape != shapes[first]:
                raise _do_not_mix(
                    f"those of task {first} are of shape {shapes[first]}, those of task {task} of {shape}"
                )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def split(self, indices: Tensor) -> dict[int, Split]:
        """The samples at ``indices``, those of each task by themselves."""
        return {task: self.parts[task].subset(own) for task, own in self._by_task(indices)[1].items()}

    def batches(self, chunks: Sequence[Tensor], generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """A batch ``(x, y, task)`` for each chunk of indices."""
        # What draws random numbers as it is read must draw them batch by batch, wherever a run is stopped.
        draws = any(isinstance(part, DatasetSplit) for part in self.parts)
        together = 1 if draws else max(1, READ_AHEAD // len(chunks[0]))
        groups = [chunks[start : start + together] for start in range(0, len(chunks), together)]
        read = [self._by_task(torch.cat(list(group))) for group in groups]
        readers = [
            part.batches([own[task] for _, own in read if task in own], generator)
            for task, part in enumerate(self.parts)
        ]
        for group, (tasks, own) in zip(groups, read, strict=True):
            x, y = _put_together([next(readers[task]) for task in own])
            # They were read task by task: back to the order of the chunks.
            places = tasks.argsort(stable=True).argsort()
            sizes = [len(chunk) for chunk in group]
            for place, task in zip(places.split(sizes), tasks.split(sizes), strict=True):
                yield x[place], y[place], task

    def _by_task(self, indices: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The task of each sample, and for each task that has any where its samples lie in its part."""
        tasks = torch.searchsorted(self._ends, indices, right=True)
        return tasks, {task: indices[tasks == task] - self._begins[task] for task in tasks.unique().tolist()}


def _put_together(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    try:
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    except RuntimeError as error:
        raise _do_not_mix(" ".join(str(error).split())) from error


def _do_not_mix(reason: str) -> CuberError:
    return CuberError(f"samples of different tasks do not make one batch, so they cannot be learnt at once: {reason}")
