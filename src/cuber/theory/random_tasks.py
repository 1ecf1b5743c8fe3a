"""Two tasks drawn at random: the second is the first, turned by an angle out of what the first one sees.

At 0 degrees both tasks ask for the same weights on the same subspace, at 90 the second lives in directions that the
first never sees, at 180 it asks for the opposite. Samples and noise are each task's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cuber.errors import CuberError, unknown
from cuber.theory.losses import Constant, Loss, estimated, gradient, largest_curvature, least_squares, logistic
from cuber.theory.rules import TwoTasks

DIMENSION, RANK, SAMPLES, HIDDEN = 12, 4, 40, 6
NOISE = 0.1
POINTS = 4
"""Where a network's constants are estimated: so many steps along the new task's own descent."""


def draw(kind: str, degrees: float, seed: int = 0, old_steps: int = 2) -> TwoTasks:
    """Two tasks of a kind, at an angle; ``old_steps`` is how long the old one was learnt."""
    if kind not in KINDS:
        raise unknown("kind of task", kind, KINDS)
    if not math.isfinite(degrees) or not isinstance(old_steps, int) or old_steps < 0:
        raise CuberError(f"tasks take an angle and a number of old steps from 0, not {degrees:g} and {old_steps}")
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    frame = torch.linalg.qr(random(DIMENSION, 2 * RANK)).Q
    basis, partners = frame[:, :RANK], frame[:, RANK:]
    turned = math.cos(math.radians(degrees)) * basis + math.sin(math.radians(degrees)) * partners
    return KINDS[kind](random, basis, turned, old_steps)


Random = Callable[..., Tensor]


def _least_squares(random: Random, basis: Tensor, turned: Tensor, old_steps: int) -> TwoTasks:
    teacher = random(1, RANK)

    def task(subspace: Tensor) -> Loss:
        seen = random(SAMPLES, RANK)
        return least_squares(seen @ subspace.T, seen @ teacher.T + NOISE * random(SAMPLES, 1))

    old, new = task(basis), task(turned)
    return TwoTasks(old, new, descend(old, torch.zeros(1, DIMENSION).double(), old_steps), basis)


def _logistic(random: Random, basis: Tensor, turned: Tensor, old_steps: int) -> TwoTasks:
    teacher = random(1, RANK)

    def task(subspace: Tensor) -> Loss:
        seen = random(SAMPLES, RANK)
        return logistic(seen @ subspace.T, torch.sign(seen @ teacher.T + NOISE * random(SAMPLES, 1)))

    old, new = task(basis), task(turned)
    return TwoTasks(old, new, descend(old, torch.zeros(1, DIMENSION).double(), old_steps), basis)


def _network(random: Random, basis: Tensor, turned: Tensor, old_steps: int) -> TwoTasks:
    """A layer of tanh units whose outputs are added up: smooth, not convex, its constants only estimated."""
    teacher, signs = random(HIDDEN, RANK), torch.sign(random(HIDDEN)) / math.sqrt(HIDDEN)

    def task(subspace: Tensor) -> Callable[[Tensor], Tensor]:
        seen = random(SAMPLES, RANK)
        targets = torch.tanh(seen @ teacher.T) @ signs + NOISE * random(SAMPLES)
        inputs = seen @ subspace.T
        return lambda weight: (torch.tanh(inputs @ weight.T) @ signs - targets).square().mean() / 2

    old, new = task(basis), task(turned)
    first = random(HIDDEN, DIMENSION) / math.sqrt(DIMENSION)
    start = descend(_rough(old, first), first, old_steps)
    points = [start]
    for _ in range(POINTS):
        points.append(descend(_rough(new, points[-1]), points[-1], 1))
    return TwoTasks(estimated(old, points), estimated(new, points), start, basis)


KINDS = {"least-squares": _least_squares, "logistic": _logistic, "network": _network}


def descend(loss: Loss, weight: Tensor, steps: int) -> Tensor:
    """Plain gradient descent, with the largest step that is sure not to raise a convex loss's gradient."""
    for _ in range(steps):
        weight = weight - loss.gradient(weight) / loss.smoothness.value
    return weight


def _rough(value: Callable[[Tensor], Tensor], at: Tensor) -> Loss:
    """A loss with what one look at its curvature says; the gradient bounds it where it is flat."""
    curvature = max(largest_curvature(value, at), float(gradient(value, at).norm()))
    return Loss(value, Constant(2 * curvature, exact=False))
