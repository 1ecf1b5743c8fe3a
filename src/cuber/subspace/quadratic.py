"""The losses of old tasks as a function of one layer's weight, to second order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.precision import in_float64

NEGLIGIBLE = 0.01
"""Curvatures below this share of lam are dropped: an update along them would lose less than this share."""
SMALLEST_OUTPUT = 1e-3
"""Bound on the size of a layer's outputs, relative to inputs times a weight with entries of 1 / sqrt(d): some are 0."""


@dataclass
class QuadraticModel:
    """The sum of old losses near the present weight W: ``<g, D> + 1/2 tr(D H D')`` after a displacement D.

    ``H = V diag(h) V'`` sums over old tasks c times the second moments of their inputs, each divided by the mean
    squared length of the layer's outputs: ``tr(D H D')`` is c times the relative change of what the layer computed for
    them, so that c has the same meaning in every layer. ``g`` sums the gradients of old losses, and follows the weight:
    after a displacement the model says that it is ``g + D H``.

    Args:
        gradient: g, out x d.
        directions: V, d x r, orthonormal.
        curvatures: h, r.

    >>> model = QuadraticModel.empty(1, 2, like=torch.zeros(1))
    >>> inputs, weight = torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([[1.0, 1.0]])
    >>> model.add(torch.tensor([[1.0, 0.0]]), 8.0 * inputs, weight, curvature=4.0, lam=1.0)
    >>> model.gradient_at(torch.tensor([[1.0, 1.0]]))
    tensor([[4., 1.]])
    """

    gradient: Tensor
    directions: Tensor
    curvatures: Tensor

    @classmethod
    def empty(cls, outputs: int, dimension: int, *, like: Tensor) -> QuadraticModel:
        """Return the model of no task, for a weight ``like``."""
        zeros = like.new_zeros(outputs, dimension, dtype=torch.promote_types(like.dtype, torch.float32))
        return cls(zeros, zeros.new_zeros(dimension, 0), zeros.new_zeros(0))

    def add(self, gradient: Tensor, moments: Tensor, weight: Tensor, curvature: float, lam: float) -> None:
        """Add a task that has just been learned.

        Args:
            gradient: of its loss.
            moments: the sum of ``x x'`` over its inputs, d x d.
            weight: at which it was learned.
            curvature: c.
            lam: with which the model will be used.
        """
        self.gradient = self.gradient + gradient.to(self.gradient)
        moments, weight = in_float64(moments), in_float64(weight)
        usual = len(weight) / len(moments) * float(moments.trace())
        size = max(float((weight @ moments * weight).sum()), SMALLEST_OUTPUT * usual)
        if not size > 0:
            return
        directions = self.directions.to(moments)
        total = (directions * self.curvatures.to(directions)) @ directions.mT + (curvature / size) * moments
        curvatures, directions = torch.linalg.eigh(total)
        kept = curvatures > NEGLIGIBLE * lam
        self.directions, self.curvatures = directions[:, kept].to(self.gradient), curvatures[kept].to(self.gradient)

    def gradient_at(self, displacement: Tensor) -> Tensor:
        """Return ``g + D H``."""
        return self.gradient + self.bent(displacement)

    def bent(self, displacement: Tensor) -> Tensor:
        """Return ``D H``."""
        along = displacement.to(self.directions) @ self.directions
        return (along * self.curvatures) @ self.directions.mT

    def damped_gradient(self, damping: float) -> Tensor:
        """Return ``g H (H + damping I)^-1``, the part of g that is followed.

        Along directions without curvature g has no minimum, and following it would never end. With this in its place,
        the minimum is at ``-g (H + damping I)^-1``, nowhere far away.

        Args:
            damping: curvature below which g is hardly followed.
        """
        shares = self.curvatures / (self.curvatures + damping)
        return (self.gradient @ self.directions * shares) @ self.directions.mT

    def value(self, displacement: Tensor, damping: float = 0.0) -> Tensor:
        """Return by how much a displacement changes the sum of old losses.

        With ``damping``, return instead the function whose gradient has :meth:`damped_gradient` in place of g.
        """
        along = displacement.to(self.directions) @ self.directions
        bent = (along.square() @ self.curvatures).sum() / 2
        if not damping:
            return (self.gradient * displacement).sum() + bent
        return (self.damped_gradient(damping) * displacement).sum() + bent

    def move(self, displacement: Tensor) -> None:
        """Expand the model at the weight that the displacement leads to."""
        self.gradient = self.gradient_at(displacement)

    def filter(self, lam: float) -> SoftProjector:
        """Return ``P = (I + H / lam)^-1``, by which updates are multiplied: what old inputs need hardly moves.

        What it removes is ``I - P = H P / lam``.
        """
        return SoftProjector(self.directions, self.curvatures / (self.curvatures + lam))


class DampedGradient:
    """The gradient of a model after a displacement, ``damped g + D H``, without and with P.

    It is needed every few steps of a task: what does not depend on D is computed once.

    Args:
        model: it must not change.
        damping: as in :meth:`QuadraticModel.damped_gradient`.
        lam: of P.
    """

    def __init__(self, model: QuadraticModel, damping: float, lam: float) -> None:
        self._model, self._lam = model, lam
        self._start = model.damped_gradient(damping)
        self.projector = model.filter(lam)

    def at(self, displacement: Tensor) -> Tensor:
        """Return ``damped g + D H``."""
        return self._start + self._model.bent(displacement)

    def filtered_at(self, displacement: Tensor) -> Tensor:
        """Return ``(damped g + D H) P``, at the cost of one projection: ``H P`` is ``lam (I - P)``."""
        return self._start + self.projector.inside(self._lam * displacement - self._start)


class SoftProjector:
    """``G -> G - (G V) diag(s) V'`` for an orthonormal ``V`` and shares s from 0 (free) to 1 (protected).

    >>> projector = SoftProjector(torch.eye(3)[:, :1], torch.tensor([0.75]))
    >>> projector.outside(torch.ones(1, 3))
    tensor([[0.2500, 1.0000, 1.0000]])
    """

    def __init__(self, basis: Tensor, shares: Tensor) -> None:
        dimension, self.rank = basis.shape
        weighted = basis * shares
        self._factors = [weighted @ basis.mT] if 2 * self.rank > dimension else [basis, weighted.mT]
        """Whose product is ``V diag(s) V'``: itself, or where that is less work, two factors."""

    @property
    def columns(self) -> float:
        """Number of columns it multiplies with, there and back: its cost."""
        return len(self._factors[0]) / 2 if len(self._factors) == 1 else self.rank

    def outside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that is free."""
        return matrix - self.inside(matrix) if self.rank else matrix

    def inside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that is protected."""
        result = matrix.to(self._factors[0])
        for factor in self._factors:
            result = result @ factor
        return result.to(matrix)

    def project_(self, matrix: Tensor) -> None:
        """Keep the part that is free, in place."""
        if self.rank:
            matrix.sub_(self.inside(matrix))
