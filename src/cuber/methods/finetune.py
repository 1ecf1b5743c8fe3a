"""Plain training on task after task: the lower bound."""

from __future__ import annotations

from dataclasses import dataclass

from cuber.core.learner import Method


@dataclass(eq=False, repr=False)
class FineTune(Method):
    """Protect nothing; each task has its own head and normalization statistics.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> learner = FineTune(nn.Linear(4, 2))
    """
