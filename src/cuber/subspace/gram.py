"""The Gram matrix of a layer's input vectors, from which bases are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cuber.subspace.precision import in_float64

NUMBERS_AT_ONCE = 2**21
"""Numbers converted to float64 at a time: enough for fast products, few enough not to fill memory."""
COARSE = 1e-3
"""Bound on the share of the energy that counts as rounding: vectors in bfloat16 mean something all the same."""
WIDE = 4000
"""Layers with more inputs get no d x d matrix: a sketch is then faster than an eigenproblem, and far smaller."""


class Residual(NamedTuple):
    """What a basis leaves unexplained of the input vectors, direction by direction."""

    energies: Tensor
    """Descending."""
    directions: Callable[[int], Tensor]
    """Count k -> the first k directions (d x k, orthonormal, orthogonal to the basis); most are never needed."""


class Gram:
    """The sum ``M`` of ``x x'`` over input vectors x, in float64, accumulated batch by batch.

    While fewer vectors than dimensions have been seen it keeps the vectors themselves (m x d is then the smaller
    of the two, and so is its eigenproblem); after that, only the d x d sum.

    >>> gram = Gram(3)
    >>> gram.add(torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]]))
    >>> gram.energy
    25.0
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.count = 0
        self.sum: Tensor | float = 0.0
        """Of all vectors, d."""
        self.precision = 0.0
        """Relative rounding error of the vectors' coarsest dtype."""
        self._vectors: list[Tensor] = []
        self._matrix: Tensor | None = None

    @classmethod
    def of(cls, matrix: Tensor, total: Tensor, count: int, precision: float) -> Gram:
        """Return the Gram matrix of vectors of which all this is known."""
        gram = cls(len(matrix))
        gram._matrix, gram.sum, gram.count, gram.precision = matrix, total, count, precision
        return gram

    def add(self, vectors: Tensor) -> None:
        """Add the rows of ``vectors`` (m x d)."""
        for part in vectors.split(max(self.dimension, NUMBERS_AT_ONCE // self.dimension)):
            self.note(part)
            self._add(in_float64(part))

    def note(self, vectors: Tensor) -> None:
        """Count vectors, and add them to what is known besides the matrix."""
        self.count += len(vectors)
        self.sum = in_float64(vectors).sum(0) + self.sum
        self.precision = max(self.precision, torch.finfo(vectors.dtype).eps)

    def _add(self, vectors: Tensor) -> None:
        if self._matrix is None and not self._vectors and len(vectors) >= self.dimension:
            self._matrix = vectors.new_zeros(self.dimension, self.dimension)
        if self._matrix is not None:
            self._matrix.addmm_(vectors.T, vectors)
            return
        self._vectors.append(vectors.clone())
        if self.count >= self.dimension:
            self._matrix = self.matrix
            self._vectors = []

    @property
    def vectors(self) -> Tensor:
        """The vectors themselves, m x d, while they are fewer than dimensions."""
        return torch.cat(self._vectors)

    @property
    def matrix(self) -> Tensor:
        """M itself, d x d."""
        if self._matrix is not None:
            return self._matrix
        vectors = self.vectors
        return vectors.T @ vectors

    @property
    def energy(self) -> float:
        """The trace of M: the summed squared length of all vectors."""
        if self._matrix is not None:
            return float(self._matrix.trace())
        return float(sum(vectors.square().sum() for vectors in self._vectors))

    @property
    def variance(self) -> float:
        """The energy of the vectors without their mean."""
        return max(0.0, self.energy - float(torch.as_tensor(self.sum).square().sum()) / self.count)

    @property
    def rounding(self) -> float:
        """Share of the energy that may be rounding of the vectors themselves, in all directions together."""
        return max(self._rounding, min(self.dimension * self.precision**2, COARSE))

    def along(self, basis: Tensor) -> Tensor:
        """Return the energy that each column of ``basis`` explains, ``u' M u``."""
        basis = self._like_data(basis)
        if self._matrix is not None:
            return (basis * (self._matrix @ basis)).sum(0)
        return (self.vectors @ basis).square().sum(0)

    def within(self, basis: Tensor) -> Tensor:
        """Return ``B' M B``."""
        basis = self._like_data(basis)
        if self._matrix is not None:
            return basis.T @ self._matrix @ basis
        coordinates = self.vectors @ basis
        return coordinates.T @ coordinates

    def residual(self, basis: Tensor) -> Residual:
        """Return what ``basis`` leaves unexplained."""
        residual = self._residual(basis)
        # What rounding alone can produce is not a direction of the data.
        real = residual.energies > self.energy * self._rounding
        count = min(int(real.sum()), self.dimension - basis.shape[1])
        return residual._replace(energies=residual.energies[:count])

    def _residual(self, basis: Tensor) -> Residual:
        basis = self._like_data(basis)
        if self._matrix is not None:
            return _outside(self._matrix, basis)
        return left_over(self.vectors, basis)

    @property
    def _rounding(self) -> float:
        """Share of the energy that rounding can move into a direction without any."""
        return self.dimension * torch.finfo(torch.float64).eps

    def _like_data(self, basis: Tensor) -> Tensor:
        data = self._matrix if self._matrix is not None else self._vectors[0]
        return basis.to(data)


def _outside(matrix: Tensor, basis: Tensor) -> Residual:
    """Return the residual of a Gram matrix, from its eigenvectors outside ``basis``."""
    if not basis.shape[1]:
        energies, directions = descending(matrix)
        return Residual(energies, lambda count: directions[:, :count])
    outside = complement(basis)
    rest = outside.T @ matrix @ outside
    energies, combinations = descending((rest + rest.T) / 2)
    return Residual(energies, lambda count: outside @ combinations[:, :count])


def left_over(vectors: Tensor, basis: Tensor) -> Residual:
    """Return the residual of few vectors, as combinations of what ``basis`` leaves of them."""
    rest = vectors - (vectors @ basis) @ basis.T if basis.shape[1] else vectors
    energies, combinations = descending(rest @ rest.T)

    def directions(count: int) -> Tensor:
        # Made by a division, those of little energy are neither quite orthogonal to the basis nor to others.
        found = rest.T @ combinations[:, :count] / energies[:count].sqrt()
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            found = torch.linalg.qr(found - basis @ (basis.T @ found)).Q
        return found

    return Residual(energies, directions)


def descending(symmetric: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors, the largest first."""
    energies, directions = torch.linalg.eigh(symmetric)
    return energies.flip(0), directions.flip(1)


def complement(basis: Tensor) -> Tensor:
    """Return an orthonormal basis (d x (d - K)) of everything orthogonal to ``basis``."""
    return torch.linalg.qr(in_float64(basis), mode="complete").Q[:, basis.shape[1] :].to(basis)
