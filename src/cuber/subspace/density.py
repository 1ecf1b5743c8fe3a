"""Gaussian densities of input vectors, from which the task of a sample is inferred."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.gram import Gram
from cuber.subspace.precision import in_float64

RANK = 20
"""Most principal directions of a density."""
SAMPLES_PER_DIRECTION = 4
"""Fewest vectors for each principal direction: with fewer, its variance would be overestimated."""
SHRINKAGE = 0.03
"""How far noise variances are drawn to their mean: few vectors may be constant in a coordinate that is not. It is the
same for any number of vectors, since densities of some of them calibrate the one of all."""
SMALLEST_NOISE = 1e-6
"""Smallest noise variance, as a share of the mean variance."""
CONSTANT = 1e-12
"""The same for vectors that are all equal, as a share of the mean squared coordinate."""


@dataclass
class Density:
    """A normal distribution in d dimensions, ``N(mean, F F' + diag(noise))``, of which no d x d matrix is kept.

    The columns of F are the first principal directions of the vectors, times their standard deviations. The noise is
    what these leave of the variance, coordinate by coordinate: inputs that are constant in a task, such as the border
    of an image, tell it from others best. All tasks have densities over the same space, whatever subspaces they own.

    Args:
        mean: d.
        factors: F, d x q.
        noise: d, above 0.

    >>> density = Density(torch.zeros(2), torch.tensor([[1.0], [0.0]]), torch.ones(2))  # variances 2 and 1
    >>> round(float(density.log_density(torch.tensor([[2.0, 1.0]]))[0]), 4)  # -(4/2 + 1/1 + log(2 pi) 2 + log 2) / 2
    -3.6845
    """

    mean: Tensor
    factors: Tensor
    noise: Tensor

    @classmethod
    def fit(cls, vectors: Tensor, rank: int = RANK) -> Density:
        """Return a density for vectors like these.

        Args:
            vectors: n x d, at least one.
            rank: most principal directions; few vectors give fewer, and vectors without structure none.
        """
        exact = in_float64(vectors)
        count, dimension = exact.shape
        mean = exact.mean(0)
        gram = Gram(dimension)
        gram.add(exact - mean)
        residual = gram.residual(exact.new_zeros(dimension, 0))
        variances = residual.energies / count
        rank = min(rank, count // SAMPLES_PER_DIRECTION, directions_above_noise(variances, count, dimension))
        variances, directions = variances[:rank], residual.directions(rank)
        factors = directions * variances.sqrt()
        total = (exact - mean).square().mean(0)
        rest = (total - factors.square().sum(1)).clamp_min(0)
        noise = rest.lerp(rest.mean(), SHRINKAGE)
        floor = max(
            SMALLEST_NOISE * float(total.mean()),
            CONSTANT * float(exact.square().mean()),
            torch.finfo(torch.float32).tiny,
        )
        kept = (tensor.to(vectors.device, torch.float32) for tensor in (mean, factors, noise.clamp_min(floor)))
        return cls(*kept)

    @property
    def dimension(self) -> int:
        return len(self.mean)

    def log_density(self, vectors: Tensor) -> Tensor:
        """Return the logarithm of the density at each vector, n, in float64.

        With F q columns wide, the inverse and the determinant of the covariance come from a q x q matrix (Woodbury).

        Args:
            vectors: n x d.
        """
        factors, noise = in_float64(self.factors), in_float64(self.noise)
        centered = in_float64(vectors) - in_float64(self.mean)
        weighted = factors / noise.unsqueeze(1)
        inner = torch.eye(factors.shape[1], dtype=noise.dtype, device=noise.device) + factors.T @ weighted
        root = torch.linalg.cholesky(inner)
        explained = torch.linalg.solve_triangular(root, (centered @ weighted).T, upper=False).square().sum(0)
        distance = (centered.square() / noise).sum(1) - explained
        log_determinant = noise.log().sum() + 2 * root.diagonal().log().sum()
        return -(distance + log_determinant + self.dimension * math.log(2 * math.pi)) / 2


def directions_above_noise(variances: Tensor, count: int, dimension: int) -> int:
    """Return how many principal directions have a larger variance than those of noise without structure.

    The variances of ``count`` vectors of white noise differ, too: the largest is about ``(1 + sqrt(d / n))^2`` times
    the true one (Marchenko and Pastur). Such directions describe the vectors they were computed from and no others.

    Args:
        variances: along the principal directions, descending; at most d of them, the others are 0.
        count: number of vectors that they were computed from.
        dimension: d.

    >>> directions_above_noise(torch.tensor([9.0, 1.2, 1.0, 0.8]), count=100, dimension=4)
    1
    """
    largest, found = (1 + math.sqrt(dimension / count)) ** 2, 0
    while found < len(variances):
        noise = variances[found:].sum() / (dimension - found)
        above = int((variances > largest * noise).sum())
        if above <= found:
            break
        found = above
    return found
