"""Definitions 1 and 2: how the gradient of a new task relates to an old task.

Each function returns the largest epsilon for which the definition holds, computed as the CUBER learner computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.subspace import Pool, PrunedGradient


def sufficient_projection(gradient: Tensor, basis: Tensor) -> float:
    """Definition 1: return ``||proj_S(g)|| / ||g||``.

    Args:
        gradient: Gradient of the new task, ``out x d``.
        basis: Orthonormal basis of the old task's input subspace S, ``d x rank``.

    >>> round(sufficient_projection(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])), 6)
    0.6
    """
    if basis.dim() != 2 or gradient.shape[-1:] != basis.shape[:1]:
        raise CuberError(f"the gradient is {shape(gradient)} and the basis {shape(basis)}: give out x d and d x rank")
    everything = torch.ones(1, basis.shape[1], dtype=torch.bool, device=basis.device)
    return Pool(basis, everything).projection_ratios(torch.atleast_2d(gradient))[0]


def positive_correlation(g_old: Tensor | PrunedGradient, g_new: Tensor) -> float:
    """Definition 2: return the cosine between the last gradient of the old task and the first of the new one.

    >>> round(positive_correlation(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])), 6)
    0.6
    """
    if isinstance(g_old, PrunedGradient):
        return g_old.cosine(g_new)
    if g_old.shape != g_new.shape:
        raise CuberError(f"the old gradient is {shape(g_old)} and the new one {shape(g_new)}: they must be alike")
    return PrunedGradient.of(g_old, keep=1).cosine(g_new)


def shape(tensor: Tensor) -> str:
    """Format a shape, such as ``2 x 3``, for error messages."""
    return " x ".join(map(str, tensor.shape)) or "a number"
