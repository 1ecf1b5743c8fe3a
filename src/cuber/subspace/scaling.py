"""The scaled weight projection: how a new task reads what old ones have learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from cuber.subspace.exact import in_float64

WORTHWHILE = 0.75
"""Supports may have at most so many times as many columns in all as S has."""


@dataclass
class LearnedScaling:
    """What is kept of a scaling: the old tasks it is about, and the factors of S."""

    tasks: list[int]
    matrix: Tensor
    supports: list[Tensor]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.matrix, *self.supports))


@dataclass(eq=False)
class Scaling:
    """``W~ = W + sum over j of (W B_j) A_j B_j'``. Every A_j starts at 0, so W~ starts at W.

    All B_j are columns of one pool. With U for those that any of the tasks owns, ``W~ = W + (W U) S U'``, and S, the
    sum of the A_j, each at its columns, is what is learnt. Where tasks overlap their A_j have the same gradient and
    take the same steps: an entry that n of them share moves n times as far. So does that of ``S = root * M`` with
    ``root = sqrt(n)`` under gradient descent on M, whose gradient has the norm that those of all A_j have together.

    The gradient of A_j, ``(W B_j)' G B_j``, has no part outside the rows of ``W B_j``. Where these are few, and move
    along few columns, so is what there is of A_j to learn. Then ``A_j = support M_j``: orthonormal coordinates are as
    good as A_j's own. M has all M_j below each other, and no entry belongs to more than one task.
    """

    basis: Tensor
    """U: d x K."""
    owned: Tensor
    """Which of the columns make up each B_j: tasks x K."""
    matrix: nn.Parameter
    """M: q x K."""
    supports: list[Tensor]
    """For each task, K x q_j, orthonormal, within its columns; none where ``root * M`` is S itself."""

    @classmethod
    def identity(cls, basis: Tensor, owned: Tensor, supports: Sequence[Tensor] = (), *, like: Tensor) -> Scaling:
        """A scaling that changes nothing yet, for a weight such as ``like``."""
        rows = sum(support.shape[1] for support in supports) if supports else basis.shape[1]
        zeros = nn.Parameter(like.new_zeros(rows, basis.shape[1]))
        return cls(basis.to(like), owned, zeros, [support.to(like) for support in supports])

    @cached_property
    def left(self) -> Tensor:
        """L: ``W~ = W + (W L) (root * M) U'``."""
        return self.basis @ torch.cat(self.supports, dim=1) if self.supports else self.basis

    @cached_property
    def root(self) -> Tensor:
        """The root of how many tasks share an entry: q x K."""
        owned = self.owned.to(self.basis)
        if not self.supports:
            return (owned.mT @ owned).sqrt()
        counts = torch.tensor([support.shape[1] for support in self.supports], device=owned.device)
        return owned.repeat_interleave(counts, dim=0)

    @cached_property
    def shares(self) -> bool:
        """Whether any entry belongs to more than one task: if not, ``root * M`` is M."""
        return bool((self.root > 1).any())

    @property
    def applied(self) -> Tensor:
        """``root * M``, differentiable."""
        return self.matrix * self.root

    def dense(self) -> Tensor:
        """S: K x K."""
        applied = self.applied.detach()
        return torch.cat(self.supports, dim=1) @ applied if self.supports else applied

    def learnt(self, tasks: list[int]) -> LearnedScaling:
        """A copy of what has been learnt so far."""
        return LearnedScaling(tasks, self.matrix.detach().clone(), self.supports)

    def input(self, vectors: Tensor, matrix: Tensor | None = None) -> Tensor:
        """``x~`` for every vector, the last dimension of a tensor of any shape: ``W~ x = W x~``."""
        applied = self.applied if matrix is None else matrix * self.root
        return vectors + ((vectors @ self.basis) @ applied.mT) @ self.left.mT

    def weight(self, weight: Tensor, matrix: Tensor | None = None) -> Tensor:
        """``W~``; with another M than its own, if one is given."""
        applied = self.applied if matrix is None else matrix * self.root
        return weight + ((weight @ self.left) @ applied) @ self.basis.mT

    def follow(self, weight: Tensor) -> None:
        """Go where the weight has gone, when a model is moved to another device or type."""
        if self.basis.device != weight.device or self.basis.dtype != weight.dtype:
            self.__dict__ = self.__getstate__()
            self.basis, self.owned = self.basis.to(weight), self.owned.to(weight.device)
            self.supports = [support.to(weight) for support in self.supports]
            self.matrix.data = self.matrix.data.to(weight)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}


def supports_of(weight: Tensor, basis: Tensor, owned: Tensor, free: Tensor) -> list[Tensor]:
    """Supports for all that can be learnt while W may move along the ``free`` columns of the basis only.

    None where they would not save much.
    """
    rows = len(owned) * len(weight) + int((owned & free).sum())
    if rows > WORTHWHILE * basis.shape[1]:
        return []
    read = weight.to(basis) @ basis
    return [_support(read, columns & ~free, columns & free) for columns in owned]


def _support(read: Tensor, still: Tensor, free: Tensor) -> Tensor:
    """Coordinates, at the columns where the weight is still, for all rows of what is read; and the free columns."""
    within = torch.linalg.qr(in_float64(read[:, still].mT)).Q.to(read)
    support = read.new_zeros(len(still), within.shape[1])
    support[still] = within
    return torch.cat([support, torch.eye(len(free)).to(read)[:, free]], dim=1)
