"""Where the weight of a layer may move during a task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.gram import WIDE, complement
from cuber.subspace.memory import columns
from cuber.subspace.penalty import Penalty
from cuber.subspace.quadratic import SoftProjector

CLEARLY_FEWER = 0.9
"""The complement is used where it has at most this share of the columns: it takes up memory of its own.

Never in wide layers: to compute it, a d x d matrix is needed."""


class Projector:
    """``G -> G - (G U) U'`` for an orthonormal ``U``, computed by its complement where that has fewer columns.

    >>> projector = Projector(torch.eye(3)[:, :1])
    >>> projector.outside(torch.ones(1, 3)), projector.inside(torch.ones(1, 3))
    (tensor([[0., 1., 1.]]), tensor([[1., 0., 0.]]))
    """

    def __init__(self, protected: Tensor) -> None:
        dimension, self.rank = protected.shape
        self.by_complement = dimension <= WIDE and dimension - self.rank < CLEARLY_FEWER * self.rank
        self._columns = complement(protected) if self.by_complement else protected

    @property
    def columns(self) -> int:
        """Number of columns it multiplies with: its cost."""
        return self._columns.shape[1]

    def outside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that lies outside the protected directions."""
        if self.by_complement:
            return self._along_columns(matrix)
        return matrix - self._along_columns(matrix) if self.rank else matrix

    def inside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that lies inside the protected directions."""
        return matrix - self._along_columns(matrix) if self.by_complement else self._along_columns(matrix)

    def project_(self, matrix: Tensor) -> None:
        """Keep the part outside, in place: gradients are as large as weights."""
        if matrix.dtype != self._columns.dtype:
            matrix.copy_(self.outside(matrix))
        elif self.by_complement:
            torch.mm(matrix @ self._columns, self._columns.mT, out=matrix)
        elif self.rank:
            matrix.addmm_(matrix @ self._columns, self._columns.mT, alpha=-1)

    def _along_columns(self, matrix: Tensor) -> Tensor:
        columns = self._columns
        return ((matrix.to(columns.dtype) @ columns) @ columns.mT).to(matrix.dtype)


@dataclass
class Anchor:
    """A weight in the coordinates of the pool, out x K: all that protecting it needs."""

    start: Tensor
    """When the task began."""
    target: Tensor
    """Where protected columns are held: ``start``, but for columns that were free and became protected later."""

    @classmethod
    def of(cls, weight: Tensor, basis: Tensor) -> Anchor:
        """Anchor a weight where it is now."""
        along = coordinates(weight, basis)
        return cls(along, along)

    def hold(self, weight: Tensor, columns: Tensor, basis: Tensor) -> None:
        """Hold some columns (by index) where the weight is along them now."""
        self.target = _with_columns(self.target, columns, coordinates(weight, basis[:, columns]))


class Constraint:
    """The protected columns of a pool, the columns that were free when the task began, and the penalty on these.

    Args:
        basis: U, d x K.
        protected: which columns the weight must not move along now, K.
        free: which columns it was allowed to move along when the task began, K.
        anchor: the weight when the task began.
        penalty: on the displacement along the free columns.
        projector: what is removed from gradients (default: their part along the protected columns).
        anchored: whether scalings read the weight where it is anchored, as a constant along protected columns.
    """

    def __init__(
        self,
        basis: Tensor,
        protected: Tensor,
        free: Tensor,
        anchor: Anchor,
        penalty: Penalty | None = None,
        projector: SoftProjector | None = None,
        anchored: bool = True,
    ) -> None:
        self.basis = basis
        self.anchored = anchored
        self.anchor = anchor
        self.penalty = penalty
        self.protected_columns = protected
        self.soft = projector
        self.projector = projector or Projector(self.protected)
        self.free = columns(basis, free)
        """d x f."""
        self.free_columns = free.nonzero().flatten()
        self.movable = ~protected[free]
        """Which of the free columns are still free, f."""
        self.free_start = anchor.start.index_select(1, self.free_columns)

    @property
    def protected(self) -> Tensor:
        """The protected columns, d x p."""
        return columns(self.basis, self.protected_columns)

    @property
    def held(self) -> Tensor:
        """What the weight is held to along them, out x p."""
        return columns(self.anchor.target, self.protected_columns)

    def inside(self, gradient: Tensor) -> Tensor:
        """Return what a gradient must lose: ``(G U) U'``, or what a soft projector removes."""
        if self.soft is not None:
            return self.soft.inside(gradient)
        protected = self.protected.to(gradient)
        return (gradient @ protected) @ protected.mT

    def along(self, weight: Tensor) -> Tensor:
        """Return the weight in the pool's coordinates: as anchored, and as it is along the free columns."""
        if not len(self.free_columns):
            return self.anchor.start
        return _with_columns(self.anchor.start, self.free_columns, coordinates(weight, self.free))

    def displacement(self, weight: Tensor) -> Tensor:
        """Return how far the weight has moved along the free columns, out x f."""
        return (coordinates(weight, self.free) - self.free_start).to(self.free_start)

    def restored(self, weight: Tensor) -> Tensor:
        """Return the weight, back where it is held along the protected columns."""
        protected = self.protected
        drift = coordinates(weight, protected) - self.held
        return (weight - drift @ protected.mT.to(drift)).to(weight)


def coordinates(weight: Tensor, basis: Tensor) -> Tensor:
    """Return ``W B`` in the wider of both types."""
    wide = torch.promote_types(weight.dtype, basis.dtype)
    return weight.to(wide) @ basis.to(wide)


def _with_columns(matrix: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return a matrix with other values in some columns, in the wider type: the model may have changed its type."""
    wide = torch.promote_types(matrix.dtype, values.dtype)
    return matrix.to(wide).index_copy(1, columns, values.to(wide))
