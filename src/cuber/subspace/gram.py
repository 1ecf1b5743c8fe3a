"""What the bases need to know of the data: the Gram matrix of the input vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace.exact import NUMBERS_AT_ONCE, in_float64
from cuber.subspace.projection import complement


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
        self._vectors: list[Tensor] = []
        self._matrix: Tensor | None = None

    def add(self, vectors: Tensor) -> None:
        """Take in the rows of ``vectors`` (m x d)."""
        for part in vectors.split(max(self.dimension, NUMBERS_AT_ONCE // self.dimension)):
            self._add(in_float64(part))

    def _add(self, vectors: Tensor) -> None:
        self.count += len(vectors)
        if self._matrix is None and not self._vectors and len(vectors) >= self.dimension:
            self._matrix = vectors.new_zeros(self.dimension, self.dimension)
        if self._matrix is not None:
            self._matrix.addmm_(vectors.T, vectors)
            return
        self._vectors.append(vectors.clone())
        if self.count >= self.dimension:
            stacked = torch.cat(self._vectors)
            self._matrix = stacked.T @ stacked
            self._vectors = []

    def add_products(self, products: Tensor, count: int) -> None:
        """Take in the sum of ``x x'`` over ``count`` vectors, which somebody else has computed (d x d)."""
        for vectors in self._vectors:
            products = products.addmm(vectors.T, vectors)
        self._matrix = products.clone() if self._matrix is None else self._matrix + products
        self._vectors = []
        self.count += count

    def merge(self, other: Gram) -> None:
        """Take in everything that another accumulator has seen."""
        for vectors in other._vectors:
            self.add(vectors)
        if other._matrix is not None:
            self.add_products(other._matrix, other.count)

    @property
    def matrix(self) -> Tensor:
        """M itself, d x d."""
        if self._matrix is not None:
            return self._matrix
        vectors = torch.cat(self._vectors)
        return vectors.T @ vectors

    @property
    def energy(self) -> float:
        """The trace of M: the summed squared length of all vectors."""
        if self._matrix is not None:
            return float(self._matrix.trace())
        return float(sum(vectors.square().sum() for vectors in self._vectors))

    def along(self, basis: Tensor) -> Tensor:
        """The energy that each column of ``basis`` explains, ``u' M u``."""
        basis = self._like_data(basis)
        if self._matrix is not None:
            return (basis * (self._matrix @ basis)).sum(0)
        return (torch.cat(self._vectors) @ basis).square().sum(0)

    def within(self, basis: Tensor) -> Tensor:
        """``B' M B``: M as the columns of ``basis`` see it."""
        basis = self._like_data(basis)
        if self._matrix is not None:
            return basis.T @ self._matrix @ basis
        coordinates = torch.cat(self._vectors) @ basis
        return coordinates.T @ coordinates

    def residual(self, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Energies (descending) and directions (d x k, orthonormal) of what ``basis`` leaves unexplained."""
        basis = self._like_data(basis)
        if self._matrix is not None:
            energies, directions = _outside(self._matrix, basis)
        else:
            vectors = torch.cat(self._vectors)
            rest = vectors - (vectors @ basis) @ basis.T
            energies, combinations = torch.linalg.eigh(rest @ rest.T)
            directions = rest.T @ combinations / energies.clamp_min(1e-300).sqrt()
        energies, directions = energies.flip(0), directions.flip(1)
        # What rounding alone can produce is not a direction of the data. (Sums over patches are rounded more; no
        # threshold asks for energies as small as that: HIGHEST_THRESHOLD.)
        real = energies > self.energy * self.dimension * torch.finfo(torch.float64).eps
        real[max(0, self.dimension - basis.shape[1]) :] = False
        energies, directions = energies[real], directions[:, real]
        return energies, directions if self._matrix is not None else _orthonormal(directions, basis)

    def _like_data(self, basis: Tensor) -> Tensor:
        data = self._matrix if self._matrix is not None else self._vectors[0]
        return basis.to(data)


def _outside(matrix: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of a symmetric matrix as all that is orthogonal to ``basis`` sees it."""
    if not basis.shape[1]:
        return torch.linalg.eigh(matrix)
    outside = complement(basis)
    rest = outside.T @ matrix @ outside
    energies, combinations = torch.linalg.eigh((rest + rest.T) / 2)
    return energies, outside @ combinations


def _orthonormal(directions: Tensor, basis: Tensor) -> Tensor:
    """Made by a division, the directions of little energy are neither quite orthogonal to the basis nor to others."""
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        directions = directions - basis @ (basis.T @ directions)
        directions = torch.linalg.qr(directions).Q
    return directions
