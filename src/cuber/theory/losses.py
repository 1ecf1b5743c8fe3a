"""Losses with the constants that the theorems ask for: proven where they can be, estimated elsewhere, and labelled.

A weight is ``out x d`` as everywhere; inputs are ``n x d``, so a task's gradient lies in the span of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

ENOUGH = 1e-6
FEWEST_PRODUCTS, MOST_PRODUCTS = 20, 100
"""Power iteration may stand still for a while before the largest eigenvalue takes over."""


@dataclass(frozen=True)
class Constant:
    """A Lipschitz or smoothness constant, and whether it is proven or only estimated from some points.

    >>> str(Constant(0.25, exact=True)), str(Constant(3.14159, exact=False))
    ('0.25 (exact)', '3.14 (estimated)')
    """

    value: float
    exact: bool

    def __str__(self) -> str:
        return f"{self.value:.3g} ({'exact' if self.exact else 'estimated'})"


@dataclass(frozen=True, eq=False)
class Loss:
    """A function of the weights and what is known of it.

    ``smoothness`` bounds how fast the gradient changes, ``lipschitz`` the gradient itself; a convex loss needs no
    ``lipschitz``, as gradient descent never raises the norm of its gradient.
    """

    value: Callable[[Tensor], Tensor]
    smoothness: Constant
    lipschitz: Constant | None = None
    convex: bool = False

    def __call__(self, weight: Tensor) -> float:
        return float(self.value(weight))

    def gradient(self, weight: Tensor) -> Tensor:
        """By automatic differentiation."""
        return gradient(self.value, weight)


def gradient(value: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    """Of a function of the weights, at some."""
    at = weight.detach().requires_grad_()
    (found,) = torch.autograd.grad(value(at), at)
    return found


# Exact


def least_squares(inputs: Tensor, targets: Tensor) -> Loss:
    """Half the mean squared error of a linear model: a convex quadratic."""
    value = lambda weight: (inputs @ weight.T - targets).square().sum(1).mean() / 2  # noqa: E731
    return Loss(value, Constant(_largest_energy(inputs), exact=True), convex=True)


def logistic(inputs: Tensor, labels: Tensor) -> Loss:
    """Logistic regression, with labels -1 and 1."""
    value = lambda weight: functional.softplus(-labels * (inputs @ weight.T)).mean()  # noqa: E731
    steepest = Constant(float(inputs.norm(dim=1).mean()), exact=True)
    return Loss(value, Constant(_largest_energy(inputs) / 4, exact=True), steepest, convex=True)


def _largest_energy(inputs: Tensor) -> float:
    """The largest eigenvalue of the inputs' second moments."""
    return float(torch.linalg.matrix_norm(inputs, 2) ** 2) / len(inputs)


# Estimated


def estimated(value: Callable[[Tensor], Tensor], points: Sequence[Tensor]) -> Loss:
    """A loss of which nothing is known: the largest curvature and gradient at some points. Elsewhere may be larger."""
    curvature = max(largest_curvature(value, point) for point in points)
    steepest = max(float(gradient(value, point).norm()) for point in points)
    return Loss(value, Constant(curvature, exact=False), Constant(steepest, exact=False))


def largest_curvature(value: Callable[[Tensor], Tensor], weight: Tensor) -> float:
    """The largest eigenvalue of the Hessian in absolute value, by power iteration on Hessian-vector products."""
    at = weight.detach().requires_grad_()
    (slope,) = torch.autograd.grad(value(at), at, create_graph=True)
    if not slope.requires_grad:  # linear in the weights
        return 0.0
    return power_iteration(lambda v: torch.autograd.grad(slope, at, v, retain_graph=True)[0], weight)


def power_iteration(
    product: Callable[[Tensor], Tensor], like: Tensor, enough: float = ENOUGH, fewest: int = FEWEST_PRODUCTS
) -> float:
    """The largest absolute eigenvalue of a symmetric matrix that is known by its products; from below.

    It ends, after ``fewest`` products at the earliest, when the estimate changes by less than the share ``enough``.
    The first vector is drawn from a generator of its own: nobody else's random numbers change.
    """
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    largest = 0.0
    for count in range(1, MOST_PRODUCTS + 1):
        vector = product(vector / vector.norm())
        before, largest = largest, float(vector.norm())
        if not largest or (count >= fewest and abs(largest - before) <= enough * largest):
            break
    return largest
