"""What the training loops share: steps, tests, and the result, which is kept in a directory."""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuber.core import batches, distributed
from cuber.core.learner import LossFunction, Method
from cuber.core.metric import ACCURACY, Metric
from cuber.core.randomness import derive, seeded
from cuber.errors import CuberError, CuberWarning
from cuber.layers import normalized_by_batch
from cuber.runs.directory import RunDirectory, recorded_signals
from cuber.runs.lock import RefusedError
from cuber.runs.result import VIEWS, Epoch, Result
from cuber.streams import Split, Stream
from cuber.training.config import TrainingConfig
from cuber.training.describe import configuration, empty_result, pool_of, regimes_of
from cuber.training.evaluation import Score, evaluate, shown
from cuber.training.forward import autocast, compiling, float32_products
from cuber.training.optimizers import OptimizerFactory, wrapped_optimizer
from cuber.training.progress import Progress

if TYPE_CHECKING:
    from cuber.training.theory_recorder import TheoryRecorder

ORDERS = 5
"""Number of other orders of the test samples, to measure the spread that the order causes."""


@dataclass(eq=False)
class TaskLoop(ABC):
    """Runs a method through a stream: ``learn()`` returns the result.

    Methods draw their random numbers apart from training, so they do not change its order of samples.
    """

    learner: Method
    stream: Stream
    config: TrainingConfig
    seed: int
    make_optimizer: OptimizerFactory
    loss_fn: LossFunction
    progress: Progress | None = None
    observer: TheoryRecorder | None = None
    metric: Metric = ACCURACY

    def __post_init__(self) -> None:
        self._directory: RunDirectory | None = None  # only in the first process
        self._keeps = False  # whether there is a directory
        self._signals: list[int] = []
        self._set_result(empty_result(self))
        self._reset()

    def learn(self, directory: RunDirectory | None, about: Mapping[str, Any]) -> Result:
        """Run from the first task, or from the checkpoint in the directory, to the last."""
        if directory is None:
            return self._learn_tasks(None)
        alone = not distributed.is_active()  # torchrun passes a Ctrl-C on that its processes have received already
        with ExitStack() as opened, recorded_signals(impatient=alone) as self._signals:

            def open_directory() -> tuple[Result | None, dict[str, Any] | None]:
                opened.enter_context(directory)
                return directory.open(configuration(self.result, self.stream, about))

            finished, state = distributed.on_first(open_directory)
            if finished is not None:
                self._restore_model(directory)
                return finished
            self._directory, self._keeps = directory if distributed.rank() == 0 else None, True
            result = self._learn_tasks(state)
            if self._directory is not None:
                directory.finish(result)
            return result

    @abstractmethod
    def _learn_tasks(self, state: dict[str, Any] | None) -> Result:
        """Run from the first task, or from a checkpoint, to the last."""

    # One task

    def _reset(self) -> None:
        """Begin a task: nothing of it has been learned."""
        self.history: list[Epoch] = []
        self.step = 0  # steps made in the current epoch
        self._loss, self._samples = 0.0, 0  # sums over the samples of the current epoch
        self._began, self._epoch_began = time.perf_counter(), 0.0

    def _make_optimizer(self) -> None:
        self.optimizer = wrapped_optimizer(self.learner, self.make_optimizer, self.config.lr)
        self._compiled = compiling(self.learner.model) if self.config.compile else nullcontext

    def make_step(self, batch: batches.Batch) -> None:
        """Train on one batch, and add its loss to the sums of the epoch."""
        self.step += 1
        self.optimizer.zero_grad()
        with self._compiled(), self._float32_products():
            with self._autocast():
                loss = self.learner.loss(batch)
            loss.backward()
        value, samples = self._combine(loss.item(), batches.size(batch))
        self._check_finite(value)
        self.optimizer.step()
        self._loss += value * samples
        self._samples += samples

    def _combine(self, loss: float, samples: int) -> tuple[float, int]:
        """Average gradients and statistics over all processes; return the loss and the size of the whole batch."""
        return loss, samples

    def _log_epoch(self, task: int, name: str) -> None:
        """Log the last epoch of a task."""
        if self._directory is None:
            return
        values = dataclasses.asdict(self.history[-1])
        del values["kept"]  # not known before the last epoch
        for logger in self._directory.loggers:
            logger.epoch(task, name, len(self.history), values)

    def _record_task(self, memory_bytes: dict[str, int]) -> None:
        """Add the task that has ended to the result, with the bytes that are kept after it, by kind."""
        self.result.history.append(self.history)
        self.result.seconds.append(self._seconds)
        self.result.bytes.append(memory_bytes)
        self.result.pool.append(pool_of(self.learner))
        self.result.regimes = regimes_of(self.learner)
        self.result.predictions = list(getattr(self.learner, "predictions", []))
        self._report(self.history[-1].train_loss, finished=True)

    # Tests

    def _test(self, number: int) -> None:
        """Add a row to each accuracy matrix: with the task told, inferred, and not used."""
        if not self.learner.infers_tasks:  # which may depend on the first batch that the model has seen
            self.result.accuracy_inferred = None
        views = [view for view in VIEWS if self.result.matrix(view) is not None]
        with self._seeded("test", number):
            rows = {view: self._row(view) for view in views}
        for view, row in rows.items():
            getattr(self.result, VIEWS[view]).append(row)
        for logger in self._directory.loggers if self._directory else ():
            logger.evaluation(sum(accuracy is not None for accuracy in rows["told"]) - 1, rows["told"])

    def _test_orders(self) -> None:
        if normalized_by_batch(self.learner.model):
            with self._seeded("test", "orders"):
                self.result.reshuffled = [self._row(order=order) for order in range(ORDERS)]

    def _row(self, view: str = "told", order: int | None = None) -> list[float | None]:
        accuracies: list[float | None] = [None] * len(self.stream)
        for position, task in enumerate(self._answering):
            shuffle = None if order is None else derive(self.seed, "test order", order, position)
            accuracies[position] = self._score(task, self.stream[position].test, order=shuffle, view=view).accuracy
            self._stop_if_asked()
        return accuracies

    @property
    @abstractmethod
    def _answering(self) -> Sequence[int]:
        """For each task of the stream that is tested now, the task that answers for it."""

    def _score(
        self, task: int, split: Split, loss_fn: LossFunction | None = None, order: int | None = None, view: str = "told"
    ) -> Score:
        with shown(self.learner, task, view) as model, self._float32_products(), self._autocast():
            size = self.config.evaluation_batch_size
            return evaluate(model, split, size, loss_fn, order=order, shared=True, metric=self.metric)

    # Stopping, saving and loading

    @abstractmethod
    def _stop_if_asked(self) -> None:
        """Save and raise Stopped if a signal has come."""

    @abstractmethod
    def _load(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Restore a checkpoint; return what of it the loop still has to restore."""

    def _restore_model(self, directory: RunDirectory) -> None:
        """Load the last checkpoint of a finished run, so that the caller's model belongs to the result."""
        try:
            last = distributed.on_first(directory.checkpoints.load)
        except RefusedError as error:  # of another version; the result is still readable
            warnings.warn(f"the model is not restored: {error}", CuberWarning, stacklevel=4)
            return
        if last is not None:
            self._load(last)

    def _set_result(self, result: Result) -> None:
        self.result = result
        if self.observer is not None:
            self.observer.records = result.theory

    # Shared by the above

    def _seeded(self, *purpose: object) -> AbstractContextManager[None]:
        other = [distributed.rank()] if distributed.rank() else []  # other numbers in each process, for dropout
        return seeded(derive(self.seed, *purpose, *other), self.learner.device)

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.config.precision, self.learner.device)

    def _float32_products(self) -> AbstractContextManager[object]:
        """Also open during backward passes; all that protects old tasks is computed outside of it."""
        return float32_products(self.config.precision) if self.learner.device.type == "cuda" else nullcontext()

    @property
    def _seconds(self) -> float:
        """Training time of the task, over all processes that worked on it."""
        return time.perf_counter() - self._began

    @abstractmethod
    def _report(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        """Report progress; ``part`` is the completed fraction of the current epoch."""

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            advice = f"lower the learning rate ({self.config.lr:g}) or check the inputs"
            raise CuberError(f"{self._place}: the loss is {loss}; {advice}")

    @property
    @abstractmethod
    def _place(self) -> str:
        """Where the loop is, for messages."""
