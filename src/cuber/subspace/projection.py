"""Taking the protected directions out of a gradient or an update."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace.exact import in_float64

CLEARLY_FEWER = 0.9
"""The complement takes up memory, which a little time saved is not worth."""


class Projector:
    """``G -> G - (G U) U'`` for an orthonormal ``U``, or by its complement, where that has clearly fewer columns.

    >>> outside = Projector(torch.eye(3)[:, :1])
    >>> outside(torch.ones(1, 3))
    tensor([[0., 1., 1.]])
    """

    def __init__(self, protected: Tensor) -> None:
        dimension, self.rank = protected.shape
        self.by_complement = dimension - self.rank < CLEARLY_FEWER * self.rank
        self._columns = complement(protected) if self.by_complement else protected
        # By the complement there are two products, but with the same columns: the second time they are in the cache.
        worth_knowing = not self.by_complement or self.rank < 1.5 * self.columns
        self._protected = protected if worth_knowing else None
        self._probes: tuple[Tensor, Tensor] | None = None

    def __call__(self, matrix: Tensor) -> Tensor:
        """The part of each row of ``matrix`` that lies outside the protected directions."""
        if self.rank == 0:
            return matrix
        columns = self._columns
        if self.by_complement and self.columns == 0:
            return torch.zeros_like(matrix)
        inside = ((matrix.to(columns.dtype) @ columns) @ columns.T).to(matrix.dtype)
        return inside if self.by_complement else matrix - inside

    def fits(self, matrix: Tensor) -> bool:
        """Whether a matrix is of the kind that it multiplies with."""
        return matrix.dtype == self._columns.dtype and matrix.device == self._columns.device

    def in_place(self, matrix: Tensor) -> None:
        """The same, where it lies: without another matrix as large as it."""
        if self.rank and not self.columns:
            matrix.zero_()
        elif self.rank and self.by_complement:
            torch.mm(matrix @ self._columns, self._columns.T, out=matrix)
        elif self.rank:
            matrix.addmm_(matrix @ self._columns, self._columns.T, alpha=-1)

    @property
    def asks(self) -> bool:
        """Whether it is any shorter to project where ``matrix U`` is known."""
        return self._protected is not None

    def knowing(self, matrix: Tensor, inside: Tensor) -> Tensor:
        """The same where ``matrix U`` is known, if it asks for that."""
        if self._protected is None:
            return self(matrix)
        return torch.addmm(matrix, inside, self._protected.to(matrix).T, alpha=-1)

    @property
    def columns(self) -> int:
        """How many columns it multiplies with: its cost."""
        return self._columns.shape[1]

    @property
    def probes(self) -> tuple[Tensor, Tensor]:
        """Two directions: one drawn from the protected ones, one from the others."""
        if self._probes is None:
            drawn = torch.randn(2, len(self._columns), generator=torch.Generator().manual_seed(0)).to(self._columns)
            outside = self(drawn)
            inside = drawn - outside
            self._probes = inside[0] / inside[0].norm(), outside[1] / outside[1].norm().clamp_min(1e-30)
        return self._probes

    def passes(self, inside: Tensor, outside: Tensor) -> bool:
        """Whether a matrix has nothing to take out, judged by its products with the probes."""
        allowed = torch.finfo(inside.dtype).eps
        return bool(inside.dot(inside).item() <= allowed * outside.dot(outside).item())


def complement(basis: Tensor) -> Tensor:
    """An orthonormal basis (d x (d - K)) of everything orthogonal to ``basis``."""
    return torch.linalg.qr(in_float64(basis), mode="complete").Q[:, basis.shape[1] :].to(basis)
