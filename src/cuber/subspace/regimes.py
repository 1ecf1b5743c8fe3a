"""How a new task stands to each old one, in one layer: the paper's three regimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.pool import Pool

NO_FORGETTING, FORWARD_TRANSFER, BACKWARD_TRANSFER = 1, 2, 3


@dataclass
class Regime:
    """The regime of one old task in one layer, what decided it, and when a 3 fell to 2: after ``fell`` epochs."""

    number: int = NO_FORGETTING
    ratio: float | None = None
    cosine: float | None = None
    fell: int | None = None

    def fall(self, epoch: int) -> None:
        """Degenerate to regime 2; what has moved stays moved."""
        self.number, self.fell = FORWARD_TRANSFER, epoch


def projection_ratios(gradient: Tensor, pool: Pool) -> list[float]:
    """``||proj_j(g)|| / ||g||`` for every old task j, from one product with the pool (definition 1)."""
    norm = gradient.norm()
    if norm == 0 or pool.size == 0:
        return [0.0] * pool.tasks
    energies = (gradient.to(pool.basis.dtype) @ pool.basis).square().sum(0)
    # Summed task by task, not as a product, which rounds equal rows differently: equals are chosen by their order.
    explained = torch.stack([(owned * energies).sum() for owned in pool.owners])
    return (explained.sqrt() / norm).tolist()


def decide_regimes(
    ratios: Sequence[float],
    positively_correlated: Callable[[int], tuple[bool, float | None]],
    *,
    eps1: float,
    most: int,
) -> dict[int, Regime]:
    """Sufficient projection makes candidates, the ``most`` nearest are taken, positive correlation lifts to 3.

    ``positively_correlated(j)`` answers definition 2 for old task j, with the cosine it looked at.
    """
    regimes = {task: Regime(ratio=ratio) for task, ratio in enumerate(ratios)}
    candidates = [task for task, ratio in enumerate(ratios) if ratio >= eps1]
    for task in sorted(candidates, key=lambda task: -ratios[task])[:most]:
        positive, regimes[task].cosine = positively_correlated(task)
        regimes[task].number = BACKWARD_TRANSFER if positive else FORWARD_TRANSFER
    return regimes
