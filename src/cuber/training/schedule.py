"""The learning rate under early stopping by validation loss."""

from __future__ import annotations

import math


class Schedule:
    """Divide the learning rate when patience is used up, and stop when it is below the floor.

    A new best validation loss resets the patience; training goes on from the present weights, not from the best ones.

    >>> schedule = Schedule(lr=0.1, patience=1, factor=2.0, floor=0.05)
    >>> schedule.observe(1.0), schedule.observe(2.0), schedule.lr, schedule.stopped
    (True, False, 0.05, False)
    """

    def __init__(self, lr: float, patience: int, factor: float, floor: float) -> None:
        self.lr = lr
        self.patience = patience
        self.factor = factor
        self.floor = floor
        self.best = math.inf
        self.left = patience

    @property
    def stopped(self) -> bool:
        """Whether training is over."""
        return self.lr < self.floor

    def observe(self, loss: float) -> bool:
        """Take note of an epoch's validation loss; whether it is the best so far (NaN never is)."""
        if loss < self.best:
            self.best, self.left = loss, self.patience
            return True
        self.left -= 1
        if self.left == 0:
            self.lr, self.left = self.lr / self.factor, self.patience
        return False
