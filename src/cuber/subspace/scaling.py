"""Scalings: how a task reads the weight of a layer along the subspaces of old tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cuber.subspace.memory import LearnedScaling
from cuber.subspace.precision import in_float64

WORTHWHILE_SUPPORT = 0.75
"""Supports of scalings are used where they have at most this many times the columns of the pool."""


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
