"""Normal densities with the whole covariance matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace import Density


def covariance(density: Density) -> Tensor:
    """The d x d covariance matrix, in float64."""
    factors = density.factors.double()
    return factors @ factors.T + density.noise.double().diag()


def log_density(density: Density, vectors: Tensor) -> Tensor:
    """The logarithm of the density at each vector, by torch's multivariate normal distribution."""
    normal = torch.distributions.MultivariateNormal(density.mean.double(), covariance(density))
    return normal.log_prob(vectors.double())
