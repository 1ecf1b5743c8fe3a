"""Split a stream into task runs: what is trained between one ``begin_task`` and its ``end_task``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.core.randomness import derive
from cuber.streams import JointSplit, Split, Stream

PROBE_SIZE = 256
"""Training samples on which accuracy is measured if there is no validation split."""


@dataclass(frozen=True)
class TaskRun:
    """The data of one task, or of all tasks at once."""

    task: int | None
    """None: all tasks at once."""
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
    if joint:
        mixed = JointSplit([task.train for task in stream])
        validation = {number: task.validation for number, task in enumerate(stream) if task.validation is not None}
        probes = validation or mixed.subsets(_probe(mixed, seed, 0))
        return [TaskRun(None, "all tasks", mixed, probes, bool(validation))]
    runs = []
    for number, task in enumerate(stream):
        probe = task.train.subset(_probe(task.train, seed, number)) if task.validation is None else task.validation
        runs.append(TaskRun(number, task.name, task.train, {number: probe}, task.validation is not None))
    return runs


def _probe(split: Split | JointSplit, seed: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive(seed, "probe", number))
    return torch.randperm(len(split), generator=generator)[:PROBE_SIZE]
