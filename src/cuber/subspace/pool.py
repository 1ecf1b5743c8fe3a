"""One orthonormal pool of basis vectors per layer, shared by all tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.gram import Gram

HIGHEST_THRESHOLD = 0.999
"""Thresholds above count as this: the rest of the energy may be rounding."""


@dataclass
class Pool:
    """Basis vectors of all tasks, each stored once.

    Args:
        basis: d x K, orthonormal columns.
        owners: tasks x K, boolean: the columns that span each task's input subspace.
    """

    basis: Tensor
    owners: Tensor

    @classmethod
    def empty(cls, dimension: int, tasks: int = 0, *, like: Tensor) -> Pool:
        """Return a pool without columns, after ``tasks`` tasks that own nothing, for a weight ``like``."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        basis = torch.zeros(dimension, 0, dtype=dtype, device=like.device)
        return cls(basis, torch.zeros(tasks, 0, dtype=torch.bool, device=like.device))

    @property
    def dimension(self) -> int:
        return self.basis.shape[0]

    @property
    def size(self) -> int:
        """K, the number of columns."""
        return self.basis.shape[1]

    @property
    def tasks(self) -> int:
        return self.owners.shape[0]

    def basis_of(self, task: int) -> Tensor:
        """Return ``B_j``, the basis of one task's subspace."""
        return self.columns(self.owners[task])

    def columns(self, chosen: Tensor) -> Tensor:
        """Return some columns of the basis; all of them without a copy."""
        return self.basis if bool(chosen.all()) else self.basis[:, chosen]

    def projection_ratios(self, gradient: Tensor) -> list[float]:
        """Return ``||proj_j(g)|| / ||g||`` for every old task j (definition 1), from one product with the pool."""
        norm = gradient.norm()
        if norm == 0 or self.size == 0:
            return [0.0] * self.tasks
        energies = (gradient.to(self.basis.dtype) @ self.basis).square().sum(0)
        # Task by task, not as one product, which rounds equal rows differently: ties are broken by order.
        explained = torch.stack([(owned * energies).sum() for owned in self.owners])
        return (explained.sqrt() / norm).tolist()

    def add_task(self, gram: Gram | None, threshold: float) -> None:
        """Add the next task, which owns the old columns and new directions that explain most of its input energy.

        The energies of old columns and new directions are sorted together; the largest are taken until they reach the
        threshold.

        Args:
            gram: of the task's input vectors; None where the task does not reach the layer: it owns nothing.
            threshold: fraction of the energy to reach.
        """
        taken = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        new = self.basis[:, :0]
        if gram is not None and gram.count and gram.energy > 0:
            taken, new = self._explain(gram, min(threshold, HIGHEST_THRESHOLD))
        self.basis = torch.cat([self.basis, new], dim=1)
        grown = torch.zeros(self.tasks + 1, self.size, dtype=torch.bool, device=self.owners.device)
        grown[:-1, : len(taken)] = self.owners
        grown[-1, : len(taken)] = taken
        grown[-1, len(taken) :] = True
        self.owners = grown

    def _explain(self, gram: Gram, threshold: float) -> tuple[Tensor, Tensor]:
        known = gram.along(self.basis)
        residual = gram.residual(self.basis)
        energies, order = torch.cat([known, residual.energies]).sort(descending=True, stable=True)
        goal = torch.as_tensor(threshold * gram.energy).to(energies)
        enough = int(torch.searchsorted(energies.cumsum(0), goal)) + 1
        chosen = order[:enough]
        taken = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        taken[chosen[chosen < self.size].to(taken.device)] = True
        new = residual.directions(int((chosen >= self.size).sum()))
        return taken, new.to(self.basis)
