"""The optimizer of a task."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.optim import LBFGS, Optimizer

from cuber.core.learner import Method
from cuber.errors import CuberError

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]
"""Makes an optimizer from parameters and a learning rate, as ``torch.optim.SGD`` does."""


def wrapped_optimizer(learner: Method, make: OptimizerFactory, lr: float) -> Optimizer:
    """Make the optimizer of the present task, and let the learner act in its steps."""
    optimizer = make(learner.parameters(), lr)
    if isinstance(optimizer, LBFGS):
        raise CuberError("learn cannot train with LBFGS, whose steps need a closure: write your own training loop")
    return learner.wrap(optimizer)
