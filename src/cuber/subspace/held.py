"""A weight in the middle of a task: held where old tasks need it, free to move along some columns of the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cuber.subspace.projection import Projector

DISAGREEMENT = 1e-4
"""So much of it, what is carried along may differ from what the weight says."""

ROUNDING = 10
"""So many times what a number is rounded by, a weight may be off between two ends of epochs."""


@dataclass(eq=False)
class Held:
    """A weight that is held along every column of a pool: where it was along them is all there is to know."""

    basis: Tensor
    """The pool's: d x K."""
    along: Tensor
    """Where the weight was: out x K."""
    size: float
    """Its norm."""
    whole: Tensor | None = None
    """A weight that is where it should be along the pool (out x d), if one is at hand."""

    @classmethod
    def of(cls, weight: Tensor, basis: Tensor) -> Held:
        """As the weight is now."""
        return cls(basis, _along(weight, basis), float(weight.norm()))

    @property
    def free(self) -> Tensor:
        """Columns along which the weight is not held: d x f."""
        return self.basis[:, :0]

    @cached_property
    def still(self) -> Tensor:
        """How far the weight has ever come along the free columns, of which there are none."""
        return self.along.new_zeros(len(self.along), 0)

    def read(self, left: Tensor) -> Tensor:
        """What the weight was along the pool's columns, or some of them, or combinations: ``anchor L``."""
        return self.along if left is self.basis else self.along.to(left) @ (self.basis.to(left).mT @ left)

    def at(self, direction: Tensor) -> Tensor:
        """What the weight should be along a direction within the pool."""
        if self.whole is not None:
            return self.whole.mv(direction.to(self.whole))
        return self.along.mv((direction @ self.basis).to(self.along))

    def change(self, weight: Tensor) -> Tensor:
        """How far the weight has come along each column of the pool."""
        return _along(weight, self.basis) - self.along

    def keep_whole(self, weight: Tensor) -> None:
        """Have a whole weight at hand, as it is going to be put back often."""
        if self.whole is None:
            self.whole = self._put_back_along(weight).clone()

    def put_back(self, weight: Tensor, projector: Projector) -> Tensor:
        """The weight, back where it is held in the protected directions: here, all of the pool."""
        if self.whole is None:
            return self._put_back_along(weight)
        return self.whole + projector(weight - self.whole)

    def _put_back_along(self, weight: Tensor) -> Tensor:
        """The longer way. What has not moved stays as it is, to the bit: its change is 0."""
        change = self.change(weight)
        return (weight - change @ self.basis.to(change).mT).to(weight)

    def follow(self, weight: Tensor) -> None:
        """The weight has been put back to where it was at some time in this task: along the pool, it is held there."""

    def state(self) -> dict[str, Any]:
        """What must be remembered."""
        kept = {"along": self.along, "size": self.size}
        return kept if self.whole is None else kept | {"whole": self.whole}


def _along(weight: Tensor, basis: Tensor) -> Tensor:
    wide = torch.promote_types(weight.dtype, basis.dtype)
    return weight.to(wide) @ basis.to(wide)


@dataclass(eq=False)
class PartlyHeld:
    """A weight that is held along all columns of a pool but the ``free`` ones.

    How far it has come along these is told by the whole of it: a difference of products would drown small moves.
    """

    basis: Tensor
    """The pool's: d x K."""
    anchor: Tensor
    """Where the weight was: out x d."""
    free: Tensor
    """d x f."""
    reference: Tensor | None = None
    """Where it is held, if that is no longer where it was."""

    def read(self, left: Tensor) -> Tensor:
        return self.anchor.to(left) @ left

    def at(self, direction: Tensor) -> Tensor:
        return self.whole.mv(direction.to(self.whole))

    def change(self, weight: Tensor) -> Tensor:
        return _along(weight - self.anchor, self.basis)

    @property
    def size(self) -> float:
        return float(self.anchor.norm())

    @property
    def whole(self) -> Tensor:
        return self.anchor if self.reference is None else self.reference

    def put_back(self, weight: Tensor, projector: Projector) -> Tensor:
        return self.whole + projector(weight - self.whole)

    def follow(self, weight: Tensor) -> None:
        """The same; along columns that have ceased to be free, it may have been elsewhere at that time."""
        if self.reference is not None:
            self.reference = weight.clone()

    def state(self) -> dict[str, Any]:
        return {"anchor": self.anchor} | ({} if self.reference is None else {"reference": self.reference})

    def moved(self, weight: Tensor) -> Tensor:
        """``(W - anchor) free``: how far the weight has come along the free columns."""
        return (weight - self.anchor).to(self.free.dtype) @ self.free

    @cached_property
    def probe(self) -> Tensor:
        """A direction drawn from the free ones, in their coordinates."""
        drawn = torch.randn(self.free.shape[1], generator=torch.Generator().manual_seed(0)).to(self.free)
        return drawn / drawn.norm()

    @cached_property
    def direction(self) -> Tensor:
        """The same in the weight's own space."""
        return self.free @ self.probe

    def agrees(self, read: Tensor, moved: Tensor) -> bool:
        """Whether a weight may have moved so far, judged by ``W direction``."""
        gone = (read - self._at_anchor).to(moved)
        error = torch.addmv(gone, moved, self.probe, alpha=-1)
        allowed = DISAGREEMENT * math.sqrt(gone.dot(gone).item()) + self._rounding
        return bool(error.dot(error).item() <= allowed**2)

    @cached_property
    def _at_anchor(self) -> Tensor:
        return self.anchor @ self.direction.to(self.anchor)

    @cached_property
    def _rounding(self) -> float:
        return 100 * torch.finfo(self.anchor.dtype).eps * float(self._at_anchor.norm())


class Reading:
    """What is read of a held weight, ``W L``, for the L of a scaling: d x q.

    It is known without a look at all of W: ``W L = anchor L + moved T`` with ``T = free' L``. A column of L is one of
    the free columns or orthogonal to them all, so T, of zeros and ones, is told by its ones and takes no product.
    """

    def __init__(self, held: Held | PartlyHeld, left: Tensor) -> None:
        self.free = held.free.to(left)
        self.anchored = held.read(left)
        ones = (self.free.mT @ left > 0.5).nonzero()
        self._columns, self._places = ones[:, 0], ones[:, 1]
        self.turns = self.free.shape[1] > 0

    def after(self, moved: Tensor) -> Tensor:
        """What is read once the weight has moved so far."""
        return self.plus(self.anchored, moved.to(self.anchored)) if self.turns else self.anchored

    def plus(self, rows: Tensor, moved: Tensor) -> Tensor:
        """``rows + moved T``."""
        return rows.index_add(1, self._places, moved.index_select(1, self._columns))

    def back(self, rows: Tensor) -> Tensor:
        """``rows T'``."""
        back = rows.new_zeros(len(rows), self.free.shape[1])
        return back.index_add_(1, self._columns, rows.index_select(1, self._places))

    def times(self, matrix: Tensor) -> Tensor:
        """``T matrix``."""
        return self.back(matrix.mT).mT
