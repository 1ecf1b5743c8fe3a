"""A weight in the middle of a task: held where old tasks need it, free to move along some columns of the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

DISAGREEMENT = 1e-4
"""So much of it, what is carried along may differ from what the weight says."""


@dataclass(eq=False)
class Held:
    """A weight that is where it was (``anchor``) along all columns of a pool but the ``free`` ones."""

    anchor: Tensor
    """out x d."""
    free: Tensor
    """d x f."""

    @cached_property
    def still(self) -> Tensor | None:
        """What ``moved`` always is where nothing is free."""
        return None if self.free.shape[1] else self.free.new_zeros(len(self.anchor), 0)

    def moved(self, weight: Tensor) -> Tensor:
        """``(W - anchor) free``: how far the weight has come along the free columns."""
        return (weight - self.anchor).to(self.free.dtype) @ self.free if self.still is None else self.still

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
        expected = moved.mv(self.probe)
        error = (read - self._at_anchor).to(expected) - expected
        allowed = DISAGREEMENT * math.sqrt(expected.dot(expected).item()) + self._rounding
        return bool(error.dot(error).item() <= allowed**2)

    @cached_property
    def _at_anchor(self) -> Tensor:
        return self.anchor @ self.direction.to(self.anchor)

    @cached_property
    def _rounding(self) -> float:
        return 100 * torch.finfo(self.anchor.dtype).eps * float(self._at_anchor.norm())


class Reading:
    """What is read of a held weight, ``W L``, for an L (d x q) out of the pool's columns.

    It is known without a look at all of W: ``W L = anchor L + moved (free' L)``.
    """

    def __init__(self, held: Held, left: Tensor) -> None:
        self.free = held.free.to(left)
        self.anchored = held.anchor.to(left) @ left
        self.turn = self.free.mT @ left
        """What a move along the free columns is in what is read: f x q."""
        self.turns = len(self.turn) > 0

    def after(self, moved: Tensor) -> Tensor:
        """What is read once the weight has moved so far."""
        return self.anchored + moved.to(self.turn) @ self.turn if self.turns else self.anchored
