"""From one angle between two tasks to another: where the conditions hold, where they fail, and who wins anyway."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from cuber.errors import CuberError
from cuber.theory.random_tasks import draw
from cuber.theory.rules import Path, TwoTasks, follow, rule_1, rule_2
from cuber.theory.theorems import (
    Theorem,
    joint_loss_bounds,
    joint_loss_falls,
    largest_step,
    old_loss_bounds,
    old_loss_is_kept,
    rule_2_beats_rule_1,
)
from cuber.theory.thresholds import largest_smooth_step

BELOW = 0.9
"""Of the step size that a theorem must stay below, if nobody asks for another."""
HALF_TURN = 180.0


@dataclass(frozen=True, eq=False)
class Station:
    """Both rules at one angle."""

    degrees: float
    by_rule_1: Path
    by_rule_2: Path

    @property
    def tasks(self) -> TwoTasks:
        return self.by_rule_2.tasks

    @cached_property
    def theorem_1(self) -> Theorem:
        return joint_loss_falls(self.by_rule_2)

    @cached_property
    def theorem_2_1(self) -> Theorem:
        return rule_2_beats_rule_1(self.by_rule_2)

    @cached_property
    def theorem_2_2(self) -> Theorem:
        return old_loss_is_kept(self.by_rule_2)

    @cached_property
    def theorem_2_2_sharper(self) -> Theorem:
        return old_loss_is_kept(self.by_rule_2, sharper=True)

    @cached_property
    def joint_bounds(self) -> list[float]:
        return joint_loss_bounds(self.by_rule_2)

    @cached_property
    def old_bounds(self) -> list[float]:
        return old_loss_bounds(self.by_rule_2)

    @property
    def advantage(self) -> float:
        """By how much rule 2's joint loss is below rule 1's in the end, as a share of the joint loss at the start."""
        return (self.by_rule_1.joint_losses[-1] - self.by_rule_2.joint_losses[-1]) / self.by_rule_2.joint_losses[0]

    @property
    def backward_transfer(self) -> float:
        """By how much rule 2 has lowered the old task's loss, as a share of it."""
        first, last = self.by_rule_2.old_losses[0], self.by_rule_2.old_losses[-1]
        return (first - last) / first if first else 0.0


@dataclass(frozen=True, eq=False)
class Sweep:
    """The same two tasks at several angles."""

    kind: str
    seed: int
    steps: int
    stations: list[Station]


def sweep(
    kind: str, angles: int = 13, seed: int = 0, steps: int = 20, step_size: float | None = None, old_steps: int = 2
) -> Sweep:
    """Turn the new task from 0 to 180 degrees, and learn it by both rules at each angle.

    ``step_size`` None: nine tenths of what theorem 1 admits at that angle, or would if the cosine sufficed.
    """
    if angles < 2 or steps < 1:
        raise CuberError(f"a sweep takes at least 2 angles and 1 step, not {angles} and {steps}")
    if step_size is not None and not (step_size > 0 and math.isfinite(step_size)):
        raise CuberError(f"the step size must be a number above 0, not {step_size:g}")
    turns = [HALF_TURN * place / (angles - 1) for place in range(angles)]
    return Sweep(kind, seed, steps, [_station(draw(kind, t, seed, old_steps), t, steps, step_size) for t in turns])


def _station(tasks: TwoTasks, degrees: float, steps: int, step_size: float | None) -> Station:
    alpha = BELOW * _admitted(tasks, steps) if step_size is None else step_size
    return Station(degrees, follow(rule_1, tasks, alpha, steps), follow(rule_2, tasks, alpha, steps))


def _admitted(tasks: TwoTasks, steps: int) -> float:
    """What theorem 1 admits; where the cosine is too small for that, what the other conditions do."""
    H, B, old = tasks.H.value, tasks.B.value, float(tasks.g_old.norm())
    return largest_step(tasks, steps) or min(largest_smooth_step(H), old / (H * B * steps))
