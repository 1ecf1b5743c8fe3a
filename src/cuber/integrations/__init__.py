"""Adapters for training frameworks: each calls a learner at the right points of the framework's loop.

Import the module of your framework; it needs the extra of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from cuber.core.learner import LossFunction, Method
from cuber.core.optimizer_hooks import parameters_of
from cuber.errors import CuberError


def wrap(learner: Method, optimizers: Sequence[Optimizer]) -> None:
    """Wrap the optimizers of a framework, and let the first one train what a task adds to the model's parameters.

    Frameworks build optimizers from the model, which does not have scalings (TRGP, CUBER) or attention (HAT). They
    join the last parameter group, so learning rate schedules remain valid.
    """
    known = {id(p) for p in learner.model.parameters()}
    known |= {id(p) for optimizer in optimizers for p in parameters_of(optimizer)}
    optimizers[0].param_groups[-1]["params"] += [p for p in learner.parameters() if id(p) not in known]
    for optimizer in optimizers:
        learner.wrap(optimizer)


def resume(learner: Method, state: dict[str, Any], loss_fn: LossFunction | None = None) -> None:
    """Go on with the task in whose middle a framework has saved ``learner.state_dict()``."""
    if learner.tasks not in (0, state["tasks"]):
        raise CuberError(
            f"the checkpoint is of task {state['tasks']}, but the learner has learned {learner.tasks} tasks: "
            "keep the checkpoints of each task in a folder of their own"
        )
    if state["task"] is None:
        raise CuberError(
            f"the checkpoint was saved after task {state['tasks'] - 1} had ended: nothing is left to resume"
        )
    learner.load_state_dict(state)
    learner.expected_weights = {}  # the framework loads the model's own weights from the same checkpoint, maybe later
    learner.resume_task(loss_fn)
