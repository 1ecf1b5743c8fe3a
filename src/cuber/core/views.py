"""What a model shows: a task's head, statistics and own parameters, to be put back later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import nn

from cuber.core.provenance import warn_of_other_weights

if TYPE_CHECKING:
    from cuber.core.learner import Method


class Shown:
    """A copy of what a learner's model shows now."""

    def __init__(self, learner: Method) -> None:
        self._learner, self._task = learner, learner.shown_task
        self._statistics = learner.normalization.statistics()

    def restore(self) -> None:
        """Show it again."""
        self._learner.show_task(self._task)
        self._learner.normalization.restore(self._statistics)


@contextmanager
def showing(learner: Method, task: int | None) -> Iterator[nn.Module]:
    """While open, a learner's model answers for a task, and the learner counts the view in ``views``."""
    warn_of_other_weights(learner)
    before = Shown(learner)
    learner.views += 1
    try:
        learner.show_task(task)
        yield learner.model
    finally:
        learner.views -= 1
        before.restore()
