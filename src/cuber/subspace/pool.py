"""One orthonormal pool of basis vectors per layer, shared by all tasks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.subspace.gram import Gram

HIGHEST_THRESHOLD = 0.999
"""Asking for all of the energy would ask for the rounding noise too."""


@dataclass
class Pool:
    """A basis (d x K) and, for every task, which of its columns span the task's input subspace.

    Old bases are stored once, however many tasks use them: ``owners`` is tasks x K, boolean.
    """

    basis: Tensor
    owners: Tensor

    @classmethod
    def empty(cls, dimension: int, tasks: int = 0, *, like: Tensor) -> Pool:
        """A pool without columns, of which ``tasks`` earlier tasks own nothing."""
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
        """``B_j``: the basis of one task's subspace."""
        return self.columns(self.owners[task])

    def columns(self, chosen: Tensor) -> Tensor:
        """Some columns of the basis; all of them without a copy."""
        return self.basis if bool(chosen.all()) else self.basis[:, chosen]

    def follow(self, weight: Tensor) -> None:
        """Go to the device that the weight has gone to."""
        self.basis, self.owners = self.basis.to(weight.device), self.owners.to(weight.device)

    def add_task(self, gram: Gram | None, threshold: float) -> None:
        """Let a new task own what explains the fraction ``threshold`` of its energy, old columns and new ones.

        Old columns' and new directions' energies are sorted together and the largest taken until they reach the
        threshold. ``None`` (a layer that the task never reaches) owns nothing.
        """
        taken = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        fresh = self.basis[:, :0]
        if gram is not None and gram.count and gram.energy > 0:
            taken, fresh = self._explain(gram, min(threshold, HIGHEST_THRESHOLD))
        self.basis = torch.cat([self.basis, fresh], dim=1)
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
        fresh = residual.directions(int((chosen >= self.size).sum()))
        return taken, fresh.to(self.basis)
