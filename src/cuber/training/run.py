"""A run through a stream, which can stop between any two steps and go on later as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from cuber.core.learner import Method
from cuber.layers import normalized_by_batch
from cuber.runs.directory import RunDirectory
from cuber.runs.interrupts import Interrupts, Stopped, listening
from cuber.runs.result import Result
from cuber.streams import Stream
from cuber.training.describe import configuration, pool_of, regimes_of
from cuber.training.evaluate import evaluate
from cuber.training.precision import autocast
from cuber.training.randomness import derive, seeded
from cuber.training.task_runs import TaskRun, lessons
from cuber.training.trainer import STEPS_PER_LOOK, Recipe, Trainer

ORDERS = 5
"""Orders of the test samples by which the spread that they cause is measured."""


class Run:
    """Learns a stream lesson by lesson, tests all tasks seen after each, and knows all that is needed to go on."""

    def __init__(self, learner: Method, stream: Stream, recipe: Recipe, result: Result) -> None:
        self.learner = learner
        self.stream = stream
        self.lessons = lessons(stream, recipe.seed, joint=learner.joint)
        self.recipe = recipe
        self.result = result
        self._trainer: Trainer | None = None
        """While a task is being learnt."""
        self._directory: RunDirectory | None = None
        self._interrupts = Interrupts()
        self._let_observe()

    def learn(self, directory: RunDirectory | str | os.PathLike[str] | None, about: Mapping[str, Any]) -> Result:
        """From the first task, or from where the directory says that we are, to the last."""
        if directory is None:
            return self._learn(None)
        held = directory if isinstance(directory, RunDirectory) else RunDirectory(directory)
        with held, listening() as self._interrupts:
            finished, state = held.open(configuration(self.result, self.stream, about))
            if finished is not None:
                kept = held.checkpoints.load()
                if kept is not None:  # whoever asks for the result may want the model that goes with it
                    self._load(kept)
                return finished
            self._directory = held
            result = self._learn(state)
            held.finish(result)
            return result

    def _learn(self, state: dict[str, Any] | None) -> Result:
        going_on = self._load(state) if state is not None else None
        for number in range(len(self.result.accuracy), len(self.lessons)):
            if number == len(self.result.history):
                self._learn_lesson(self.lessons[number], going_on)
                going_on = None
            self._test(number)
            self._save()
        self._try_other_orders()
        return self.result

    def _learn_lesson(self, lesson: TaskRun, going_on: dict[str, Any] | None) -> None:
        self._trainer = Trainer(self.learner, lesson, self.recipe)
        history = self._trainer.train(self._pause, going_on)
        self.result.history.append(history)
        self.result.seconds.append(self._trainer.seconds)
        self.result.bytes.append(self.learner.memory_bytes())
        self.result.pool.append(pool_of(self.learner))
        self.result.regimes = regimes_of(self.learner)
        self._trainer.tell(history[-1].train_loss, finished=True)
        self._trainer = None

    def _let_observe(self) -> None:
        """Whoever looks on writes into the result, and so into every checkpoint."""
        if self.recipe.observer is not None:
            self.recipe.observer.records = self.result.theory

    def _test(self, number: int) -> None:
        """Add a row to the accuracy matrix, and to the one of the bare weights where tasks share a head."""
        with seeded(derive(self.recipe.seed, "test", number), self.learner.device):
            accuracy = self._row(bare=False)
            bare = self._row(bare=True) if self.result.accuracy_bare is not None else None
        self.result.accuracy.append(accuracy)
        if self.result.accuracy_bare is not None and bare is not None:
            self.result.accuracy_bare.append(bare)
        for logger in self._directory.loggers if self._directory else ():
            logger.evaluation(self.learner.tasks - 1, accuracy)

    def _try_other_orders(self) -> None:
        """Test all tasks with their samples in other orders, where batches are normalized by themselves."""
        if normalized_by_batch(self.learner.model):
            with seeded(derive(self.recipe.seed, "test", "orders"), self.learner.device):
                self.result.reshuffled = [self._row(bare=False, order=order) for order in range(ORDERS)]

    def _row(self, *, bare: bool, order: int | None = None) -> list[float | None]:
        training = self.recipe.training
        accuracies: list[float | None] = [None] * len(self.stream)
        for old in range(self.learner.tasks):
            shuffle = None if order is None else derive(self.recipe.seed, "test order", order, old)
            precision = autocast(training.precision, self.learner.device)
            with self.learner.as_task(None if bare else old) as model, precision:
                score = evaluate(model, self.stream[old].test, training.evaluation_batch_size, order=shuffle)
            accuracies[old] = score.accuracy
            self._stop_if_asked()
        return accuracies

    # Where we can stop, and what must be kept to go on

    def _pause(self, epochs: int | None) -> None:
        """Between two steps (None) or after so many epochs: save now and then, and stop when asked to."""
        if self._directory is None or self._trainer is None:
            return
        if epochs is not None:
            for logger in self._directory.loggers:
                values = dataclasses.asdict(self._trainer.history[-1])
                del values["kept"]  # nobody knows yet
                logger.epoch(self._trainer.lesson.number, self._trainer.lesson.name, epochs, values)
        self._stop_if_asked()
        if (epochs is not None or self._trainer.step % STEPS_PER_LOOK == 0) and self._directory.due(epochs):
            self._save()

    def _stop_if_asked(self) -> None:
        if self._directory is not None and self._interrupts.signal is not None:
            self._save()
            # All lessons have been tested while other orders of the samples are tried.
            last = self.lessons[min(len(self.result.accuracy), len(self.lessons) - 1)]
            tests = f"in the tests after {last.place}"
            raise Stopped(self._interrupts.signal, self._trainer.whereabouts if self._trainer is not None else tests)

    def _save(self) -> None:
        if self._directory is not None:
            self._directory.save(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "result": self.result.plain(),
            "model": self.learner.model.state_dict(),
            "learner": {**self.learner.state_dict(), "sample": []},
            "trainer": self._trainer.state() if self._trainer is not None else None,
        }

    def _load(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Go back to a state; that of the trainer, where it was made while a task was being learnt."""
        self.result = Result.from_dict(state["result"])
        self._let_observe()
        if state["trainer"] is not None:
            trainer = Trainer(self.learner, self.lessons[len(self.result.history)], self.recipe)
            state["learner"]["sample"] = trainer.sample()
        self.learner.load_state_dict(state["learner"])
        self.learner.model.load_state_dict(state["model"])
        return state["trainer"]
