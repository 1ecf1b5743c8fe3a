"""Definitions 1 and 2: how a new task's gradient stands to an old task.

Each answers with the largest epsilon for which the definition holds, so that ``>= eps1`` and ``>= eps2`` are the
definitions themselves. The arithmetic is the learner's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.errors import CuberError
from cuber.subspace import Pool, PrunedGradient


def sufficient_projection(gradient: Tensor, basis: Tensor) -> float:
    """Definition 1: ``||proj_S(g)|| / ||g||``, for the subspace that the orthonormal columns of ``basis`` span.

    >>> round(sufficient_projection(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])), 6)
    0.6
    """
    if basis.dim() != 2 or gradient.shape[-1:] != basis.shape[:1]:
        raise CuberError(f"the gradient is {shape(gradient)} and the basis {shape(basis)}: give out x d and d x rank")
    everything = torch.ones(1, basis.shape[1], dtype=torch.bool, device=basis.device)
    return Pool(basis, everything).projection_ratios(torch.atleast_2d(gradient))[0]


def positive_correlation(g_old: Tensor | PrunedGradient, g_new: Tensor) -> float:
    """Definition 2: the cosine between the gradient that an old task ended with and the new task's first.

    >>> round(positive_correlation(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])), 6)
    0.6
    """
    if isinstance(g_old, PrunedGradient):
        return g_old.cosine(g_new)
    if g_old.shape != g_new.shape:
        raise CuberError(f"the old gradient is {shape(g_old)} and the new one {shape(g_new)}: they must be alike")
    return PrunedGradient.of(g_old, keep=1).cosine(g_new)


def shape(tensor: Tensor) -> str:
    """For a sentence.

    >>> shape(torch.zeros(2, 3))
    '2 x 3'
    """
    return " x ".join(map(str, tensor.shape)) or "a number"
