"""Penalties on how far a weight moves in the subspaces of old tasks."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cuber.subspace.gram import Gram
from cuber.subspace.memory import BACKWARD_TRANSFER, LayerMemory


class Penalty(Protocol):
    """The sum of the penalties of several old tasks."""

    tasks: int

    def value(self, displacement: Tensor) -> Tensor:
        """Return the penalty."""

    def gradient(self, displacement: Tensor) -> Tensor:
        """Return its gradient, out x f."""

    def strength(self, lam: float, lr: float) -> float:
        """Return ``lam``, or less where a step of ``lr`` would go past the minimum of the penalty."""


class NormPenalty:
    """``sum over j of ||D_j||_F``, as printed in the paper. Its gradient at 0 is taken to be 0.

    Args:
        owned: which task owns which column, tasks x f.
        movable: which columns are still free, f.
        start: the weight along the columns when the task began, out x f; displacements below its rounding are 0.
    """

    def __init__(self, owned: Tensor, movable: Tensor, start: Tensor) -> None:
        self.tasks = len(owned)
        self._owned = owned.to(start)
        self._pulled = self._owned * movable.to(start)
        self._rounding = self._squares(torch.finfo(start.dtype).eps * start)

    def value(self, displacement: Tensor) -> Tensor:
        return self._squares(displacement).sqrt().sum()

    def gradient(self, displacement: Tensor) -> Tensor:
        squares = self._squares(displacement)
        inverse = torch.where(squares > self._rounding, squares.rsqrt(), 0.0)
        return displacement * (inverse @ self._pulled)

    def strength(self, lam: float, lr: float) -> float:
        return lam

    def _squares(self, displacement: Tensor) -> Tensor:
        return self._owned @ displacement.square().sum(0)


class SquaredPenalty:
    """``tr(D Q D')``, where Q sums over tasks 1 at their columns, or their ``energy_weights``.

    Args:
        owned, movable, start: as for :class:`NormPenalty`.
        energies: per task, its weights at the columns that it owns.
    """

    def __init__(self, owned: Tensor, movable: Tensor, start: Tensor, energies: list[Tensor] | None = None) -> None:
        self.tasks = len(owned)
        self._weights = owned.sum(0).to(start)
        if energies is not None:
            self._weights = start.new_zeros(len(movable), len(movable))
            for columns, weights in zip(owned, energies, strict=True):
                own = columns.nonzero().flatten()
                self._weights[own.unsqueeze(1), own] += weights.to(start)
        self._pulled = self._weights * (2 * movable.to(start))

    def value(self, displacement: Tensor) -> Tensor:
        return (displacement * self._times(displacement, self._weights)).sum()

    def gradient(self, displacement: Tensor) -> Tensor:
        return self._times(displacement, self._pulled)

    def strength(self, lam: float, lr: float) -> float:
        return min(lam, 1 / max(2 * lr * self.tasks, 1e-12))

    @staticmethod
    def _times(displacement: Tensor, weights: Tensor) -> Tensor:
        return displacement * weights if weights.dim() == 1 else displacement @ weights


def make_penalty(kind: str, memory: LayerMemory, start: Tensor) -> Penalty | None:
    """Return the penalty of all old tasks in regime 3 on one layer; None where there is nothing to penalize.

    Args:
        kind: "norm", "squared" or "energy".
        memory: of the layer.
        start: the weight in the pool's coordinates when the task began, out x K.
    """
    tasks, free = memory.in_regime(BACKWARD_TRANSFER), ~memory.protected_columns(at_start=True)
    if not tasks or not bool(free.any()):
        return None
    owned, movable = memory.owners[tasks][:, free], ~memory.protected_columns()[free]
    if kind == "norm":
        return NormPenalty(owned, movable, start[:, free])
    if kind == "squared":
        return SquaredPenalty(owned, movable, start[:, free])
    kept = [free[memory.owners[task]] for task in tasks]
    energies = [memory.energies[task][own][:, own] for task, own in zip(tasks, kept, strict=True)]  # type: ignore[index]
    return SquaredPenalty(owned, movable, start[:, free], energies)


def energy_weights(gram: Gram, basis: Tensor) -> Tensor:
    """Return ``B' M B``, scaled so that its largest eigenvalue is 1.

    ``tr(D M D')`` is the summed squared change of the layer's outputs for the inputs that ``M`` was computed from.
    """
    energy = gram.within(basis)
    largest = torch.linalg.eigvalsh(energy)[-1:].clamp_min(torch.finfo(energy.dtype).tiny)
    return (energy / largest).to(basis)
