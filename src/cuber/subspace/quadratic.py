"""The losses of old tasks as a function of one layer's weight, to second order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.precision import in_float64


@dataclass
class QuadraticModel:
    """The sum of old losses near the present weight W: ``<g, D> + c / 2 tr(D A D')`` after a displacement D.

    ``A`` sums the second moments of the inputs of all old tasks, each with a mean eigenvalue of 1, so that c has the
    same meaning in every layer. ``g`` sums the gradients of old losses, and follows the weight: after a displacement
    the model says that it is ``g + c D A``.

    Args:
        gradient: g, out x d.
        moments: A, d x d.

    >>> model = QuadraticModel.empty(1, 2, like=torch.zeros(1))
    >>> model.add(torch.tensor([[1.0, 0.0]]), torch.diag(torch.tensor([3.0, 1.0])))
    >>> model.gradient_at(torch.tensor([[1.0, 1.0]]), curvature=2.0)
    tensor([[4., 1.]])
    """

    gradient: Tensor
    moments: Tensor

    @classmethod
    def empty(cls, outputs: int, dimension: int, *, like: Tensor) -> QuadraticModel:
        """Return the model of no task, for a weight ``like``."""
        new = torch.promote_types(like.dtype, torch.float32)
        return cls(like.new_zeros(outputs, dimension, dtype=new), like.new_zeros(dimension, dimension, dtype=new))

    def add(self, gradient: Tensor, moments: Tensor) -> None:
        """Add a task that has just been learned: the gradient of its loss, and the sum of ``x x'`` over its inputs."""
        size = float(moments.trace()) / len(moments)
        self.gradient = self.gradient + gradient.to(self.gradient)
        if size > 0:
            self.moments = self.moments + (moments / size).to(self.moments)

    def gradient_at(self, displacement: Tensor, curvature: float) -> Tensor:
        """Return ``g + c D A``."""
        return self.gradient + curvature * (displacement.to(self.moments) @ self.moments)

    def value(self, displacement: Tensor, curvature: float) -> Tensor:
        """Return by how much a displacement changes the sum of old losses."""
        displacement = displacement.to(self.moments)
        bent = displacement @ self.moments
        return (self.gradient * displacement).sum() + curvature / 2 * (bent * displacement).sum()

    def move(self, displacement: Tensor, curvature: float) -> None:
        """Expand the model at the weight that the displacement leads to."""
        self.gradient = self.gradient_at(displacement, curvature)

    def filter(self, lam: float) -> Tensor:
        """Return ``P = (I + A / lam)^-1``, by which updates are multiplied: what old inputs need hardly moves."""
        moments = in_float64(self.moments)
        identity = torch.eye(len(moments), dtype=moments.dtype, device=moments.device)
        return torch.cholesky_inverse(torch.linalg.cholesky(identity + moments / lam)).to(self.moments)
