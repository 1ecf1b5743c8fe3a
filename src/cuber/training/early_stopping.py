"""Early stopping by validation loss."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer

from cuber.core.learner import Method
from cuber.training.config import TrainingConfig


class EarlyStopping:
    """Divide the learning rate when patience runs out, stop when it is below the floor, keep the best weights.

    A new best validation loss resets the patience. Training continues from the current weights, not from the best ones.
    """

    def __init__(self, learner: Method, optimizer: Optimizer, training: TrainingConfig) -> None:
        assert training.patience is not None
        self.optimizer = optimizer
        self.training = training
        self.patience = self.epochs_left = training.patience
        self.lr = training.lr
        self.best_loss = math.inf
        self.best_epoch: int | None = None
        self._best = learner.snapshot()

    def observe(self, epoch: int, loss: float) -> bool:
        """Record the validation loss of an epoch; return whether it is the best so far, which NaN never is."""
        if loss < self.best_loss:
            self.best_loss, self.best_epoch, self.epochs_left = loss, epoch, self.patience
            self._best.take()
            return True
        self.epochs_left -= 1
        if self.epochs_left == 0:
            before = self.lr
            self.lr, self.epochs_left = before / self.training.factor, self.patience
            for group in self.optimizer.param_groups:
                group["lr"] *= self.lr / before
        return False

    @property
    def stopped(self) -> bool:
        """Whether the learning rate is below the floor."""
        return self.lr < self.training.floor

    def restore_best(self) -> int:
        """Restore the weights of the best epoch; return its number."""
        assert self.best_epoch is not None, "the first finite loss is the best"
        self._best.restore()
        return self.best_epoch

    def state(self) -> dict[str, Any]:
        """Return what ``load`` needs."""
        own = {name: getattr(self, name) for name in ("lr", "best_loss", "best_epoch", "epochs_left")}
        return own | {"weights": None if self.best_epoch is None else self._best.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        weights = state.pop("weights")
        vars(self).update(state)
        if weights is not None:
            self._best.load(weights)
