"""Joint training on all tasks: the upper bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cuber.core import batches, distributed
from cuber.core.batches import Batch
from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.networks.heads import can_mix, heads_of, mixed_loss


@dataclass(eq=False, repr=False)
class Multitask(Method):
    """All tasks are learned at once from batches that mix them, so that none is forgotten.

    There is one ``begin_task`` and one ``end_task``, for a loader of ``(x, y, task)`` with the task number of each
    sample; ``learner.loss(batch)`` uses the head of each sample's own task. Batch norm has one set of running
    statistics for all tasks; with ``norm_statistics="batch"`` a test batch of one task has other statistics than the
    mixed batches of training.

    Args:
        model: any ``nn.Module``, or a ``MultiHead`` whose heads come last.
        forward: must be None: the task of each sample is needed.

    >>> learner = Multitask(nn.Linear(4, 2))
    """

    joint: ClassVar[bool] = True
    remembered: ClassVar[dict[str, Any]] = {"at_once": int}

    def loss(self, batch: Batch) -> Tensor:
        x, y, tasks = batches.to(_samples(batch), self.device)
        if wrong := [task for task in tasks.unique().tolist() if not 0 <= task < self.at_once]:
            raise CuberError(
                f"Multitask: a sample is of task {wrong[-1]}, but the tasks learned are 0 to {self.at_once - 1}"
            )
        return mixed_loss(self.model, self.loss_fn, x, y, tasks)

    def take(self, loader: Iterable[Batch]) -> list[Batch]:
        """Return the first samples; read the others for their task numbers."""
        if self.tasks:
            raise CuberError(f"Multitask has learned its {self.tasks} tasks, all at once: make a new learner")
        if self.forward is not None:
            raise CuberError("Multitask needs the task of each sample, which forward= does not tell: leave it out")
        if not can_mix(self.model):
            raise CuberError(
                "Multitask needs the heads at the very end, to answer batches that mix tasks: "
                "put everything that comes before into the backbone of one cuber.MultiHead"
            )
        seen: set[int] = set()

        def read() -> Iterator[Batch]:
            for batch in loader:
                seen.update(_samples(batch)[2].tolist())
                yield batch

        reading = read()
        sample = batches.take(reading, self.sample_size)
        for _ in reading:
            pass
        seen.update(*distributed.gather(seen))
        last, missing = max(seen), [task for task in range(max(seen)) if task not in seen]
        if missing or min(seen) < 0:
            fault = f"there is none of task {missing[0]}" if missing else f"one is of task {min(seen)}"
            raise CuberError(f"Multitask: tasks are numbered from 0 without gaps, but of the loader's samples {fault}")
        for multi_head in heads_of(self.model):
            if len(multi_head.heads) <= last:
                raise CuberError(
                    f"Multitask: the loader has samples of task {last}, but the model has only "
                    f"{len(multi_head.heads)} heads: name all tasks in classes_per_task"
                )
        self.at_once = last + 1
        return sample

    def describe(self) -> list[str]:
        return [f"tasks 0 to {self.at_once - 1}, all at once"] if self.task is not None else []


def _samples(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return a batch as inputs, targets and the task number of each sample."""
    expected = "Multitask takes batches of (input, target, task)"
    if not (isinstance(batch, list | tuple) and len(batch) == 3):
        found = f"{len(batch)} things" if isinstance(batch, list | tuple) else f"a {type(batch).__name__}"
        raise CuberError(f"{expected} with a task number for each sample, not {found}")
    x, y, tasks = batch
    whole = isinstance(tasks, Tensor) and not (tasks.is_floating_point() or tasks.is_complex())
    if not whole or tasks.dtype == torch.bool or tasks.shape != (batches.size(x),):
        raise CuberError(f"{expected} where task is a whole number for each sample")
    return x, y, tasks
