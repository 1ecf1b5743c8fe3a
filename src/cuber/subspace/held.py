"""A weight in the middle of a task: held where old tasks need it, free to move along some columns of the pool."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(eq=False)
class Held:
    """A weight that is where it was (``anchor``) along all columns of a pool but the ``free`` ones.

    What is read of it along the pool is known without a look at all of it: for any L out of the pool's columns,
    ``W L = anchor L + moved (free' L)``, where only ``moved`` changes.
    """

    anchor: Tensor
    """out x d."""
    free: Tensor
    """d x f."""

    def moved(self, weight: Tensor) -> Tensor:
        """``(W - anchor) free``: how far the weight has come along the free columns."""
        return (weight - self.anchor).to(self.free.dtype) @ self.free
