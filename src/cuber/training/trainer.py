"""The training loop: one lesson, from ``begin_task`` to ``end_task``, and how to go on in its middle."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from cuber.core import batches
from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberError
from cuber.runs.result import Epoch
from cuber.streams import FixedLoader, ShuffledLoader
from cuber.training.compiled import Compiled
from cuber.training.config import TrainingConfig
from cuber.training.early_stopping import EarlyStopping
from cuber.training.evaluate import Score, evaluate
from cuber.training.losses import Losses
from cuber.training.precision import autocast
from cuber.training.progress import Progress, ProgressEvent
from cuber.training.randomness import derive, random_state, seeded, set_random_state
from cuber.training.task_runs import TaskRun
from cuber.training.theory_recorder import Observer

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]
Pause = Callable[[int | None], None]
"""Called between steps, with None, and after each epoch, with how many there have been: a place to save or to stop."""

STEPS_PER_LOOK = 100
"""How often a long epoch is looked at: for progress, and for losses that are not finite."""
SMALLEST_LOOK = 64
"""Batch size of the passes that a method makes for itself, where the one for training is smaller."""


@dataclass(frozen=True)
class Recipe:
    """All that training is made of, but for the data."""

    training: TrainingConfig
    seed: int
    make_optimizer: OptimizerFactory
    loss_fn: LossFunction
    progress: Progress | None = None
    observer: Observer | None = None


class Trainer:
    """Trains a learner on one task of a stream, or on all of them at once."""

    def __init__(self, learner: Method, lesson: TaskRun, recipe: Recipe) -> None:
        self.learner = learner
        self.lesson = lesson
        self.recipe = recipe
        self.training = recipe.training
        self.history: list[Epoch] = []
        self.step = 0
        """Steps made in the present epoch."""
        self.losses = Losses()
        self._optimizer: Optimizer | None = None
        self._stopping: EarlyStopping | None = None
        self._compiled: AbstractContextManager[object] = nullcontext()
        self._began = time.perf_counter()
        self._epoch_began = 0.0
        self._look = FixedLoader(self.lesson.train, max(self.training.batch_size, SMALLEST_LOOK), self._seed("look"))
        order = torch.Generator().manual_seed(self._seed("order"))
        self._loader = ShuffledLoader(self.lesson.train, self.training.batch_size, order)
        self._order = order.get_state()
        """Where the generator of the order stood when the present epoch began."""

    def train(self, pause: Pause, state: dict[str, Any] | None = None) -> list[Epoch]:
        """Learn the lesson, or go on with it from a state; its epochs.

        However a method looks at the data and whatever it draws, training has an order and random numbers of its own.
        """
        device = self.learner.device
        if state is None:
            with seeded(self._seed("begin"), device):
                self.learner.begin_task(self._look, self.recipe.loss_fn, steps=len(self._loader))
            if self.recipe.observer is not None:
                with seeded(self._seed("observe"), device):
                    self.recipe.observer.began(self.sample())
        with seeded(self._seed("train"), device):
            self._prepare(state)
            while not self._over:
                self._train_epoch(pause)
            self._keep_the_best()
        if self.recipe.observer is not None:
            with seeded(self._seed("observe"), device):
                self.recipe.observer.ending(self._look)
        with seeded(self._seed("end"), device):
            self.learner.end_task(self._look)
        return self.history

    # One epoch

    def _train_epoch(self, pause: Pause) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        loss = self._pass(pause)
        self._end_epoch()
        score = self._score()
        if not math.isfinite(score.loss):
            raise self._diverged(self.step, score.loss)
        self.history.append(self._epoch(loss, lr, score, self.seconds - self._epoch_began))
        self._epoch_began = self.seconds
        if self._stopping:
            self._stopping.observe(len(self.history) - 1, score.loss)
        self.step, self.losses, self._order = 0, Losses(), self._loader.generator.get_state()
        self.tell(loss)
        pause(len(self.history))

    def _pass(self, pause: Pause) -> float:
        """Over the training data, what is left of it; the mean loss of the epoch."""
        optimizer, losses, steps = self.optimizer, self.losses, len(self._loader)
        for batch in self._loader.batches(self.step):
            optimizer.zero_grad()
            loss = self._differentiate(batch)
            optimizer.step()
            losses.add(loss, batches.size(batch))
            self.step += 1
            if self.step % STEPS_PER_LOOK == 0:
                self.tell(self._look_at(losses), self.step / steps)
            if self.step < steps:
                pause(None)
        return self._look_at(losses)

    def _differentiate(self, batch: batches.Batch) -> Tensor:
        """The loss of a batch, whose gradients are then there."""
        with self._compiled:
            with self._autocast():
                loss = self.learner.loss(batch)
            loss.backward()
        return loss

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.training.precision, self.learner.device)

    def _score(self) -> Score:
        """Over all samples that are watched, those of each task answered as that task is."""
        scores = []
        for task, part in self.lesson.probes.items():
            with self.learner.as_task(task) as model, self._autocast():
                scores.append(evaluate(model, part, self.training.evaluation_batch_size, self.recipe.loss_fn))
        return reduce(add, scores)

    def _look_at(self, losses: Losses) -> float:
        mean = losses.look()
        if losses.not_finite is not None:
            raise self._diverged(*losses.not_finite)
        return mean

    def _end_epoch(self) -> None:
        try:
            self.learner.end_epoch()
        except CuberError as error:  # the last step of an epoch is the one whose outcome no later loss has shown
            raise CuberError(f"{self._place(self.step)}: {error}") from error

    def _epoch(self, loss: float, lr: float, score: Score, seconds: float) -> Epoch:
        if self.lesson.validated:
            return Epoch(loss, lr, seconds, validation_loss=score.loss, validation_accuracy=score.accuracy)
        return Epoch(loss, lr, seconds, train_accuracy=score.accuracy)

    # From the first epoch to the last

    @property
    def optimizer(self) -> Optimizer:
        assert self._optimizer is not None, "train() makes it"
        return self._optimizer

    @property
    def _over(self) -> bool:
        return len(self.history) == self.training.epochs or (self._stopping is not None and self._stopping.over)

    def _prepare(self, state: dict[str, Any] | None) -> None:
        """What the first step needs, or the next one."""
        if state is not None:
            self.learner.resume_task(self.recipe.loss_fn)
        optimizer = self.recipe.make_optimizer(self.learner.parameters(), self.training.lr)
        if isinstance(optimizer, LBFGS):
            raise CuberError("learn cannot train with LBFGS, whose steps need a closure: use a loop of your own")
        self._optimizer = self.learner.wrap(optimizer)
        if self.training.patience is not None and self.lesson.validated:
            self._stopping = EarlyStopping(self.learner, optimizer, self.training, self.training.patience)
        if self.training.compile:
            self._compiled = Compiled(self.learner.model)
        if state is not None:
            self._load(state)

    def _keep_the_best(self) -> None:
        kept = -1
        if self._stopping is not None and self._stopping.best_epoch is not None:
            self._stopping.restore()
            kept = self._stopping.best_epoch
        self.history[kept].kept = True

    # What must be kept to go on later

    def state(self) -> dict[str, Any]:
        """Everything of the training loop, as plain values and tensors; between two steps."""
        return {
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "step": self.step,
            "losses": self.losses.state(),
            "order": self._order,
            "optimizer": self.optimizer.state_dict(),
            "stopping": self._stopping.state() if self._stopping is not None else None,
            "random": random_state(self.learner.device),
            "seconds": self.seconds,
            "epoch_began": self._epoch_began,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.step, self.losses = state["step"], Losses.of(state["losses"])
        self._order = state["order"]
        self._loader.generator.set_state(self._order)
        self.optimizer.load_state_dict(state["optimizer"])
        if self._stopping is not None:
            self._stopping.load(state["stopping"])
        self._began, self._epoch_began = time.perf_counter() - state["seconds"], state["epoch_began"]
        set_random_state(state["random"], self.learner.device)

    def sample(self) -> list[batches.Batch]:
        """What a learner looked at when the task began: a state need not hold it."""
        with seeded(self._seed("begin"), self.learner.device):
            return self.learner.take(self._look)

    # What is told

    @property
    def seconds(self) -> float:
        """Since the task began, pauses between two processes not counted."""
        return time.perf_counter() - self._began

    @property
    def whereabouts(self) -> str:
        """Where in the run we are, in words."""
        if self._over:
            return f"after the last epoch of {self.lesson.place}"
        return f"in {self.lesson.place}, epoch {len(self.history) + 1}, before step {self.step + 1}"

    def tell(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        """Tell whoever watches how it goes, ``part`` of the way through an epoch."""
        if self.recipe.progress is not None:
            last = self.history[-1] if self.history else Epoch(loss, self.training.lr, 0.0)
            validated = self.lesson.validated
            self.recipe.progress(
                ProgressEvent(
                    self.lesson.task,
                    self.lesson.tasks,
                    self.lesson.name,
                    epoch=len(self.history) + part,
                    epochs=self.training.epochs,
                    loss=loss,
                    accuracy=last.validation_accuracy if validated else last.train_accuracy,
                    validated=validated,
                    seconds=self.seconds,
                    finished=finished,
                )
            )

    def _diverged(self, step: int, value: float) -> CuberError:
        advice = f"lower the learning rate ({self.training.lr:g}) or look at the inputs"
        return CuberError(f"{self._place(step)}: the loss is {value}; {advice}")

    def _place(self, step: int) -> str:
        return f"{self.lesson.place}, epoch {len(self.history) + 1}, step {step}"

    def _seed(self, purpose: str) -> int:
        return derive(self.recipe.seed, purpose, self.lesson.number)
