"""Split a stream into task runs: what is trained between one ``begin_task`` and its ``end_task``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.streams import JointSplit, Split, Stream
from cuber.training.randomness import derive

PROBE_SIZE = 256
"""Training samples on which accuracy is measured if there is no validation split."""


@dataclass(frozen=True)
class TaskRun:
    """The data of one task, or of all tasks at once."""

    task: int | None
    """None: all tasks at once."""
    tasks: int
    """Number of tasks in the stream."""
    name: str
    train: Split | JointSplit
    probes: dict[int, Split]
    """Task -> split evaluated after each epoch: validation, or training samples if no task has a validation split."""
    validated: bool

    @property
    def number(self) -> int:
        """Position among the task runs of a stream, from 0."""
        return self.task or 0

    @property
    def place(self) -> str:
        """Name for messages."""
        return self.name if self.task is None else f"task {self.task} ('{self.name}')"


def task_runs(stream: Stream, seed: int, *, joint: bool) -> list[TaskRun]:
    """Return one task run per task, or a single one for all tasks if ``joint``."""

    def probe(split: Split | JointSplit, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, "probe", number))
        return torch.randperm(len(split), generator=generator)[:PROBE_SIZE]

    validation = {number: task.validation for number, task in enumerate(stream) if task.validation is not None}
    if joint:
        train = JointSplit([task.train for task in stream])
        probes = validation or train.subsets(probe(train, 0))
        return [TaskRun(None, len(stream), "all tasks", train, probes, bool(validation))]
    return [
        TaskRun(
            number,
            len(stream),
            task.name,
            task.train,
            {number: validation.get(number) or task.train.subset(probe(task.train, number))},
            number in validation,
        )
        for number, task in enumerate(stream)
    ]
