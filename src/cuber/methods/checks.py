"""What a caller may have got wrong, in one sentence each."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cuber.errors import CuberError


def check_task(task: Any, *, known: int) -> None:
    """Raise unless it is the number of one of so many tasks."""
    if not isinstance(task, int) or isinstance(task, bool):
        raise CuberError(f"as_task takes the number of a task or None, not {task!r}")
    if not 0 <= task < known:
        learnt = f"tasks 0 to {known - 1} have" if known > 1 else "only task 0 has" if known else "none has"
        raise CuberError(f"as_task({task}): that task has not been learnt ({learnt})")


def check_loss(loss: Any, task: int) -> None:
    """Raise unless it is a loss that one can begin with."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise CuberError("the loss must be a tensor with one value, a mean over the batch")
    if not bool(loss.isfinite()):
        raise CuberError(f"task {task}: the loss is {float(loss)} before the first step; check the inputs")
