"""Plain training on task after task: the lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from cuber.core.learner import Method


@dataclass(eq=False, repr=False)
class FineTune(Method):
    """Protect nothing; each task has its own head and normalization statistics."""
