"""Random pairs of tasks at an angle, and both rules on them at several angles, with the theorems at each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cuber.errors import CuberError, unknown
from cuber.theory.losses import Loss, Value, estimated, gradient, largest_curvature, least_squares, logistic
from cuber.theory.theorems import joint_loss_bounds, largest_step, old_loss_bounds, theorems
from cuber.theory.thresholds import largest_smooth_step
from cuber.theory.two_tasks import Trajectory, TwoTasks, follow, rule_1, rule_2

STEP_SIZE_FACTOR = 0.9
"""Default step size, relative to the limit of theorem 1."""
DIMENSION, RANK, SAMPLES, HIDDEN = 12, 4, 40, 6
NOISE = 0.1
MOST_ANGLES, MOST_STEPS = 1000, 10_000
"""Bounds on what a sweep computes and draws."""
LARGEST_STEP_SIZE = 1e6
"""The theorems allow less than 10 in these problems; with more than this, squares are soon infinite."""
POINTS = 4
"""Number of gradient steps on the new task at which the constants of a network are estimated."""

Random = Callable[..., Tensor]
"""Draws a standard normal tensor of a shape."""


def draw(kind: str, degrees: float, seed: int = 0, old_steps: int = 2) -> TwoTasks:
    """Draw two tasks at an angle.

    Args:
        kind: ``"least-squares"``, ``"logistic"`` or ``"network"`` (one layer of tanh units, not convex, with estimated
            constants).
        degrees: The angle. The inputs and the target weights of the second task are those of the first, rotated by it
            into directions in which the first task has no inputs: at 0 degrees both tasks have the same subspace and
            target weights, at 90 degrees orthogonal subspaces, at 180 degrees the same subspace and opposite target
            weights. Samples and noise differ.
        seed: Determines everything but the angle.
        old_steps: Number of gradient steps on the old task before the new one begins.
    """
    if kind not in KINDS:
        raise unknown("kind of task", kind, KINDS)
    if not math.isfinite(degrees) or not isinstance(old_steps, int) or old_steps < 0:
        raise CuberError(f"tasks take an angle and a number of old steps from 0, not {degrees:g} and {old_steps}")
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    frame = torch.linalg.qr(random(DIMENSION, 2 * RANK)).Q
    basis, complement = frame[:, :RANK], frame[:, RANK:]
    rotated = math.cos(math.radians(degrees)) * basis + math.sin(math.radians(degrees)) * complement
    return KINDS[kind](random, basis, rotated, old_steps)


def _linear(
    make: Callable[[Tensor, Tensor], Loss], random: Random, basis: Tensor, rotated: Tensor, old_steps: int
) -> TwoTasks:
    teacher = random(1, RANK)

    def task(subspace: Tensor) -> Loss:
        coordinates = random(SAMPLES, RANK)
        return make(coordinates @ subspace.T, coordinates @ teacher.T + NOISE * random(SAMPLES, 1))

    old, new = task(basis), task(rotated)
    start = _descend(old.value, torch.zeros(1, DIMENSION).double(), old.smoothness.value, old_steps)
    return TwoTasks(old, new, start, basis)


def _network(random: Random, basis: Tensor, rotated: Tensor, old_steps: int) -> TwoTasks:
    teacher, signs = random(HIDDEN, RANK), torch.sign(random(HIDDEN)) / math.sqrt(HIDDEN)

    def task(subspace: Tensor) -> Value:
        coordinates = random(SAMPLES, RANK)
        targets = torch.tanh(coordinates @ teacher.T) @ signs + NOISE * random(SAMPLES)
        inputs = coordinates @ subspace.T
        return lambda weight: (torch.tanh(inputs @ weight.T) @ signs - targets).square().mean() / 2

    def local_smoothness(value: Value, at: Tensor) -> float:
        """Twice the curvature at a point, or twice the gradient norm where the loss is flat."""
        return 2 * max(largest_curvature(value, at), float(gradient(value, at).norm()))

    old, new = task(basis), task(rotated)
    first = random(HIDDEN, DIMENSION) / math.sqrt(DIMENSION)
    points = [_descend(old, first, local_smoothness(old, first), old_steps)]
    for _ in range(POINTS):
        points.append(_descend(new, points[-1], local_smoothness(new, points[-1]), steps=1))
    return TwoTasks(estimated(old, points), estimated(new, points), points[0], basis)


def _descend(value: Value, weight: Tensor, smoothness: float, steps: int) -> Tensor:
    """Run gradient descent with step size ``1 / smoothness``."""
    for _ in range(steps):
        weight = weight - gradient(value, weight) / smoothness
    return weight


KINDS: dict[str, Callable[[Random, Tensor, Tensor, int], TwoTasks]] = {
    "least-squares": partial(_linear, least_squares),
    "logistic": partial(_linear, lambda inputs, outputs: logistic(inputs, outputs.sign())),
    "network": _network,
}


@dataclass(eq=False)
class AngleResult:
    """Paths of both rules at one angle, what the theorems say about that of rule 2, and what it gains.

    ``advantage`` is the final joint loss of rule 1 minus that of rule 2, relative to the initial joint loss;
    ``backward_transfer`` the relative decrease of the old task's loss under rule 2.
    """

    degrees: float
    by_rule_1: Trajectory
    by_rule_2: Trajectory

    def __post_init__(self) -> None:
        path = self.by_rule_2
        self.tasks = path.tasks
        self.theorem_1, _, self.theorem_2_1, self.theorem_2_2, self.theorem_2_2_sharper = theorems(path)
        self.joint_bounds, self.old_bounds = joint_loss_bounds(path), old_loss_bounds(path)
        self.advantage = (self.by_rule_1.joint_losses[-1] - path.joint_losses[-1]) / path.joint_losses[0]
        first, last = path.old_losses[0], path.old_losses[-1]
        self.backward_transfer = (first - last) / first if first else 0.0


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
    """Learn tasks of :func:`cuber.theory.draw` by both rules, ``steps`` steps at angles from 0 to 180 degrees.

    The default step size is 0.9 times the limit of theorem 1 at each angle, or of its other conditions where the
    cosine is too small for the theorem.
    """
    for value, least, most, what in (
        (angles, 2, MOST_ANGLES, "angles"),
        (steps, 1, MOST_STEPS, "steps"),
        (old_steps, 0, MOST_STEPS, "steps of the old task"),
    ):
        if not least <= value <= most:
            raise CuberError(f"a sweep takes {least} to {most:,} {what}, not {value}")
    if step_size is not None and not 0 < step_size <= LARGEST_STEP_SIZE:
        raise CuberError(f"the step size must be above 0 and at most {LARGEST_STEP_SIZE:g}, not {step_size:g}")
    results = []
    for place in range(angles):
        degrees = 180.0 * place / (angles - 1)
        tasks = draw(kind, degrees, seed, old_steps)
        alpha = STEP_SIZE_FACTOR * _step_limit(tasks, steps) if step_size is None else step_size
        by_rule_1, by_rule_2 = (follow(rule, tasks, alpha, steps) for rule in (rule_1, rule_2))
        results.append(AngleResult(degrees, by_rule_1, by_rule_2))
    return Sweep(kind, seed, steps, results)


def _step_limit(tasks: TwoTasks, steps: int) -> float:
    H, B = tasks.H.value, tasks.B.value
    return largest_step(tasks, steps) or min(largest_smooth_step(H), tasks.norms[0] / (H * B * steps))
