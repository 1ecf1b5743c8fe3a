"""Learn a stream task by task, evaluate after each, and save what is needed to resume."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberWarning
from cuber.layers import normalized_by_batch
from cuber.runs.directory import RunDirectory
from cuber.runs.interrupts import Interrupts, Stopped, catch_signals
from cuber.runs.lock import RefusedError
from cuber.runs.result import Result
from cuber.streams import Stream
from cuber.training.callbacks import Observer, OptimizerFactory, Progress
from cuber.training.config import TrainingConfig
from cuber.training.describe import configuration, empty_result, pool_of, regimes_of
from cuber.training.evaluation import evaluate
from cuber.training.precision import autocast
from cuber.training.randomness import derive, seeded
from cuber.training.task_runs import TaskRun, task_runs
from cuber.training.trainer import REPORT_STEPS, Trainer

ORDERS = 5
"""Number of other orders of the test samples, to measure the spread that the order causes."""


class StreamRun:
    """A run of a method through a stream; it can stop between any two steps and be resumed to the same bits."""

    def __init__(
        self,
        learner: Method,
        stream: Stream,
        training: TrainingConfig,
        *,
        seed: int,
        make_optimizer: OptimizerFactory,
        loss_fn: LossFunction,
        progress: Progress | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.learner = learner
        self.stream = stream
        self.training = training
        self.seed = seed
        self.observer = observer
        self.task_runs = task_runs(stream, seed, joint=learner.joint)
        self.result = empty_result(learner, stream, training, seed, make_optimizer, loss_fn)
        self._make_trainer = partial(
            Trainer,
            training=training,
            seed=seed,
            make_optimizer=make_optimizer,
            loss_fn=loss_fn,
            progress=progress,
            observer=observer,
        )
        self._trainer: Trainer | None = None
        """Set while a task is being learned."""
        self._directory: RunDirectory | None = None
        self._interrupts = Interrupts()
        self._connect_observer()

    def learn(self, directory: RunDirectory | str | os.PathLike[str] | None, about: Mapping[str, Any]) -> Result:
        """Run from the first task, or from the checkpoint in the directory, to the last."""
        if directory is None:
            return self._learn(None)
        held = directory if isinstance(directory, RunDirectory) else RunDirectory(directory)
        with held, catch_signals() as self._interrupts:
            finished, state = held.open(configuration(self.result, self.stream, about))
            if finished is not None:
                self._restore_model(held)
                return finished
            self._directory = held
            result = self._learn(state)
            held.finish(result)
            return result

    def _restore_model(self, directory: RunDirectory) -> None:
        """Load the last checkpoint of a finished run, so that the caller's model belongs to the result."""
        try:
            last = directory.checkpoints.load()
        except RefusedError as error:  # of another version; the result is still readable
            warnings.warn(f"the model is not restored: {error}", CuberWarning, stacklevel=4)
            return
        if last is not None:
            self._load(last)

    def _learn(self, state: dict[str, Any] | None) -> Result:
        trainer_state = self._load(state) if state is not None else None
        for number in range(len(self.result.accuracy), len(self.task_runs)):
            if number == len(self.result.history):
                self._learn_task(self.task_runs[number], trainer_state)
                trainer_state = None
            self._test(number)
            self._save()
        if normalized_by_batch(self.learner.model):
            with seeded(derive(self.seed, "test", "orders"), self.learner.device):
                self.result.reshuffled = [self._row(bare=False, order=order) for order in range(ORDERS)]
        return self.result

    def _learn_task(self, task_run: TaskRun, state: dict[str, Any] | None) -> None:
        self._trainer = self._make_trainer(self.learner, task_run)
        history = self._trainer.train(self._pause, state)
        self.result.history.append(history)
        self.result.seconds.append(self._trainer.seconds)
        self.result.bytes.append(self.learner.memory_bytes())
        self.result.pool.append(pool_of(self.learner))
        self.result.regimes = regimes_of(self.learner)
        self._trainer.report(history[-1].train_loss, finished=True)
        self._trainer = None

    def _test(self, number: int) -> None:
        """Add a row to the accuracy matrix, and to the one without task identity if tasks share a head."""
        with seeded(derive(self.seed, "test", number), self.learner.device):
            accuracy = self._row(bare=False)
            bare = self._row(bare=True) if self.result.accuracy_bare is not None else None
        self.result.accuracy.append(accuracy)
        if self.result.accuracy_bare is not None and bare is not None:
            self.result.accuracy_bare.append(bare)
        for logger in self._directory.loggers if self._directory else ():
            logger.evaluation(self.learner.tasks - 1, accuracy)

    def _row(self, *, bare: bool, order: int | None = None) -> list[float | None]:
        accuracies: list[float | None] = [None] * len(self.stream)
        for old in range(self.learner.tasks):
            shuffle = None if order is None else derive(self.seed, "test order", order, old)
            precision = autocast(self.training.precision, self.learner.device)
            with self.learner.as_task(None if bare else old) as model, precision:
                score = evaluate(model, self.stream[old].test, self.training.evaluation_batch_size, order=shuffle)
            accuracies[old] = score.accuracy
            self._stop_if_asked()
        return accuracies

    # Stopping, saving and loading

    def _pause(self, epochs: int | None) -> None:
        """Log after each epoch, save when due, and stop if asked to."""
        if self._directory is None or self._trainer is None:
            return
        if epochs is not None:
            values = dataclasses.asdict(self._trainer.history[-1])
            del values["kept"]  # not known before the last epoch
            for logger in self._directory.loggers:
                logger.epoch(self._trainer.task_run.number, self._trainer.task_run.name, epochs, values)
        self._stop_if_asked()
        if (epochs is not None or self._trainer.step % REPORT_STEPS == 0) and self._directory.due(epochs):
            self._save()

    def _stop_if_asked(self) -> None:
        if self._directory is None or self._interrupts.signal is None:
            return
        self._save()
        if self._trainer is not None:
            raise Stopped(self._interrupts.signal, self._trainer.position)
        # While other orders of the samples are tested, all task runs have been evaluated.
        last = self.task_runs[min(len(self.result.accuracy), len(self.task_runs) - 1)]
        raise Stopped(self._interrupts.signal, f"in the tests after {last.place}")

    def _save(self) -> None:
        if self._directory is not None:
            self._directory.save(
                {
                    "result": self.result.plain(),
                    "model": self.learner.model.state_dict(),
                    "learner": {**self.learner.state_dict(), "sample": []},
                    "trainer": self._trainer.state() if self._trainer is not None else None,
                }
            )

    def _load(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Restore a checkpoint; return the state of its trainer if it was saved within a task."""
        self.result = Result.from_dict(state["result"])
        self._connect_observer()
        if state["trainer"] is not None:
            trainer = self._make_trainer(self.learner, self.task_runs[len(self.result.history)])
            state["learner"]["sample"] = trainer.sample()
        self.learner.load_state_dict(state["learner"])
        self.learner.model.load_state_dict(state["model"])
        return state["trainer"]

    def _connect_observer(self) -> None:
        if self.observer is not None:
            self.observer.records = self.result.theory
