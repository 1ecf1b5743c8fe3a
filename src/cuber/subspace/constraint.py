"""Where the weight of a layer may move while a task is learned: projections, penalties, anchors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from cuber.subspace.gram import Gram, complement
from cuber.subspace.memory import BACKWARD_TRANSFER, LayerMemory

CLEARLY_FEWER = 0.9
"""The complement is used where it has at most this share of the columns: it takes up memory of its own."""


class Projector:
    """``G -> G - (G U) U'`` for an orthonormal ``U``, computed by its complement where that has fewer columns.

    >>> projector = Projector(torch.eye(3)[:, :1])
    >>> projector.outside(torch.ones(1, 3)), projector.inside(torch.ones(1, 3))
    (tensor([[0., 1., 1.]]), tensor([[1., 0., 0.]]))
    """

    def __init__(self, protected: Tensor) -> None:
        dimension, self.rank = protected.shape
        self.by_complement = dimension - self.rank < CLEARLY_FEWER * self.rank
        self._columns = complement(protected) if self.by_complement else protected
        self._direction: Tensor | None = None

    @property
    def columns(self) -> int:
        """Number of columns it multiplies with: its cost."""
        return self._columns.shape[1]

    def outside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that lies outside the protected directions."""
        if self.by_complement:
            return self._along_columns(matrix)
        return matrix - self._along_columns(matrix) if self.rank else matrix

    def inside(self, matrix: Tensor) -> Tensor:
        """Return the part of each row that lies inside the protected directions."""
        return matrix - self._along_columns(matrix) if self.by_complement else self._along_columns(matrix)

    def project_(self, matrix: Tensor) -> None:
        """Keep the part outside, in place: gradients are as large as weights."""
        if matrix.dtype != self._columns.dtype:
            matrix.copy_(self.outside(matrix))
        elif self.by_complement:
            torch.mm(matrix @ self._columns, self._columns.mT, out=matrix)
        elif self.rank:
            matrix.addmm_(matrix @ self._columns, self._columns.mT, alpha=-1)

    @property
    def direction(self) -> Tensor:
        """A random unit vector inside the protected directions."""
        if self._direction is None:
            drawn = torch.randn(1, len(self._columns), generator=torch.Generator().manual_seed(0)).to(self._columns)
            inside = self.inside(drawn)[0]
            self._direction = inside / inside.norm().clamp_min(1e-30)
        return self._direction

    def _along_columns(self, matrix: Tensor) -> Tensor:
        columns = self._columns
        return ((matrix.to(columns.dtype) @ columns) @ columns.mT).to(matrix.dtype)


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


@dataclass
class Anchor:
    """A weight in the coordinates of the pool, out x K: all that protecting it needs."""

    start: Tensor
    """When the task began."""
    target: Tensor
    """Where protected columns are held: ``start``, but for columns that were free and became protected later."""

    @classmethod
    def of(cls, weight: Tensor, basis: Tensor) -> Anchor:
        """Anchor a weight where it is now."""
        along = coordinates(weight, basis)
        return cls(along, along)

    def hold(self, weight: Tensor, columns: Tensor, basis: Tensor) -> None:
        """Hold some columns (by index) where the weight is along them now."""
        self.target = _with_columns(self.target, columns, coordinates(weight, basis[:, columns]))


class Constraint:
    """The protected columns of a pool, the columns that were free when the task began, and the penalty on these.

    Args:
        basis: U, d x K.
        protected: which columns the weight must not move along now, K.
        free: which columns it was allowed to move along when the task began, K.
        anchor: the weight when the task began.
        penalty: on the displacement along the free columns.
        anchored: whether scalings read the weight where it is anchored, as a constant along protected columns.
    """

    def __init__(
        self,
        basis: Tensor,
        protected: Tensor,
        free: Tensor,
        anchor: Anchor,
        penalty: Penalty | None = None,
        anchored: bool = True,
    ) -> None:
        self.basis = basis
        self.anchored = anchored
        self.anchor = anchor
        self.penalty = penalty
        self.projector = Projector(_columns(basis, protected))
        self.free = _columns(basis, free)
        """d x f."""
        self.free_columns = free.nonzero().flatten()
        self.protected_columns = protected.nonzero().flatten()
        self.movable = ~protected[free]
        """Which of the free columns are still free, f."""
        self.movable_mask = self.movable.to(basis)
        self.free_start = anchor.start.index_select(1, self.free_columns)

    # Single directions, for checks that cost one product

    @cached_property
    def probe(self) -> Tensor:
        """A random unit vector, d."""
        return _random_unit(self.basis[:, 0] if self.basis.shape[1] else self.basis.new_empty(len(self.basis)))

    @cached_property
    def held_direction(self) -> Tensor:
        """What the weight should be along ``projector.direction``."""
        columns = _columns_at(self.basis, self.protected_columns)
        return _columns_at(self.anchor.target, self.protected_columns).mv(self.projector.direction @ columns)

    @cached_property
    def free_probe(self) -> Tensor:
        """A random unit vector in the coordinates of the free columns."""
        return _random_unit(self.free_start[0])

    @cached_property
    def free_direction(self) -> Tensor:
        """The same in the space of inputs."""
        return self.free @ self.free_probe

    @cached_property
    def free_direction_start(self) -> Tensor:
        """What the weight was along it when the task began."""
        return self.free_start.mv(self.free_probe)

    @cached_property
    def free_rounding(self) -> float:
        """By how much rounding may change what the weight is along it."""
        return 100 * torch.finfo(self.free_start.dtype).eps * float(self.free_direction_start.norm())

    # The weight

    def along(self, weight: Tensor) -> Tensor:
        """Return the weight in the pool's coordinates: as anchored, and as it is along the free columns."""
        if not len(self.free_columns):
            return self.anchor.start
        return _with_columns(self.anchor.start, self.free_columns, coordinates(weight, self.free))

    def displacement(self, weight: Tensor) -> Tensor:
        """Return how far the weight has moved along the free columns, out x f."""
        return (coordinates(weight, self.free) - self.free_start).to(self.free_start)

    def restored(self, weight: Tensor) -> Tensor:
        """Return the weight, back where it is held along the protected columns."""
        columns = _columns_at(self.basis, self.protected_columns)
        drift = coordinates(weight, columns) - _columns_at(self.anchor.target, self.protected_columns)
        return (weight - drift @ columns.mT.to(drift)).to(weight)


def coordinates(weight: Tensor, basis: Tensor) -> Tensor:
    """Return ``W B`` in the wider of both types."""
    wide = torch.promote_types(weight.dtype, basis.dtype)
    return weight.to(wide) @ basis.to(wide)


def _random_unit(like: Tensor) -> Tensor:
    drawn = torch.randn(len(like), generator=torch.Generator().manual_seed(0)).to(like)
    return drawn / drawn.norm()


def _columns(basis: Tensor, chosen: Tensor) -> Tensor:
    """Some columns; all of them without a copy."""
    return basis if bool(chosen.all()) else basis[:, chosen]


def _with_columns(matrix: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return a matrix with other values in some columns, in the wider type: the model may have changed its type."""
    wide = torch.promote_types(matrix.dtype, values.dtype)
    return matrix.to(wide).index_copy(1, columns, values.to(wide))


def _columns_at(matrix: Tensor, columns: Tensor) -> Tensor:
    return matrix if len(columns) == matrix.shape[1] else matrix.index_select(1, columns)
