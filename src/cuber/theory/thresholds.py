"""The thresholds of theorems 1 and 2, as printed, as functions of plain numbers.

The paper's notation: each loss is ``H/2``-smooth (so the joint loss is H-smooth) and B-Lipschitz, alpha is the step
size, K the number of steps, ``old`` and ``new`` are the norms of g1(w0) and g2(w0), and gamma in (0, 1) is free.
"""

from __future__ import annotations

import math


def smallest_gamma(alpha: float, H: float, B: float, K: int, old: float) -> float:
    """Return the smallest gamma that admits a step size, ``alpha H B K / ||g1||``; it must be below 1."""
    return alpha * H * B * K / old if old else math.inf


def smallest_eps2(gamma: float, old: float, new: float) -> float:
    """Return the cosine that theorems 1 and 2 (1) require: ``(2 + gamma^2) ||g1|| / (4 ||g2||)``."""
    return (2 + gamma**2) * old / (4 * new) if new else math.inf


def smallest_eps1(alpha: float, H: float) -> float:
    """Return the ratio that theorem 2 (1) requires: ``sqrt((1 + 2 alpha H) / (2 + alpha H))``, at least 0.71.

    >>> round(smallest_eps1(alpha=0, H=1), 3), smallest_eps1(alpha=1, H=1)
    (0.707, 1.0)
    """
    return math.sqrt((1 + 2 * alpha * H) / (2 + alpha * H))


def largest_smooth_step(H: float) -> float:
    """Return ``1 / H``, a limit in all theorems; infinity for losses without curvature."""
    return 1 / H if H else math.inf


def largest_joint_step(cosine: float, H: float, B: float, K: int, old: float, new: float) -> float:
    """Return the step size that theorem 1 must stay below, ``min(1 / H, gamma ||g1|| / (H B K))``; 0 if it admits none.

    Gamma is the largest one, at most 1, for which the cosine is sufficient.

    >>> largest_joint_step(1.0, H=2, B=1, K=10, old=1, new=1), largest_joint_step(0.4, H=2, B=1, K=10, old=1, new=1)
    (0.05, 0.0)
    """
    gamma_squared = 4 * cosine * new / old - 2 if old else 0.0
    if gamma_squared <= 0:
        return 0.0
    return min(1.0, math.sqrt(min(gamma_squared, 1.0)) * old / (B * K)) * largest_smooth_step(H)


def largest_backward_step(eps2: float, H: float, B: float, k: int, old: float, *, sharper: bool = False) -> float:
    """Return the step size up to which theorem 2 (2) holds for k steps, ``4 eps2 ||g1|| / (H B k^1.5)``.

    ``sharper``: with k instead of k^1.5, which holds too; see theorems.old_loss_is_kept.

    >>> largest_backward_step(0.5, H=2, B=1, k=4, old=1), largest_backward_step(0.0, H=2, B=1, k=4, old=1)
    (0.125, 0.0)
    """
    return max(0.0, 4 * eps2 * old / (H * B * k ** (1.0 if sharper else 1.5))) if H and B else math.inf
