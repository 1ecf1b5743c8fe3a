"""What a task may do with the weight of a layer: where it may move, with projections and penalties, and its scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cuber.subspace.gram import WIDE, Gram, complement
from cuber.subspace.memory import BACKWARD_TRANSFER, LayerMemory, LearnedScaling, columns
from cuber.subspace.precision import in_float64
from cuber.subspace.quadratic import SoftProjector

CLEARLY_FEWER = 0.9
"""The complement is used where it has at most this share of the columns: it takes up memory of its own.

Never in wide layers: to compute it, a d x d matrix is needed."""


WORTHWHILE_SUPPORT = 0.75
"""Supports of scalings are used where they have at most this many times the columns of the pool."""


class Projector:
    """``G -> G - (G U) U'`` for an orthonormal ``U``, computed by its complement where that has fewer columns.

    >>> projector = Projector(torch.eye(3)[:, :1])
    >>> projector.outside(torch.ones(1, 3)), projector.inside(torch.ones(1, 3))
    (tensor([[0., 1., 1.]]), tensor([[1., 0., 0.]]))
    """

    def __init__(self, protected: Tensor) -> None:
        dimension, self.rank = protected.shape
        self.by_complement = dimension <= WIDE and dimension - self.rank < CLEARLY_FEWER * self.rank
        self._columns = complement(protected) if self.by_complement else protected

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
        projector: what is removed from gradients (default: their part along the protected columns).
        anchored: whether scalings read the weight where it is anchored, as a constant along protected columns.
    """

    def __init__(
        self,
        basis: Tensor,
        protected: Tensor,
        free: Tensor,
        anchor: Anchor,
        penalty: Penalty | None = None,
        projector: SoftProjector | None = None,
        anchored: bool = True,
    ) -> None:
        self.basis = basis
        self.anchored = anchored
        self.anchor = anchor
        self.penalty = penalty
        self.protected_columns = protected
        self.soft = projector
        self.projector = projector or Projector(self.protected)
        self.free = columns(basis, free)
        """d x f."""
        self.free_columns = free.nonzero().flatten()
        self.movable = ~protected[free]
        """Which of the free columns are still free, f."""
        self.free_start = anchor.start.index_select(1, self.free_columns)

    @property
    def protected(self) -> Tensor:
        """The protected columns, d x p."""
        return columns(self.basis, self.protected_columns)

    @property
    def held(self) -> Tensor:
        """What the weight is held to along them, out x p."""
        return columns(self.anchor.target, self.protected_columns)

    def inside(self, gradient: Tensor) -> Tensor:
        """Return what a gradient must lose: ``(G U) U'``, or what a soft projector removes."""
        if self.soft is not None:
            return self.soft.inside(gradient)
        protected = self.protected.to(gradient)
        return (gradient @ protected) @ protected.mT

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
        protected = self.protected
        drift = coordinates(weight, protected) - self.held
        return (weight - drift @ protected.mT.to(drift)).to(weight)


def coordinates(weight: Tensor, basis: Tensor) -> Tensor:
    """Return ``W B`` in the wider of both types."""
    wide = torch.promote_types(weight.dtype, basis.dtype)
    return weight.to(wide) @ basis.to(wide)


