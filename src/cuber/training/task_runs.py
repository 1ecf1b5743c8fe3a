"""What is learnt from one ``begin_task`` to its ``end_task``: a task of a stream, or all of them at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.streams import JointSplit, Split, Stream
from cuber.training.randomness import derive

PROBED = 256
"""TrainingConfig samples whose accuracy is watched where there is no validation part."""


@dataclass(frozen=True)
class TaskRun:
    """What to train on, and what to watch meanwhile."""

    task: int | None
    """Of the stream; None: all at once."""
    tasks: int
    """How many there are in the stream."""
    name: str
    train: Split | JointSplit
    probes: dict[int, Split]
    """Task -> the part it is watched on: for validation, or some of its training samples where no task has one."""
    validated: bool

    @property
    def number(self) -> int:
        """Among the lessons of a stream, from 0."""
        return self.task or 0

    @property
    def place(self) -> str:
        """For a sentence."""
        return self.name if self.task is None else f"task {self.task} ('{self.name}')"


def lessons(stream: Stream, seed: int, *, joint: bool) -> list[TaskRun]:
    """The lessons that a stream consists of: one per task, or a single one."""
    return [_all_tasks(stream, seed)] if joint else [_one_task(stream, task, seed) for task in range(len(stream))]


def _one_task(stream: Stream, number: int, seed: int) -> TaskRun:
    task = stream[number]
    held_out = task.validation
    probe = task.train.subset(_probed(task.train, seed, number)) if held_out is None else held_out
    return TaskRun(number, len(stream), task.name, task.train, {number: probe}, held_out is not None)


def _all_tasks(stream: Stream, seed: int) -> TaskRun:
    train = JointSplit([task.train for task in stream])
    validation = {number: task.validation for number, task in enumerate(stream) if task.validation is not None}
    probes = validation or train.subsets(_probed(train, seed, 0))
    return TaskRun(None, len(stream), "all tasks", train, probes, bool(validation))


def _probed(part: Split | JointSplit, seed: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive(seed, "probe", number))
    return torch.randperm(len(part), generator=generator)[:PROBED]
