"""What a run reports while it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cuber.metrics import Measure


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a run: sent every 100 steps, after each epoch, and at the end of a task.

    Where the boundaries of tasks are detected, it is sent after 1,000 samples, or ``delay`` batches if these are more;
    ``epoch`` is then the share of the stream that was seen, and ``epochs`` is 1.
    """

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
    metric: Measure = field(default_factory=Measure)
    """What ``accuracy`` is, where it is not accuracy."""


Progress = Callable[[ProgressEvent], None]
