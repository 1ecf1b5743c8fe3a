"""Both rules on the same pair of tasks at several angles, with the theorems at each angle."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cuber.errors import CuberError
from cuber.theory.random_tasks import draw
from cuber.theory.theorems import Theorem, joint_loss_bounds, largest_step, old_loss_bounds, theorems
from cuber.theory.thresholds import largest_smooth_step
from cuber.theory.two_tasks import Trajectory, TwoTasks, follow, rule_1, rule_2

STEP_SIZE_FACTOR = 0.9
"""Default step size, relative to the limit of theorem 1."""


@dataclass(frozen=True, eq=False)
class AngleResult:
    """Paths of both rules at one angle, and what the theorems say about that of rule 2."""

    degrees: float
    by_rule_1: Trajectory
    by_rule_2: Trajectory
    theorem_1: Theorem
    theorem_2_1: Theorem
    theorem_2_2: Theorem
    theorem_2_2_sharper: Theorem

    @property
    def tasks(self) -> TwoTasks:
        return self.by_rule_2.tasks

    @property
    def joint_bounds(self) -> list[float]:
        return joint_loss_bounds(self.by_rule_2)

    @property
    def old_bounds(self) -> list[float]:
        return old_loss_bounds(self.by_rule_2)

    @property
    def advantage(self) -> float:
        """Final joint loss of rule 1 minus that of rule 2, relative to the initial joint loss."""
        return (self.by_rule_1.joint_losses[-1] - self.by_rule_2.joint_losses[-1]) / self.by_rule_2.joint_losses[0]

    @property
    def backward_transfer(self) -> float:
        """Relative decrease of the old task's loss under rule 2."""
        first, last = self.by_rule_2.old_losses[0], self.by_rule_2.old_losses[-1]
        return (first - last) / first if first else 0.0


@dataclass(frozen=True, eq=False)
class Sweep:
    """Results at several angles."""

    kind: str
    seed: int
    steps: int
    results: list[AngleResult]


def sweep(
    kind: str, angles: int = 13, seed: int = 0, steps: int = 20, step_size: float | None = None, old_steps: int = 2
) -> Sweep:
    """Learn the new task by both rules at angles from 0 to 180 degrees.

    Args:
        kind: Kind of task; see :func:`cuber.theory.draw`, also for ``seed`` and ``old_steps``.
        angles: Number of angles.
        steps: Number of steps of each rule.
        step_size: Step size (default: 0.9 times the limit of theorem 1 at each angle; where the cosine is too small
            for the theorem, of its other conditions).
    """
    if angles < 2 or steps < 1:
        raise CuberError(f"a sweep takes at least 2 angles and 1 step, not {angles} and {steps}")
    if step_size is not None and not (step_size > 0 and math.isfinite(step_size)):
        raise CuberError(f"the step size must be a number above 0, not {step_size:g}")
    results = []
    for place in range(angles):
        degrees = 180.0 * place / (angles - 1)
        tasks = draw(kind, degrees, seed, old_steps)
        alpha = STEP_SIZE_FACTOR * _step_limit(tasks, steps) if step_size is None else step_size
        by_rule_1, by_rule_2 = (follow(rule, tasks, alpha, steps) for rule in (rule_1, rule_2))
        theorem_1, _, *theorem_2 = theorems(by_rule_2)
        results.append(AngleResult(degrees, by_rule_1, by_rule_2, theorem_1, *theorem_2))
    return Sweep(kind, seed, steps, results)


def _step_limit(tasks: TwoTasks, steps: int) -> float:
    H, B, old = tasks.H.value, tasks.B.value, float(tasks.g_old.norm())
    return largest_step(tasks, steps) or min(largest_smooth_step(H), old / (H * B * steps))
