"""Early stopping: the schedule of the learning rate, and the best weights so far."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from cuber.core.learner import Method
from cuber.training.config import TrainingConfig
from cuber.training.schedule import Schedule


class EarlyStopping:
    """Steers the optimizer's learning rate by the validation loss, and remembers the best epoch."""

    def __init__(self, learner: Method, optimizer: Optimizer, training: TrainingConfig, patience: int) -> None:
        self.schedule = Schedule(training.lr, patience, training.factor, training.floor)
        self.optimizer = optimizer
        self.best_epoch: int | None = None
        self._best = learner.snapshot()

    def observe(self, epoch: int, loss: float) -> None:
        """Take note of an epoch's validation loss."""
        before = self.schedule.lr
        if self.schedule.observe(loss):
            self._best.take()
            self.best_epoch = epoch
        for group in self.optimizer.param_groups:
            group["lr"] *= self.schedule.lr / before

    @property
    def over(self) -> bool:
        """Whether the learning rate has fallen below its floor."""
        return self.schedule.stopped

    def restore(self) -> None:
        """Back to the best weights; those of the last epoch stay where none had a finite loss."""
        if self.best_epoch is not None:
            self._best.restore()

    def state(self) -> dict[str, Any]:
        """What must be known to go on; the best weights only where there are any yet."""
        best = None if self.best_epoch is None else self._best.state()
        return {"schedule": vars(self.schedule).copy(), "best_epoch": self.best_epoch, "best": best}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        vars(self.schedule).update(state["schedule"])
        self.best_epoch = state["best_epoch"]
        if state["best"] is not None:
            self._best.load(state["best"])