def _with_columns(matrix: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Return a matrix with other values in some columns, in the wider type: the model may have changed its type."""
    wide = torch.promote_types(matrix.dtype, values.dtype)
    return matrix.to(wide).index_copy(1, columns, values.to(wide))


class Scaling:
    """``W~ = W + sum over j of (W B_j) A_j B_j'``. Every ``A_j`` starts at 0, so ``W~`` starts at ``W``.

    All ``B_j`` are columns of one pool ``U``, so ``W~ = W + (W U) S U'``, where S is the sum of the ``A_j``, each at
    its columns. Where tasks share columns their ``A_j`` have the same gradient. Gradient descent on ``M``, with
    ``S = share * M`` and ``share = sqrt(n)`` at entries that n tasks share, makes the steps of gradient descent on all
    ``A_j``.

    With few outputs, ``A_j = support_j M_j`` with orthonormal supports: the gradient ``(W B_j)' G B_j`` of ``A_j`` has
    no part outside the rows of ``W B_j``. M then has all ``M_j`` below each other, and shares nothing.

    Args:
        basis: U, d x K.
        owned: which columns make up each ``B_j``, tasks x K.
        supports: K x q_j for each task, or none.
        like: the weight, for dtype and device.
        matrix: M, if some of it has been learned.
        train: whether M is to be learned.
    """

    def __init__(
        self,
        basis: Tensor,
        owned: Tensor,
        supports: list[Tensor],
        like: Tensor,
        matrix: Tensor | None = None,
        *,
        train: bool = False,
    ) -> None:
        self.basis = basis.to(like)
        self.supports = [support.to(like) for support in supports]
        self.left = torch.cat(self.supports, dim=1) if supports else None
        """K x q; None: the identity."""
        share = owned.to(like)
        if supports:
            counts = torch.tensor([support.shape[1] for support in supports], device=owned.device)
            self.share = share.repeat_interleave(counts, dim=0)
        else:
            self.share = (share.mT @ share).to(like).sqrt()  # inside an autocast, products are in half precision
        values = torch.zeros_like(self.share) if matrix is None else matrix.to(like)
        self.matrix = nn.Parameter(values, requires_grad=train)
        self._is_mask = bool((self.share <= 1).all())
        self._mask_gradient()

    def _mask_gradient(self) -> None:
        """Where ``share`` is a mask, entries outside it are 0 and stay 0 if their gradient is."""
        if self._is_mask and self.matrix.requires_grad:
            self.matrix.register_hook(self._masked)

    def _masked(self, gradient: Tensor) -> Tensor:
        return gradient * self.share

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._mask_gradient()  # copies of parameters have no hooks

    @property
    def applied(self) -> Tensor:
        """``share * M``, q x K, differentiable."""
        return self.matrix if self._is_mask else self.matrix * self.share

    def read(self, along: Tensor) -> Tensor:
        """Return what M multiplies, out x q, of a weight that is ``along`` (out x K) in the pool's coordinates."""
        return along if self.left is None else along @ self.left

    def weight(self, weight: Tensor, along: Tensor) -> Tensor:
        """Return ``W~`` for a weight that is ``along`` in the pool's coordinates: ``W U``, or where it is anchored."""
        return weight + (self.read(along) @ self.applied) @ self.basis.mT

    def dense(self) -> Tensor:
        """Return S, K x K."""
        applied = self.applied.detach()
        return applied if self.left is None else self.left @ applied

    def read_moments(self, moments: Tensor) -> Tensor:
        """Return the sum of ``z z'`` over ``z = (I + U S U') x``, which W is multiplied with, from that of ``x x'``."""
        basis = self.basis.to(moments)
        scale = torch.eye(len(basis)).to(basis) + basis @ self.dense().to(basis) @ basis.mT
        return scale @ moments @ scale.mT

    def learned(self, tasks: list[int]) -> LearnedScaling:
        """Return a copy of what has been learned so far."""
        return LearnedScaling(tasks, self.matrix.detach().clone(), self.supports)

    def fits(self, weight: Tensor) -> bool:
        """Return whether it has the dtype and device of a weight."""
        return self.basis.dtype == weight.dtype and self.basis.device == weight.device

    def move(self, weight: Tensor) -> None:
        """Take the dtype and device of a weight; the parameter stays the same object."""
        self.basis, self.share = self.basis.to(weight), self.share.to(weight)
        self.supports = [support.to(weight) for support in self.supports]
        self.left = None if self.left is None else self.left.to(weight)
        self.matrix.data = self.matrix.data.to(weight)


def supports_of(along: Tensor, owned: Tensor, free: Tensor) -> list[Tensor]:
    """Return supports for all that can be learned while the weight moves along the ``free`` columns only.

    Args:
        along: the weight in the pool's coordinates, out x K.
        owned: which columns each selected task owns, tasks x K.
        free: which columns the weight may move along, K.

    Returns:
        K x q_j for each task; an empty list where they would not save much.
    """
    if len(owned) * len(along) + int((owned & free).sum()) > WORTHWHILE_SUPPORT * along.shape[1]:
        return []
    return [_support(along, columns & ~free, columns & free) for columns in owned]


def _support(along: Tensor, still: Tensor, free: Tensor) -> Tensor:
    """Span the rows of ``along`` at the columns that stay, and every free column."""
    rows = torch.linalg.qr(in_float64(along[:, still].mT)).Q.to(along)
    support = along.new_zeros(len(still), rows.shape[1])
    support[still] = rows
    return torch.cat([support, torch.eye(len(free)).to(along)[:, free]], dim=1)
