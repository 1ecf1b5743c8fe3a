"""What one layer remembers of all tasks: bases, gradients, energies, scalings and regimes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cuber.subspace.pool import Pool
from cuber.subspace.scaling import LearnedScaling

NO_FORGETTING, FORWARD_TRANSFER, BACKWARD_TRANSFER = 1, 2, 3


@dataclass
class Regime:
    """How a new task treats one old task in one layer.

    Args:
        number: 1, protect it; 2, protect and reuse it; 3, reuse it and let it change.
        ratio: share of the new task's first gradient in the old task's subspace.
        cosine: between the first gradient of the new task and the last one of the old task.
        demoted_at: epoch after which a 3 became a 2.
    """

    number: int = NO_FORGETTING
    ratio: float | None = None
    cosine: float | None = None
    demoted_at: int | None = None

    def demote(self, epoch: int) -> None:
        """Fall back to regime 2; what has moved stays moved."""
        self.number, self.demoted_at = FORWARD_TRANSFER, epoch

    @property
    def at_start(self) -> int:
        """The regime when the task began."""
        return self.number if self.demoted_at is None else BACKWARD_TRANSFER


@dataclass
class PrunedGradient:
    """The largest entries of a gradient.

    Args:
        places: one bit per entry of the whole gradient, eight in a byte: whether it is kept.
        values: the kept entries.
        norm: of the whole gradient.
    """

    places: Tensor
    values: Tensor
    norm: float

    @classmethod
    def of(cls, gradient: Tensor, keep: float) -> PrunedGradient:
        """Keep the fraction ``keep`` of the entries, at least one."""
        flat = gradient.flatten()
        count = max(1, round(keep * flat.numel()))
        kept = torch.zeros(flat.numel(), dtype=torch.bool, device=flat.device)
        kept[flat.abs().topk(count).indices] = True
        return cls(_packed(kept), flat[kept], float(gradient.norm()))

    def cosine(self, gradient: Tensor) -> float:
        """Return ``<g_j, g> / (||g_j|| ||g||)``; 0 where one of them is 0."""
        norms = self.norm * float(gradient.norm())
        return float(self.entries(gradient) @ self.values.to(gradient)) / norms if norms else 0.0

    def entries(self, gradient: Tensor) -> Tensor:
        """Return the entries of another gradient, or weight, at the kept places."""
        return gradient.flatten()[_unpacked(self.places.to(gradient.device), gradient.numel())]


@dataclass
class LayerMemory(Pool):
    """The pool of a layer and, for each task, what else it has left there. Saved, moved and counted as one object.

    Args:
        gradients: task -> its loss gradient at the end; None where it is not needed or was not reached.
        energies: task -> ``energy_weights`` of its subspace, for the energy penalty.
        scalings: task -> what it has learned to make of old weights.
        regimes: task -> old task -> regime.
    """

    gradients: list[PrunedGradient | None] = field(default_factory=list)
    energies: list[Tensor | None] = field(default_factory=list)
    scalings: list[LearnedScaling | None] = field(default_factory=list)
    regimes: list[dict[int, Regime]] = field(default_factory=list)

    @classmethod
    def empty(cls, dimension: int, tasks: int = 0, *, like: Tensor) -> LayerMemory:
        """Return the memory of a layer that ``tasks`` earlier tasks did not use."""
        pool = Pool.empty(dimension, tasks, like=like)
        nothing: list[None] = [None] * tasks
        return cls(pool.basis, pool.owners, [*nothing], [*nothing], [*nothing], [{} for _ in range(tasks)])

    def cosine(self, task: int, gradient: Tensor) -> float | None:
        """Return the cosine between an old task's gradient and ``gradient``; None where there is no old gradient."""
        old = self.gradients[task]
        return None if old is None or old.norm == 0 else old.cosine(gradient)

    def columns_read(self, task: int) -> Tensor:
        """Return which columns an old task's outputs depend on: its own, and those that its scaling reads."""
        scaling = self.scalings[task]
        tasks = [task] if scaling is None else [task, *scaling.tasks]
        return self.owners[tasks].any(0)

    def protected_columns(self, *, at_start: bool = False) -> Tensor:
        """Return the columns that any task outside regime 3 reads: now, or when the present task began."""
        protected = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        for task, regime in self.regimes[-1].items():
            if (regime.at_start if at_start else regime.number) != BACKWARD_TRANSFER:
                protected |= self.columns_read(task)
        return protected

    def in_regime(self, *numbers: int) -> list[int]:
        """Return the old tasks that are in one of these regimes in the present task."""
        return [task for task, regime in self.regimes[-1].items() if regime.number in numbers]


def _packed(kept: Tensor) -> Tensor:
    bits = torch.cat([kept, kept.new_zeros(-len(kept) % 8)]).to(torch.uint8).reshape(-1, 8)
    return (bits << _positions(kept)).sum(1, dtype=torch.uint8)


def _unpacked(places: Tensor, count: int) -> Tensor:
    return (places.unsqueeze(1) >> _positions(places) & 1).bool().flatten()[:count]


def _positions(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
