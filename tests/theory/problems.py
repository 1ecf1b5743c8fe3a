"""Random pairs of tasks with proven constants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cuber.theory import Constant, Loss, TwoTasks, least_squares, logistic

D, RANK, SAMPLES = 5, 3, 8
Make = Callable[[Tensor, Tensor], Loss]


def periodic(inputs: Tensor, targets: Tensor) -> Loss:
    """``mean(1 - cos(x w - y))``: smooth, not convex, with known constants."""
    smoothness = float(torch.linalg.matrix_norm(inputs, 2) ** 2) / len(inputs)
    lipschitz = float(inputs.norm(dim=1).mean())
    return Loss(
        lambda weight: (1 - torch.cos(inputs @ weight.T - targets)).mean(),
        Constant(smoothness, exact=True),
        Constant(lipschitz, exact=True),
    )


def signed(inputs: Tensor, targets: Tensor) -> Loss:
    return logistic(inputs, torch.where(targets > 0, 1.0, -1.0).double())


MAKERS: dict[str, Make] = {"quadratic": least_squares, "logistic": signed, "periodic": periodic}


def two_tasks(kind: str, seed: int, *, inside: bool = True) -> TwoTasks:
    """A partly learned old task, and a new one with other inputs.

    ``inside``: the basis spans what the old task sees; else it is any subspace.
    """
    generator = torch.Generator().manual_seed(seed)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    basis = torch.linalg.qr(random(D, RANK)).Q
    teacher = random(1, D)
    x_old = random(SAMPLES, RANK) @ basis.T
    x_new = random(SAMPLES, RANK) @ basis.T + 0.3 * float(random(1)) * random(SAMPLES, D)
    make = MAKERS[kind]
    old = make(x_old, x_old @ teacher.T + 0.3 * random(SAMPLES, 1))
    new = make(x_new, x_new @ (teacher + 0.3 * random(1, D)).T)
    start = torch.zeros(1, D, dtype=torch.float64)
    for _ in range(int(torch.randint(1, 5, (), generator=generator))):
        start = start - 0.5 * old.gradient(start) / old.smoothness.value
    return TwoTasks(old, new, start, basis if inside else torch.linalg.qr(random(D, RANK)).Q)


def line(curvature: float, lowest_at: float) -> Loss:
    """A parabola of one weight."""
    return Loss(
        lambda weight: curvature / 2 * (weight - lowest_at).square().sum(), Constant(curvature, exact=True), convex=True
    )


def at(*weights: float) -> Tensor:
    """A weight with one row."""
    return torch.tensor([weights], dtype=torch.float64)
