"""The training loop: one lesson, from ``begin_task`` to ``end_task``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from cuber.errors import CuberError
from cuber.methods.method import LossFunction, Method
from cuber.streams import FixedLoader, ShuffledLoader
from cuber.training.evaluate import Score, evaluate
from cuber.training.lessons import Lesson
from cuber.training.losses import Losses
from cuber.training.progress import Moment, Progress
from cuber.training.randomness import derive, seeded
from cuber.training.result import Epoch
from cuber.training.settings import Training
from cuber.training.stopping import EarlyStopping

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]

STEPS_PER_LOOK = 100
"""How often a long epoch is looked at: for progress, and for losses that are not finite."""
SMALLEST_LOOK = 64
"""Batch size of the passes that a method makes for itself, where the one for training is smaller."""


@dataclass(frozen=True)
class Recipe:
    """All that training is made of, but for the data."""

    training: Training
    seed: int
    make_optimizer: OptimizerFactory
    loss_fn: LossFunction
    progress: Progress | None = None


class Trainer:
    """Trains a learner on one task of a stream, or on all of them at once."""

    def __init__(self, learner: Method, lesson: Lesson, recipe: Recipe) -> None:
        self.learner = learner
        self.lesson = lesson
        self.recipe = recipe
        self.training = recipe.training
        self.history: list[Epoch] = []
        self._began = time.perf_counter()

    def train(self) -> list[Epoch]:
        """Learn the lesson; its epochs."""
        order = torch.Generator().manual_seed(self._seed("order"))
        loader = ShuffledLoader(self.lesson.train, self.training.batch_size, order)
        look = FixedLoader(self.lesson.train, max(self.training.batch_size, SMALLEST_LOOK), self._seed("look"))
        self.learner.begin_task(look, self.recipe.loss_fn, steps=len(loader))
        # However a method looks at the data and whatever it draws, training has an order and random numbers of its own.
        with seeded(self._seed("train"), self.learner.device):
            self._epochs(loader)
        self.learner.end_task(look)
        return self.history

    def _epochs(self, loader: ShuffledLoader) -> None:
        optimizer = self.learner.wrap(self._optimizer())
        stopping = None
        if self.training.patience is not None and self.lesson.validated:
            stopping = EarlyStopping(self.learner, optimizer, self.training, self.training.patience)
        for number in range(self.training.epochs):
            began, lr = time.perf_counter(), optimizer.param_groups[0]["lr"]
            loss = self._pass(optimizer, loader)
            self._end_epoch(len(loader))
            score = self._score()
            if not math.isfinite(score.loss):
                raise self._diverged(len(loader), score.loss)
            self.history.append(self._epoch(loss, lr, score, time.perf_counter() - began))
            self.tell(loss)
            if stopping and stopping.over_after(number, score.loss):
                break
        if stopping:
            stopping.restore()
        self.history[-1 if stopping is None or stopping.best_epoch is None else stopping.best_epoch].kept = True

    def _score(self) -> Score:
        """Over all samples that are watched, those of each task answered as that task is."""
        scores = []
        for task, part in self.lesson.probes.items():
            with self.learner.as_task(task) as model:
                scores.append(evaluate(model, part, self.training.evaluation_batch_size, self.recipe.loss_fn))
        return reduce(add, scores)

    def _pass(self, optimizer: Optimizer, loader: ShuffledLoader) -> float:
        """Once over the training data; the mean loss."""
        learner, losses, steps = self.learner, Losses(), len(loader)
        for step, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            loss = learner.loss(batch)
            loss.backward()
            optimizer.step()
            losses.add(loss, len(batch[1]))
            if step % STEPS_PER_LOOK == 0:
                self.tell(self._look(losses), step / steps)
        return self._look(losses)

    def _look(self, losses: Losses) -> float:
        mean = losses.look()
        if losses.not_finite is not None:
            raise self._diverged(*losses.not_finite)
        return mean

    def _end_epoch(self, steps: int) -> None:
        try:
            self.learner.end_epoch()
        except CuberError as error:  # the last step of an epoch is the one whose outcome no later loss has shown
            raise CuberError(f"{self._place(steps)}: {error}") from error

    def _diverged(self, step: int, value: float) -> CuberError:
        advice = f"lower the learning rate ({self.training.lr:g}) or look at the inputs"
        return CuberError(f"{self._place(step)}: the loss is {value}; {advice}")

    def _place(self, step: int) -> str:
        return f"{self.lesson.place}, epoch {len(self.history) + 1}, step {step}"

    def _epoch(self, loss: float, lr: float, score: Score, seconds: float) -> Epoch:
        if self.lesson.validated:
            return Epoch(loss, lr, seconds, validation_loss=score.loss, validation_accuracy=score.accuracy)
        return Epoch(loss, lr, seconds, train_accuracy=score.accuracy)

    def tell(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        """Tell whoever watches how it goes, ``part`` of the way through an epoch."""
        if self.recipe.progress is not None:
            last = self.history[-1] if self.history else Epoch(loss, self.training.lr, 0.0)
            validated = self.lesson.validated
            self.recipe.progress(
                Moment(
                    self.lesson.task,
                    self.lesson.tasks,
                    self.lesson.name,
                    epoch=len(self.history) + part,
                    epochs=self.training.epochs,
                    loss=loss,
                    accuracy=last.validation_accuracy if validated else last.train_accuracy,
                    validated=validated,
                    seconds=time.perf_counter() - self._began,
                    finished=finished,
                )
            )

    def _optimizer(self) -> Optimizer:
        optimizer = self.recipe.make_optimizer(self.learner.parameters(), self.training.lr)
        if isinstance(optimizer, LBFGS):
            raise CuberError("learn cannot train with LBFGS, whose steps need a closure: use a loop of your own")
        return optimizer

    def _seed(self, purpose: str) -> int:
        return derive(self.recipe.seed, purpose, self.lesson.number)
