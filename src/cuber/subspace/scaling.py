"""The scaled weight projection: how a new task reads what old ones have learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class LearntScaling:
    """What is kept of a scaling: the old tasks it is about, and the factors of S."""

    tasks: list[int]
    matrix: Tensor
    supports: list[Tensor]
    whole: Tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.matrix, self.whole, *self.supports))


@dataclass(eq=False)
class Scaling:
    """``W~ = W + sum over j of (W B_j) A_j B_j'``. Every A_j starts at 0, so W~ starts at W.

    All B_j are columns of one pool. With U for those that any of the tasks owns, ``W~ = W + (W U) S U'``, and S, the
    sum of the A_j, each at its columns, is what is learnt. Where tasks overlap their A_j have the same gradient and
    take the same steps: an entry that n of them share moves n times as far. So does that of ``S = root * M`` with
    ``root = sqrt(n)`` under gradient descent on M, whose gradient has the norm that those of all A_j have together.

    The gradient of A_j, ``(W B_j)' G B_j``, has no part outside the rows of ``W B_j``. Where these are few, and do not
    move, so is what there is of A_j to learn, and orthonormal coordinates for it (``supports``) are as good as its own.
    """

    basis: Tensor
    """U: d x K."""
    owned: Tensor
    """Which of the columns make up each B_j: tasks x K."""
    matrix: nn.Parameter
    """M: q x K."""
    supports: list[Tensor]
    """For each task, K x q_j, orthonormal, within its columns; none where all rows of S are whole."""
    whole: Tensor
    """Which rows of S are learnt as they are."""

    @classmethod
    def identity(
        cls,
        basis: Tensor,
        owned: Tensor,
        supports: Sequence[Tensor] = (),
        whole: Tensor | None = None,
        *,
        like: Tensor,
    ) -> Scaling:
        """A scaling that changes nothing yet, for a weight such as ``like``."""
        if whole is None:
            whole = torch.ones_like(owned[0])
        rows = sum(support.shape[1] for support in supports) + int(whole.sum())
        zeros = nn.Parameter(like.new_zeros(rows, basis.shape[1]))
        return cls(basis.to(like), owned, zeros, [support.to(like) for support in supports], whole)

    @cached_property
    def left(self) -> Tensor:
        """L: ``W~ = W + (W L) (root * M) U'``."""
        if not self.supports:
            return self.basis
        return torch.cat([*(self.basis @ support for support in self.supports), self.basis[:, self.whole]], dim=1)

    @cached_property
    def root(self) -> Tensor:
        """The root of how many tasks share an entry: q x K."""
        owned = self.owned.to(self.basis)
        shared = (owned[:, self.whole].mT @ owned).sqrt()
        alone = [owned[task].expand(support.shape[1], -1) for task, support in enumerate(self.supports)]
        return torch.cat([*alone, shared])

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
        rows = [*self.supports, torch.eye(len(self.whole)).to(self.basis)[:, self.whole]]
        return torch.cat(rows, dim=1) @ self.applied.detach()

    def learnt(self, tasks: list[int]) -> LearntScaling:
        """A copy of what has been learnt so far."""
        return LearntScaling(tasks, self.matrix.detach().clone(), self.supports, self.whole)

    def input(self, vectors: Tensor) -> Tensor:
        """``x~`` for every vector, the last dimension of a tensor of any shape: ``W~ x = W x~``."""
        return vectors + ((vectors @ self.basis) @ self.applied.mT) @ self.left.mT

    def weight(self, weight: Tensor) -> Tensor:
        """``W~``."""
        return weight + ((weight @ self.left) @ self.applied) @ self.basis.mT

    def follow(self, weight: Tensor) -> None:
        """Go where the weight has gone, when a model is moved to another device or type."""
        if self.basis.device != weight.device or self.basis.dtype != weight.dtype:
            self.__dict__ = self.__getstate__()
            self.basis, self.owned, self.whole = self.basis.to(weight), *self._at(weight)
            self.supports = [support.to(weight) for support in self.supports]
            self.matrix.data = self.matrix.data.to(weight)

    def _at(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.owned.to(weight.device), self.whole.to(weight.device)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}


def supports_of(weight: Tensor, basis: Tensor, owned: Tensor, free: Tensor) -> tuple[list[Tensor], Tensor]:
    """Supports for all that can be learnt while W may move along the ``free`` columns of the basis only.

    And which rows of S are learnt whole: the free ones, or all where supports would not save much.
    """
    if 2 * len(owned) * len(weight) + int(free.sum()) > basis.shape[1]:
        return [], torch.ones_like(free)
    return [_support(weight.to(basis) @ basis, columns & ~free) for columns in owned], free


def _support(read: Tensor, columns: Tensor) -> Tensor:
    """Orthonormal coordinates, at these columns, for all rows of what is read."""
    part = read[:, columns].mT
    exact = part.cpu().double() if part.device.type == "mps" else part.double()  # Apple's GPUs have no float64
    within = torch.linalg.qr(exact).Q.to(read)
    support = read.new_zeros(len(columns), within.shape[1])
    support[columns] = within
    return support
