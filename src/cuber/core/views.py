"""What a model shows: a task's head, statistics and own parameters, to be put back later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from torch import nn

from cuber.core.provenance import warn_of_other_weights
from cuber.core.state import move

if TYPE_CHECKING:
    from cuber.core.learner import Method


class Shown:
    """A copy of what a learner's model shows now."""

    def __init__(self, learner: Method) -> None:
        self._learner, self._task = learner, learner.shown_task
        self._statistics = learner.normalization.statistics()
        self._heads = [(multi_head, multi_head.task) for multi_head in learner.heads]

    def restore(self) -> None:
        """Show it again."""
        self._learner.show_task(self._task)
        self._learner.normalization.restore(self._statistics)
        for multi_head, task in self._heads:  # inside as_task(None), others than those of the task
            multi_head.select_task(task)


@contextmanager
def viewing(learner: Method) -> Iterator[None]:
    """While open, a learner counts one more view, and its model has the weights that ``end_task`` would keep."""
    outermost = not learner.views
    learner.views += 1
    try:
        with learner.weights_to_keep() if outermost else nullcontext():
            if outermost:  # views inside this one may show the present task again
                learner.present_statistics = learner.normalization.statistics()
            yield
    finally:
        learner.views -= 1
        if outermost:
            learner.present_statistics = {}


@contextmanager
def showing(learner: Method, task: int | None) -> Iterator[nn.Module]:
    """While open, a learner's model answers for a task."""
    warn_of_other_weights(learner)
    move(learner)
    before = Shown(learner)
    try:
        with viewing(learner):
            learner.show_task(task)
            yield learner.model
    finally:
        before.restore()
