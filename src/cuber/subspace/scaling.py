"""The scaled weight projection: how a new task reads what an old one has learnt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass
class Scaling:
    """``Q = I + A`` on one old task's subspace: ``W~ = W + (W B) A B'``. A starts at 0, so W~ starts at W."""

    basis: Tensor
    matrix: nn.Parameter

    @classmethod
    def identity(cls, basis: Tensor, *, like: Tensor) -> Scaling:
        """A scaling that changes nothing yet, for a weight such as ``like``."""
        basis = basis.to(like)
        rank = basis.shape[1]
        return cls(basis, nn.Parameter(basis.new_zeros(rank, rank)))

    def follow(self, weight: Tensor) -> None:
        """Go where the weight has gone, when a model is moved to another device or type."""
        if self.basis.device != weight.device or self.basis.dtype != weight.dtype:
            self.basis = self.basis.to(weight)
            self.matrix.data = self.matrix.data.to(weight)


def scaled_weight(weight: Tensor, scalings: Iterable[Scaling]) -> Tensor:
    """``W + sum over j of (W B_j) A_j B_j'``."""
    effective = weight
    for scaling in scalings:
        effective = effective + ((weight @ scaling.basis) @ scaling.matrix) @ scaling.basis.T
    return effective


def scaled_input(vectors: Tensor, scalings: Iterable[Scaling]) -> Tensor:
    """The same from the other side: ``W~ x = W x~`` with ``x~ = x + sum over j of B_j A_j B_j' x``."""
    effective = vectors
    for scaling in scalings:
        effective = effective + ((vectors @ scaling.basis) @ scaling.matrix.T) @ scaling.basis.T
    return effective
