"""What holds a weight back while it may move in old tasks' subspaces.

A weight's change comes in the coordinates of the columns along which it may have moved, C: out x f. Each old task owns
some of them, and what is restrained is its part of C; only along ``movable`` columns is the weight pulled.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cuber.subspace.gram import Gram


class Restraint(Protocol):
    """The penalties of several old tasks on the change of one weight, which look at the change together."""

    tasks: int

    def value(self, moved: Tensor) -> Tensor:
        """The sum of the penalties for C."""

    def pull(self, moved: Tensor) -> Tensor:
        """Its gradient, out x f."""


class NormRestraint:
    """``||C_j||_F`` for each task: a pull of constant size.

    The norm has no gradient at 0, where 0 is taken: nothing has moved, nothing pulls.
    """

    def __init__(self, owned: Tensor, movable: Tensor, like: Tensor) -> None:
        self.tasks = len(owned)
        self._owned = owned.to(like)
        self._pulled = self._owned * movable.to(like)

    def value(self, moved: Tensor) -> Tensor:
        return self._squares(moved).sqrt().sum()

    def pull(self, moved: Tensor) -> Tensor:
        squares = self._squares(moved)
        inverse = squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt()
        return moved * (inverse @ self._pulled)

    def _squares(self, moved: Tensor) -> Tensor:
        return self._owned @ moved.square().sum(0)


class SquaredRestraint:
    """``tr(C Q C')``, Q being the sum over tasks of 1 at its columns, or of its ``energy_weights``."""

    def __init__(self, owned: Tensor, movable: Tensor, like: Tensor, energies: list[Tensor] | None = None) -> None:
        self.tasks = len(owned)
        if energies is None:
            self._weights = owned.sum(0).to(like)
        else:
            self._weights = like.new_zeros(len(movable), len(movable))
            for columns, weights in zip(owned, energies, strict=True):
                own = columns.nonzero().flatten()
                self._weights[own.unsqueeze(1), own] += weights.to(like)
        self._pulled = 2 * movable.to(like)

    def value(self, moved: Tensor) -> Tensor:
        return (moved * self._weighted(moved)).sum()

    def pull(self, moved: Tensor) -> Tensor:
        return self._weighted(moved) * self._pulled

    def _weighted(self, moved: Tensor) -> Tensor:
        return moved * self._weights if self._weights.dim() == 1 else moved @ self._weights


def energy_weights(gram: Gram, basis: Tensor) -> Tensor:
    """How much the task's answers change with its weights, direction by direction: ``B' M B``, the largest 1.

    ``tr(D M D')`` is the summed squared change of what the layer answers to the inputs that M was made of.
    """
    energy = gram.within(basis)
    largest = torch.linalg.eigvalsh(energy)[-1:].clamp_min(torch.finfo(energy.dtype).tiny)
    return (energy / largest).to(basis)
