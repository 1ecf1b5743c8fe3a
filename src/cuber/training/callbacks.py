"""Interfaces of the objects and functions that the training loop calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from cuber.core.batches import Batch

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]
"""Makes an optimizer from parameters and a learning rate, as ``torch.optim.SGD`` does."""


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a run: sent every 100 steps, after each epoch, and at the end of a task."""

    task: int | None
    """None: all tasks at once."""
    tasks: int
    name: str
    epoch: float
    """Completed epochs, with a fraction within one."""
    epochs: int
    loss: float
    """Mean training loss of the current epoch."""
    accuracy: float | None
    """After the last epoch, in percent: on the validation split, or on training samples where there is none."""
    validated: bool
    """Whether the accuracy is on a validation split."""
    seconds: float
    """Since the task began."""
    finished: bool = False


Progress = Callable[[ProgressEvent], None]

Records = list[dict[str, dict[str, Any]]]
"""Task -> layer -> measurements."""


class Observer(Protocol):
    """Measures something during training and writes it to ``result.theory``."""

    records: Records

    def began(self, sample: list[Batch]) -> None:
        """Called after ``begin_task`` and before the first step, with the samples that the learner looked at."""

    def ending(self, loader: Iterable[Batch]) -> None:
        """Called after the last step and before ``end_task``."""
