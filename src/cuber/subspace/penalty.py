"""What holds a weight back while it may move in an old task's subspace."""

from __future__ import annotations

import torch
from torch import Tensor

from cuber.subspace.gram import Gram


def norm_penalty(drift: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """``||D B||_F`` for the weight change D, and its gradient: a pull of constant size.

    The norm has no gradient at 0, where 0 is taken: nothing has moved, nothing pulls.
    """
    inside = drift @ basis
    norm = inside.norm()
    pull = inside / norm if norm > 0 else inside
    return norm, pull @ basis.T


def squared_penalty(drift: Tensor, basis: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``tr(C Q C')`` with ``C = D B``, and its gradient; Q is 1 or the weights of ``energy_weights``."""
    inside = drift @ basis
    weighted = inside if weights is None else inside @ weights
    return (inside * weighted).sum(), 2 * weighted @ basis.T


def energy_weights(gram: Gram, basis: Tensor) -> Tensor:
    """How much the task's answers change with its weights, direction by direction: ``B' M B``, the largest 1.

    ``tr(D M D')`` is the summed squared change of what the layer answers to the inputs that M was made of.
    """
    energy = gram.within(basis)
    largest = torch.linalg.eigvalsh(energy)[-1:].clamp_min(torch.finfo(energy.dtype).tiny)
    return (energy / largest).to(basis)
