"""What a run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressEvent:
    """Where a run is: told every hundred steps, after each epoch, and when a task is over."""

    task: int | None
    """None: all at once."""
    tasks: int
    name: str
    epoch: float
    """Epochs done, with a fraction in the middle of one."""
    epochs: int
    loss: float
    """The mean training loss of the present epoch."""
    accuracy: float | None
    """After the last epoch, in percent: on the validation part, or on training samples where there is none."""
    validated: bool
    """Whether the accuracy is that of a validation part."""
    seconds: float
    """Since the task began."""
    finished: bool = False


Progress = Callable[[ProgressEvent], None]
