"""Definitions 1 and 2: how a new task's gradient stands to an old task.

Each answers with the largest epsilon for which the definition holds, so that ``>= eps1`` and ``>= eps2`` are the
definitions themselves. The arithmetic is the learner's own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace import Pool, PrunedGradient, projection_ratios


def sufficient_projection(gradient: Tensor, basis: Tensor) -> float:
    """Definition 1: ``||proj_S(g)|| / ||g||``, for the subspace that the orthonormal columns of ``basis`` span.

    >>> round(sufficient_projection(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])), 6)
    0.6
    """
    everything = torch.ones(1, basis.shape[1], dtype=torch.bool, device=basis.device)
    return projection_ratios(torch.atleast_2d(gradient), Pool(basis, everything))[0]


def positive_correlation(g_old: Tensor | PrunedGradient, g_new: Tensor) -> float:
    """Definition 2: the cosine between the gradient that an old task ended with and the new task's first.

    >>> round(positive_correlation(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0])), 6)
    0.6
    """
    old = g_old if isinstance(g_old, PrunedGradient) else PrunedGradient.of(g_old, keep=1)
    return old.cosine(g_new)
