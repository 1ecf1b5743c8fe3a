"""Early stopping: the schedule of the learning rate, and the best weights so far."""

from __future__ import annotations

from torch.optim import Optimizer

from cuber.methods.method import Method
from cuber.training.schedule import Schedule
from cuber.training.settings import Training


class EarlyStopping:
    """Steers the optimizer's learning rate by the validation loss, and remembers the best epoch."""

    def __init__(self, learner: Method, optimizer: Optimizer, training: Training, patience: int) -> None:
        self.schedule = Schedule(training.lr, patience, training.factor, training.floor)
        self.optimizer = optimizer
        self.best_epoch: int | None = None
        self._best = learner.snapshot()

    def over_after(self, epoch: int, loss: float) -> bool:
        """Take note of an epoch's validation loss; whether training is over."""
        before = self.schedule.lr
        if self.schedule.observe(loss):
            self._best.take()
            self.best_epoch = epoch
        for group in self.optimizer.param_groups:
            group["lr"] *= self.schedule.lr / before
        return self.schedule.stopped

    def restore(self) -> None:
        """Back to the best weights; those of the last epoch stay where none had a finite loss."""
        if self.best_epoch is not None:
            self._best.restore()
