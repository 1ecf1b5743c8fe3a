"""Random pairs of tasks at an angle.

The inputs and the target weights of the second task are those of the first, rotated by the angle into directions in
which the first task has no inputs. At 0 degrees both tasks have the same subspace and target weights, at 90 degrees
orthogonal subspaces, and at 180 degrees the same subspace and opposite target weights. Samples and noise differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cuber.errors import CuberError, unknown
from cuber.theory.losses import Constant, Loss, Value, estimated, gradient, largest_curvature, least_squares, logistic
from cuber.theory.two_tasks import TwoTasks

DIMENSION, RANK, SAMPLES, HIDDEN = 12, 4, 40, 6
NOISE = 0.1
POINTS = 4
"""Number of gradient steps on the new task at which the constants of a network are estimated."""

Random = Callable[..., Tensor]
"""Draws a standard normal tensor of a shape."""


def draw(kind: str, degrees: float, seed: int = 0, old_steps: int = 2) -> TwoTasks:
    """Draw two tasks.

    Args:
        kind: ``"least-squares"``, ``"logistic"`` or ``"network"`` (one layer of tanh units, not convex, with estimated
            constants).
        degrees: Angle between the tasks.
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
    return TwoTasks(old, new, descend(old, torch.zeros(1, DIMENSION).double(), old_steps), basis)


def _network(random: Random, basis: Tensor, rotated: Tensor, old_steps: int) -> TwoTasks:
    teacher, signs = random(HIDDEN, RANK), torch.sign(random(HIDDEN)) / math.sqrt(HIDDEN)

    def task(subspace: Tensor) -> Value:
        coordinates = random(SAMPLES, RANK)
        targets = torch.tanh(coordinates @ teacher.T) @ signs + NOISE * random(SAMPLES)
        inputs = coordinates @ subspace.T
        return lambda weight: (torch.tanh(inputs @ weight.T) @ signs - targets).square().mean() / 2

    old, new = task(basis), task(rotated)
    first = random(HIDDEN, DIMENSION) / math.sqrt(DIMENSION)
    start = descend(_with_local_smoothness(old, first), first, old_steps)
    points = [start]
    for _ in range(POINTS):
        points.append(descend(_with_local_smoothness(new, points[-1]), points[-1], 1))
    return TwoTasks(estimated(old, points), estimated(new, points), start, basis)


KINDS: dict[str, Callable[[Random, Tensor, Tensor, int], TwoTasks]] = {
    "least-squares": partial(_linear, least_squares),
    "logistic": partial(_linear, lambda inputs, outputs: logistic(inputs, outputs.sign())),
    "network": _network,
}


def descend(loss: Loss, weight: Tensor, steps: int) -> Tensor:
    """Run gradient descent with step size ``1 / smoothness``."""
    for _ in range(steps):
        weight = weight - loss.gradient(weight) / loss.smoothness.value
    return weight


def _with_local_smoothness(value: Value, at: Tensor) -> Loss:
    """Return a loss with twice the curvature at a point, or twice the gradient norm where the loss is flat."""
    curvature = max(largest_curvature(value, at), float(gradient(value, at).norm()))
    return Loss(value, Constant(2 * curvature, exact=False))
