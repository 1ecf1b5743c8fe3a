"""Where the weight of a layer may move while a task is learned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cuber.subspace.penalty import Penalty
from cuber.subspace.projection import Projector


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
