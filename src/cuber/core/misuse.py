"""Calls of a learner at the wrong time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.core.learner import Method

DETACHED = "this learner was detached from its model: make a new one"


def require_attached(learner: Method, verb: str) -> None:
    """Raise unless a learner may act on its model."""
    if learner.is_detached:
        raise CuberError(DETACHED)
    if learner.views:
        raise CuberError(f"{verb} inside as_task, which would then show the old task again: leave the block first")
    if torch.is_inference_mode_enabled():
        raise CuberError(f"{verb} needs gradients: call it outside torch.inference_mode()")


def require_no_view(learner: Method, verb: str) -> None:
    """Raise inside ``as_task``, where the model may have another task's values in the place of the present ones."""
    if learner.views:
        raise CuberError(
            f"{verb} inside as_task, where the statistics and own parameters in the model may be those of another "
            "task: leave the block first"
        )


def require_task(learner: Method, verb: str) -> None:
    """Raise unless a learner is in a task."""
    if learner.task is None:
        raise CuberError(f"{verb} before begin_task: call begin_task(loader, loss_fn) first")


def check_known(learner: Method, task: object, verb: str = "as_task") -> int | None:
    """Return a task that the model can answer for, or raise; ``as_task`` may also show None, the bare weights."""
    if learner.is_detached:
        raise CuberError(DETACHED)
    or_none = verb == "as_task"
    if task is None and or_none:
        return None
    if not isinstance(task, int) or isinstance(task, bool):
        others = ", None or 'infer'" if or_none else ""
        raise CuberError(f"{verb} takes the number of a task{others}, not {task!r}")
    known = learner.tasks + (learner.at_once if learner.task is not None else 0)
    if not 0 <= task < known:
        learned = f"tasks 0 to {known - 1} have" if known > 1 else "only task 0 has" if known else "none has"
        raise CuberError(f"{verb}({task}): that task has not been learned ({learned})")
    return task
