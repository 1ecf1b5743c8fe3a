"""The update of one layer by an adapter: how large it may grow, and where old tasks may change by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cuber.subspace import Penalty

NEGLIGIBLE = 1e-6
"""Coordinates of a row, which has length 1, that count as 0."""


@dataclass
class MovingRows:
    """The last rows of an update ``s B A``: directions in the subspaces of old tasks in regime 3.

    Args:
        coordinates: of the rows, in the columns of the pool that were free when the task began, k x f.
        held: rows that may not be trained any more, since an old task that reads them was demoted, k.
        values: their columns of B, out x k.
    """

    coordinates: Tensor
    held: Tensor
    values: Tensor

    @classmethod
    def of(cls, directions: Tensor, columns: Tensor, up: Tensor) -> MovingRows:
        """Return the rows along ``directions`` (d x k), in the span of ``columns`` (d x f), with their part of B."""
        coordinates = (directions.mT @ columns.to(directions)).to(up)
        held = torch.zeros(len(coordinates), dtype=torch.bool, device=up.device)
        return cls(coordinates, held, up.detach().clone())

    def hold(self, up: Tensor, movable: Tensor) -> None:
        """Hold rows along columns that are not ``movable`` (f) any more, where their part of B is now."""
        self.held = (self.coordinates[:, ~movable].abs() > NEGLIGIBLE).any(1)
        self.values = up.detach().clone()


class AdapterUpdate:
    """The update ``s B A`` that the present task makes to the weight of one layer, for all tasks. B is trained.

    The rows of A are orthonormal: first those outside the pool, then the moving ones.

    Args:
        up: B, out x r.
        scale: s.
        largest: norm that the part outside the pool may reach.
        moving: the last rows; None: the whole update is outside the pool.
        largest_moving: norm that their part may reach.
        penalty: on the displacement along the columns that were free when the task began.
    """

    def __init__(
        self,
        up: nn.Parameter,
        scale: float,
        largest: float,
        moving: MovingRows | None,
        largest_moving: float,
        penalty: Penalty | None,
    ) -> None:
        self.up, self.scale = up, scale
        self.largest, self.largest_moving = largest, largest_moving
        self.moving, self.penalty = moving, penalty

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.up]

    @property
    def _first_moving(self) -> int:
        return self.up.shape[1] - (0 if self.moving is None else len(self.moving.held))

    def _part(self, tensor: Tensor) -> Tensor:
        """Return the columns of B, or of its gradient, that belong to moving rows."""
        return tensor[:, self._first_moving :]

    @torch.no_grad()
    def displacement(self, moving: MovingRows) -> Tensor:
        """Return how far the weight has moved along the columns that were free, out x f."""
        return self.scale * (self._part(self.up) @ moving.coordinates)

    @torch.no_grad()
    def constrain_gradient(self, lam: float, lr: float) -> None:
        """Add the gradient of the penalty to that of the moving rows, and remove the gradient of held ones."""
        if self.moving is None or self.up.grad is None:
            return
        gradient = self._part(self.up.grad)
        if self.penalty is not None:
            pull = self.penalty.gradient(self.displacement(self.moving)) @ self.moving.coordinates.mT
            gradient.add_(pull, alpha=self.scale * self._strength(self.penalty, lam, lr))
        gradient[:, self.moving.held] = 0.0

    def penalty_value(self, lam: float, lr: float) -> Tensor:
        """Return the value of the penalty."""
        if self.moving is None or self.penalty is None:
            return self.up.new_zeros(())
        return self._strength(self.penalty, lam, lr) * self.penalty.value(self.displacement(self.moving))

    def _strength(self, penalty: Penalty, lam: float, lr: float) -> float:
        return penalty.strength(lam, lr * self.scale**2)  # a step on B moves the weight by s^2 times its gradient

    @torch.no_grad()
    def restrain(self) -> None:
        """Restore what is held, and shorten parts that have grown too large."""
        self._shorten(slice(self._first_moving), self.largest)
        if self.moving is None:
            return
        part, held = self._part(self.up), self.moving.held
        part[:, held] = self.moving.values[:, held]
        trained = torch.arange(self._first_moving, self.up.shape[1], device=held.device)[~held]
        self._shorten(trained, max(0.0, self.largest_moving - self._norm(part[:, held])))

    def _shorten(self, columns: slice | Tensor, largest: float) -> None:
        if largest < math.inf:
            part = self.up[:, columns]
            if (norm := self._norm(part, at_least=largest)) > largest:
                self.up[:, columns] = part * (largest / norm)

    def norms(self) -> tuple[float, float]:
        """Return the norms of the part outside the pool, and of the part along moving rows."""
        up = self.up.detach()
        return self._norm(up[:, : self._first_moving]), self._norm(self._part(up))

    def _norm(self, up: Tensor, *, at_least: float = 0.0) -> float:
        """Return the largest singular value of ``s B A``, or a cheaper upper bound that is below ``at_least``."""
        if not up.shape[1]:
            return 0.0
        bound = self.scale * float(up.norm())
        return bound if bound < at_least else self.scale * float(torch.linalg.matrix_norm(up.float(), 2))

    def hold(self, movable: Tensor, penalty: Penalty | None) -> None:
        """Let only rows along ``movable`` columns train on, with another penalty."""
        assert self.moving is not None
        self.moving.hold(self._part(self.up), movable)
        self.penalty = penalty

    def hold_here(self) -> None:
        """Hold what is held where B is now."""
        if self.moving is not None:
            self.moving.values = self._part(self.up).detach().clone()
