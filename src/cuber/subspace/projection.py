"""Projections onto and away from the protected directions of a layer."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace.exact import in_float64

CLEARLY_FEWER = 0.9
"""The complement is used where it has at most this share of the columns: it takes up memory of its own."""


class Projector:
    """``G -> G - (G U) U'`` for an orthonormal ``U``, computed by its complement where that has fewer columns.

    >>> projector = Projector(torch.eye(3)[:, :1])
    >>> projector.outside(torch.ones(1, 3)), projector.inside(torch.ones(1, 3))
    (tensor([[0., 1., 1.]]), tensor([[1., 0., 0.]]))
    """

    def __init__(self, protected: Tensor) -> None:
        dimension, self.rank = protected.shape
        self.by_complement = dimension - self.rank < CLEARLY_FEWER * self.rank
        self._columns = complement(protected) if self.by_complement else protected
        self._direction: Tensor | None = None

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

    @property
    def direction(self) -> Tensor:
        """A random unit vector inside the protected directions."""
        if self._direction is None:
            drawn = torch.randn(1, len(self._columns), generator=torch.Generator().manual_seed(0)).to(self._columns)
            inside = self.inside(drawn)[0]
            self._direction = inside / inside.norm().clamp_min(1e-30)
        return self._direction

    def _along_columns(self, matrix: Tensor) -> Tensor:
        columns = self._columns
        return ((matrix.to(columns.dtype) @ columns) @ columns.mT).to(matrix.dtype)


def complement(basis: Tensor) -> Tensor:
    """Return an orthonormal basis (d x (d - K)) of everything orthogonal to ``basis``."""
    return torch.linalg.qr(in_float64(basis), mode="complete").Q[:, basis.shape[1] :].to(basis)
