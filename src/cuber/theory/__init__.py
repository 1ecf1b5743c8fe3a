"""The definitions and theorems of the paper, computed: conditions, whether they hold, and the resulting bounds.

>>> tasks = draw("least-squares", degrees=30, seed=0)
>>> path = follow(rule_2, tasks, step_size=0.9 * largest_step(tasks, steps=10), steps=10)
>>> [theorem.holds for theorem in theorems(path)]
[True, True, True, True, True]
"""

from cuber.theory.losses import Constant, Loss, estimated, least_squares, logistic, power_iteration
from cuber.theory.sweep import draw
from cuber.theory.theorems import Condition, Theorem, largest_step, theorems
from cuber.theory.two_tasks import (
    Trajectory,
    TwoTasks,
    follow,
    positive_correlation,
    rule_1,
    rule_2,
    sufficient_projection,
)

__all__ = [
    "Condition",
    "Constant",
    "Loss",
    "Theorem",
    "Trajectory",
    "TwoTasks",
    "draw",
    "estimated",
    "follow",
    "largest_step",
    "least_squares",
    "logistic",
    "positive_correlation",
    "power_iteration",
    "rule_1",
    "rule_2",
    "sufficient_projection",
    "theorems",
]
