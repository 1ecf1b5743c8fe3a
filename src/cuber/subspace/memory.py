"""What one layer remembers of all tasks: bases, gradients, energies, scalings and regimes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cuber.subspace.gram import Gram

LISTED_REGIMES = 64
"""With more old tasks than this, only those that a task has reused are listed: else regimes grow with their square."""
NO_FORGETTING, FORWARD_TRANSFER, BACKWARD_TRANSFER = 1, 2, 3


@dataclass
class Pool:
    """Basis vectors of all tasks, each stored once.

    Args:
        basis: d x K, orthonormal columns.
        owners: tasks x K, boolean: the columns that span each task's input subspace.
        importance: K: the share of its input energy that each task had along a column, summed over the tasks since
            the column was found.
    """

    basis: Tensor
    owners: Tensor
    importance: Tensor = field(default_factory=lambda: torch.zeros(0), kw_only=True)

    def __post_init__(self) -> None:
        if not self.size or len(self.importance) != self.size:  # not known of columns that were made elsewhere
            self.importance = self.basis.new_zeros(self.size)

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
        return columns(self.basis, self.owners[task])

    def projection_ratios(self, gradient: Tensor) -> list[float]:
        """Return ``||proj_j(g)|| / ||g||`` for every old task j (definition 1), from one product with the pool."""
        norm = gradient.norm()
        if norm == 0 or self.size == 0:
            return [0.0] * self.tasks
        energies = (gradient.to(self.basis.dtype) @ self.basis).square().sum(0)
        # Summed, not as one product, which rounds equal rows differently: ties are broken by order.
        explained = (self.owners * energies).sum(1)
        return (explained.sqrt() / norm).tolist()

    def add_task(self, gram: Gram | None, threshold: float, variance: float = 0.0) -> float:
        """Add the next task, which owns the old columns and new directions that explain most of its input energy.

        The energies of old columns and new directions are sorted together; the largest are taken until what is left
        is at most ``1 - threshold`` of the energy, and ``1 - variance`` of the energy without the mean.

        Args:
            gram: of the task's input vectors; None where the task does not reach the layer: it owns nothing.
            threshold: fraction of the energy to reach; 1 is reached up to rounding.
            variance: the same, of the vectors without their mean.

        Returns:
            The fraction of the energy that its columns explain; less than the threshold where a sketch has no more.
        """
        taken = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        new, share = self.basis[:, :0], 1.0
        if gram is not None and gram.count and gram.energy > 0:
            taken, new, share = self._explain(gram, held_share(gram, threshold, variance))
        self.basis = torch.cat([self.basis, new], dim=1)
        grown = torch.zeros(self.tasks + 1, self.size, dtype=torch.bool, device=self.owners.device)
        grown[:-1, : len(taken)] = self.owners
        grown[-1, : len(taken)] = taken
        grown[-1, len(taken) :] = True
        self.owners = grown
        return share

    def _explain(self, gram: Gram, threshold: float) -> tuple[Tensor, Tensor, float]:
        """Return which old columns the task takes, its new columns, and the fraction of the energy along both."""
        known = gram.along(self.basis)
        residual = gram.residual(self.basis)
        energies, order = torch.cat([known, residual.energies]).sort(descending=True, stable=True)
        goal = torch.tensor(threshold * gram.energy, dtype=energies.dtype).to(energies.device)
        enough = int(torch.searchsorted(energies.cumsum(0), goal)) + 1
        chosen = order[:enough]
        taken = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
        taken[chosen[chosen < self.size].to(taken.device)] = True
        count = int((chosen >= self.size).sum())
        energies = torch.cat([known, residual.energies[:count]]) / gram.energy
        self.importance = torch.cat([self.importance, self.importance.new_zeros(count)]) + energies.to(self.importance)
        new = residual.directions(count)
        return taken, new.to(self.basis), float(energies[chosen].sum())


def held_share(gram: Gram, threshold: float, variance: float = 0.0) -> float:
    """Return the share of the energy that a subspace must hold, so that it holds a share of the variance, too."""
    left_out = (1 - threshold) * gram.energy
    if variance:
        left_out = min(left_out, (1 - variance) * gram.variance)
    return 1 - max(left_out / gram.energy, gram.rounding)


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
class LearnedScaling:
    """What is kept of a scaling: the old tasks that it scales, and its factors."""

    tasks: list[int]
    matrix: Tensor
    supports: list[Tensor]

    def keep_columns(self, kept: Tensor) -> LearnedScaling:
        """Return it without the other columns of the pool, neither read nor written; the pool may have grown since."""
        known = kept[: self.matrix.shape[1]]
        rows = self.matrix if self.supports else self.matrix[known]
        return LearnedScaling(self.tasks, rows[:, known], [support[known] for support in self.supports])


@dataclass
class LayerMemory(Pool):
    """The pool of a layer and, for each task, what else it has left there. Saved, moved and counted as one object.

    Args:
        basis: basis vectors of all tasks, d x K, orthonormal columns.
        owners: tasks x K, boolean: the columns that span each task's input subspace.
        importance: share of its input energy that each task had along a column, summed over tasks.
        gradients: task -> its loss gradient at the end; None where it is not needed or was not reached.
        energies: task -> ``energy_weights`` of its subspace, for the energy penalty.
        scalings: task -> what it has learned to make of old weights.
        regimes: task -> old task -> regime.

    >>> memory = LayerMemory.empty(4, tasks=1, like=torch.ones(1))
    >>> memory.tasks, memory.basis.shape
    (1, torch.Size([4, 0]))
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

    def columns_read(self, tasks: Iterable[int]) -> Tensor:
        """Return which columns the outputs of some tasks depend on: their own, and those that their scalings read."""
        read = set(tasks)
        # Usually these are nearly all tasks: it is quicker to ask for each of the others whether a scaling reads it.
        scalings = [self.scalings[task] for task in read] if len(read) < self.tasks else []
        for other in set(range(self.tasks)) - read:
            if any(scaling is not None and other in scaling.tasks for scaling in scalings):
                read.add(other)
        return self.owners[list(read)].any(0)

    def protected_columns(self, *, at_start: bool = False) -> Tensor:
        """Return the columns that any task outside regime 3 reads: now, or when the present task began."""
        return self.columns_read(
            task
            for task, regime in self.regimes[-1].items()
            if (regime.at_start if at_start else regime.number) != BACKWARD_TRANSFER
        )

    def in_regime(self, *numbers: int, at_start: bool = False) -> list[int]:
        """Return the old tasks that are in one of these regimes in the present task: now, or when it began."""
        regimes = self.regimes[-1].items()
        return [task for task, regime in regimes if (regime.at_start if at_start else regime.number) in numbers]

    def reused(self) -> list[int]:
        """Return the old tasks whose subspaces the present task scales its weight along: in regime 2 or 3."""
        return self.in_regime(FORWARD_TRANSFER, BACKWARD_TRANSFER)

    def end_task(self, max_rank: int) -> None:
        """Bound what the last task leaves: at most ``max_rank`` columns in the pool (0: any number), few regimes."""
        if 0 < max_rank < self.size:
            kept = torch.zeros(self.size, dtype=torch.bool, device=self.owners.device)
            kept[self.importance.argsort(descending=True, stable=True)[:max_rank]] = True
            self.keep_columns(kept)
        if len(self.regimes[-1]) > LISTED_REGIMES:
            reused = {task: regime for task, regime in self.regimes[-1].items() if regime.at_start != NO_FORGETTING}
            self.regimes[-1] = reused

    def keep_columns(self, kept: Tensor) -> None:
        """Drop all other columns of the pool. Tasks that neither own nor read them keep their outputs.

        Args:
            kept: K, boolean.
        """
        for task, energies in enumerate(self.energies):
            if energies is not None:
                own = kept[self.owners[task]]
                self.energies[task] = energies[own][:, own]
        self.scalings = [scaling and scaling.keep_columns(kept) for scaling in self.scalings]
        self.basis, self.owners, self.importance = self.basis[:, kept], self.owners[:, kept], self.importance[kept]


def columns(matrix: Tensor, chosen: Tensor) -> Tensor:
    """Return the columns of a matrix that a boolean mask chooses; all of them without a copy."""
    return matrix if bool(chosen.all()) else matrix[:, chosen]


def _packed(kept: Tensor) -> Tensor:
    bits = torch.cat([kept, kept.new_zeros(-len(kept) % 8)]).to(torch.uint8).reshape(-1, 8)
    return (bits << _positions(kept)).sum(1, dtype=torch.uint8)


def _unpacked(places: Tensor, count: int) -> Tensor:
    return (places.unsqueeze(1) >> _positions(places) & 1).bool().flatten()[:count]


def _positions(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
