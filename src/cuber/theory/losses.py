"""Losses with the constants that the theorems need, either proven or estimated.

A weight is ``out x d`` and inputs are ``n x d``, so the gradient of a task lies in the span of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

MAX_ITERATIONS = 100

Value = Callable[[Tensor], Tensor]
"""A loss as a function of the weight."""


@dataclass(frozen=True)
class Constant:
    """A Lipschitz or smoothness constant, and whether it is proven (``exact``) or estimated."""

    value: float
    exact: bool

    def __str__(self) -> str:
        return f"{self.value:.3g} ({'exact' if self.exact else 'estimated'})"


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss as a function of the weight, and its constants.

    ``smoothness`` is the Lipschitz constant of the gradient, ``lipschitz`` a bound on its norm, which a convex loss
    does not need: gradient descent then never increases the norm of its gradient.
    """

    value: Value
    smoothness: Constant
    lipschitz: Constant | None = None
    convex: bool = False

    def __call__(self, weight: Tensor) -> float:
        return float(self.value(weight))

    def gradient(self, weight: Tensor) -> Tensor:
        """Return the gradient at a weight."""
        return gradient(self.value, weight)


def gradient(value: Value, weight: Tensor) -> Tensor:
    """Return the gradient of a function at a weight."""
    at = weight.detach().requires_grad_()
    return torch.autograd.grad(value(at), at)[0]


def least_squares(inputs: Tensor, targets: Tensor) -> Loss:
    """Return half the mean squared error of a linear model, with proven constants."""
    smoothness = Constant(_largest_eigenvalue(inputs), exact=True)
    return Loss(lambda weight: (inputs @ weight.T - targets).square().sum(1).mean() / 2, smoothness, convex=True)


def logistic(inputs: Tensor, labels: Tensor) -> Loss:
    """Return the loss of logistic regression with labels -1 and 1, with proven constants."""
    value = lambda weight: functional.softplus(-labels * (inputs @ weight.T)).mean()  # noqa: E731
    lipschitz = Constant(float(inputs.norm(dim=1).mean()), exact=True)
    return Loss(value, Constant(_largest_eigenvalue(inputs) / 4, exact=True), lipschitz, convex=True)


def _largest_eigenvalue(inputs: Tensor) -> float:
    """Return the largest eigenvalue of the second-moment matrix of the inputs."""
    return float(torch.linalg.matrix_norm(inputs, 2) ** 2) / len(inputs)


def estimated(value: Value, points: Sequence[Tensor]) -> Loss:
    """Return a loss with the largest curvature and gradient norm at some points, lower bounds of its constants."""
    curvature = max(largest_curvature(value, point) for point in points)
    steepest = max(float(gradient(value, point).norm()) for point in points)
    return Loss(value, Constant(curvature, exact=False), Constant(steepest, exact=False))


def largest_curvature(value: Value, weight: Tensor) -> float:
    """Return the largest absolute eigenvalue of the Hessian, by power iteration on Hessian-vector products."""
    at = weight.detach().requires_grad_()
    (slope,) = torch.autograd.grad(value(at), at, create_graph=True)
    if not slope.requires_grad:  # linear in the weight
        return 0.0
    return power_iteration(lambda v: torch.autograd.grad(slope, at, v, retain_graph=True)[0], weight)


def power_iteration(
    product: Callable[[Tensor], Tensor], like: Tensor, tolerance: float = 1e-6, min_iterations: int = 20
) -> float:
    """Estimate the largest absolute eigenvalue of a symmetric matrix from below.

    ``product`` multiplies the matrix by a vector shaped like ``like``. The iteration stops where the estimate changes
    by less than the relative tolerance, but not before ``min_iterations``: it may stall before it converges.
    """
    generator = torch.Generator().manual_seed(0)  # leaves the global random state unchanged
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    largest = 0.0
    for count in range(1, MAX_ITERATIONS + 1):
        vector = product(vector / vector.norm())
        before, largest = largest, float(vector.norm())
        if not largest or (count >= min_iterations and abs(largest - before) <= tolerance * largest):
            break
    return largest
