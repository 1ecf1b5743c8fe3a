"""What holds a weight back while it may move in an old task's subspace."""

from __future__ import annotations

from torch import Tensor


def drift_penalty(drift: Tensor, basis: Tensor, *, squared: bool = False) -> tuple[Tensor, Tensor]:
    """``||D B||_F`` (or its square) for the weight change D, and its gradient with respect to D.

    The unsquared norm has no gradient at 0, where 0 is taken: nothing has moved, nothing pulls.
    """
    inside = drift @ basis
    if squared:
        return inside.square().sum(), 2 * inside @ basis.T
    norm = inside.norm()
    pull = inside / norm if norm > 0 else inside
    return norm, pull @ basis.T
