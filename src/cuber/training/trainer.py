"""The training loop of one task run, from ``begin_task`` to ``end_task``; it can be resumed between any two steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberError
from cuber.runs.result import Epoch
from cuber.streams import FixedLoader, ShuffledLoader
from cuber.training.config import TrainingConfig
from cuber.training.early_stopping import EarlyStopping
from cuber.training.evaluation import RunningLoss, Score, evaluate
from cuber.training.forward import Compiled, autocast
from cuber.training.randomness import derive, random_state, seeded, set_random_state
from cuber.training.task_runs import TaskRun

OptimizerFactory = Callable[[list[nn.Parameter], float], Optimizer]
"""Makes an optimizer from parameters and a learning rate, as ``torch.optim.SGD`` does."""
Pause = Callable[[int | None], None]
"""Called between steps with None, and after each epoch with the number of epochs: the place to save or stop."""

REPORT_STEPS = 100
"""Steps between two reports of progress, which also check that losses are finite."""
SMALLEST_SAMPLE_BATCH = 64
"""Smallest batch size of the loader that ``begin_task`` and ``end_task`` get."""


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a run: sent every 100 steps, after each epoch, and at the end of a task."""

    task: int | None
    """None: all tasks at once."""
    tasks: int
    name: str
    epoch: float
    """Completed epochs, with a fraction within one."""
    epochs: int
    loss: float
    """Mean training loss of the current epoch."""
    accuracy: float | None
    """After the last epoch, in percent: on the validation split, or on training samples where there is none."""
    validated: bool
    """Whether the accuracy is on a validation split."""
    seconds: float
    """Since the task began."""
    finished: bool = False


Progress = Callable[[ProgressEvent], None]

Records = list[dict[str, dict[str, Any]]]
"""Task -> layer -> measurements."""


class Observer(Protocol):
    """Measures something during training and writes it to ``result.theory``."""

    records: Records

    def began(self, sample: list[Batch]) -> None:
        """Called after ``begin_task`` and before the first step, with the samples that the learner looked at."""

    def ending(self, loader: Iterable[Batch]) -> None:
        """Called after the last step and before ``end_task``."""


@dataclass(frozen=True)
class TrainingSetup:
    """Training options, and the functions and objects that cannot be written to a file."""

    config: TrainingConfig
    seed: int
    make_optimizer: OptimizerFactory
    loss_fn: LossFunction
    progress: Progress | None = None
    observer: Observer | None = None


class Trainer:
    """Trains a learner on one task run."""

    def __init__(self, learner: Method, task_run: TaskRun, setup: TrainingSetup) -> None:
        self.learner = learner
        self.task_run = task_run
        self.setup = setup
        self.config = setup.config
        self.history: list[Epoch] = []
        self.step = 0
        """Steps made in the current epoch."""
        self._loss = RunningLoss()
        self._optimizer: Optimizer | None = None
        self._stopping: EarlyStopping | None = None
        self._compiled: AbstractContextManager[object] = nullcontext()
        self._began = time.perf_counter()
        self._epoch_began = 0.0
        self.samples = FixedLoader(
            task_run.train, max(self.config.batch_size, SMALLEST_SAMPLE_BATCH), self._seed("look")
        )
        """The loader for ``begin_task`` and ``end_task``."""
        order = torch.Generator().manual_seed(self._seed("order"))
        self.loader = ShuffledLoader(task_run.train, self.config.batch_size, order)
        self._order = order.get_state()
        """State of the generator that shuffles, when the current epoch began."""

    def train(self, pause: Pause, state: dict[str, Any] | None = None) -> list[Epoch]:
        """Train the task, or resume from a state; return its epochs.

        Methods draw their random numbers apart from training, so they do not change its order of samples.
        """
        device = self.learner.device
        if state is None:
            with seeded(self._seed("begin"), device):
                self.learner.begin_task(self.samples, self.setup.loss_fn, steps=len(self.loader))
            if self.setup.observer is not None:
                with seeded(self._seed("observe"), device):
                    self.setup.observer.began(self.sample())
        with seeded(self._seed("train"), device):
            self.prepare(state)
            while not self._over:
                self._train_epoch(pause)
            self._keep_best()
        if self.setup.observer is not None:
            with seeded(self._seed("observe"), device):
                self.setup.observer.ending(self.samples)
        with seeded(self._seed("end"), device):
            self.learner.end_task(self.samples)
        return self.history

    def prepare(self, state: dict[str, Any] | None) -> None:
        """Make the optimizer, and what else the first step, or the next one, needs."""
        if state is not None:
            self.learner.resume_task(self.setup.loss_fn)
        optimizer = self.setup.make_optimizer(self.learner.parameters(), self.config.lr)
        if isinstance(optimizer, LBFGS):
            raise CuberError("learn cannot train with LBFGS, whose steps need a closure: write your own training loop")
        self._optimizer = self.learner.wrap(optimizer)
        if self.config.patience is not None and self.task_run.validated:
            self._stopping = EarlyStopping(self.learner, optimizer, self.config, self.config.patience)
        if self.config.compile:
            self._compiled = Compiled(self.learner.model)
        if state is not None:
            self._load(state)

    # One epoch

    def _train_epoch(self, pause: Pause) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        loss = self.train_steps(pause)
        try:
            self.learner.end_epoch()
        except CuberError as error:  # of the last step, which no later loss has shown
            raise CuberError(f"{self._place(self.step)}: {error}") from error
        score = self._evaluate()
        if not math.isfinite(score.loss):
            raise self._diverged(self.step, score.loss)
        epoch = Epoch(loss, lr, self.seconds - self._epoch_began)
        if self.task_run.validated:
            epoch.validation_loss, epoch.validation_accuracy = score.loss, score.accuracy
        else:
            epoch.train_accuracy = score.accuracy
        self.history.append(epoch)
        self._epoch_began = self.seconds
        if self._stopping:
            self._stopping.observe(len(self.history) - 1, score.loss)
        self.step, self._loss, self._order = 0, RunningLoss(), self.loader.generator.get_state()
        self.report(loss)
        pause(len(self.history))

    def train_steps(self, pause: Pause) -> float:
        """Make the remaining steps of an epoch; return its mean loss."""
        optimizer, running, steps = self.optimizer, self._loss, len(self.loader)
        for batch in self.loader.batches(self.step):
            optimizer.zero_grad()
            loss = self._backward(batch)
            optimizer.step()
            running.add(loss, batches.size(batch))
            self.step += 1
            if self.step % REPORT_STEPS == 0:
                self.report(self._mean_loss(), self.step / steps)
            if self.step < steps:
                pause(None)
        return self._mean_loss()

    def _backward(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch and its gradients."""
        with self._compiled:
            with self._autocast():
                loss = self.learner.loss(batch)
            loss.backward()
        return loss

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.config.precision, self.learner.device)

    def _evaluate(self) -> Score:
        scores = []
        for task, split in self.task_run.probes.items():
            with self.learner.as_task(task) as model, self._autocast():
                scores.append(evaluate(model, split, self.config.evaluation_batch_size, self.setup.loss_fn))
        return Score(*map(sum, zip(*scores, strict=True)))

    def _mean_loss(self) -> float:
        mean = self._loss.mean()
        if self._loss.not_finite is not None:
            raise self._diverged(*self._loss.not_finite)
        return mean

    @property
    def optimizer(self) -> Optimizer:
        assert self._optimizer is not None, "prepare() makes it"
        return self._optimizer

    @property
    def _over(self) -> bool:
        return len(self.history) == self.config.epochs or (self._stopping is not None and self._stopping.stopped)

    def _keep_best(self) -> None:
        kept = -1
        if self._stopping is not None and self._stopping.best_epoch is not None:
            self._stopping.restore_best()
            kept = self._stopping.best_epoch
        self.history[kept].kept = True

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return the state of the loop between two steps, as plain values and tensors."""
        return {
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "step": self.step,
            "loss": self._loss.state(),
            "order": self._order,
            "optimizer": self.optimizer.state_dict(),
            "stopping": self._stopping.state() if self._stopping is not None else None,
            "random": random_state(self.learner.device),
            "seconds": self.seconds,
            "epoch_began": self._epoch_began,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.step = state["step"]
        self._loss.load(state["loss"])
        self._order = state["order"]
        self.loader.generator.set_state(self._order)
        self.optimizer.load_state_dict(state["optimizer"])
        if self._stopping is not None:
            self._stopping.load(state["stopping"])
        self._began, self._epoch_began = time.perf_counter() - state["seconds"], state["epoch_began"]
        set_random_state(state["random"], self.learner.device)

    def sample(self) -> list[Batch]:
        """Return the samples that the learner saw in ``begin_task``; checkpoints do not store them."""
        with seeded(self._seed("begin"), self.learner.device):
            return self.learner.take(self.samples)

    # Messages

    @property
    def seconds(self) -> float:
        """Training time of the task, over all processes that worked on it."""
        return time.perf_counter() - self._began

    @property
    def position(self) -> str:
        """Position in the run, for messages."""
        if self._over:
            return f"after the last epoch of {self.task_run.place}"
        return f"in {self.task_run.place}, epoch {len(self.history) + 1}, before step {self.step + 1}"

    def report(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        """Report progress; ``part`` is the completed fraction of the current epoch."""
        if self.setup.progress is None:
            return
        accuracy = None
        if self.history:
            last = self.history[-1]
            accuracy = last.validation_accuracy if self.task_run.validated else last.train_accuracy
        self.setup.progress(
            ProgressEvent(
                self.task_run.task,
                self.task_run.tasks,
                self.task_run.name,
                epoch=len(self.history) + part,
                epochs=self.config.epochs,
                loss=loss,
                accuracy=accuracy,
                validated=self.task_run.validated,
                seconds=self.seconds,
                finished=finished,
            )
        )

    def _diverged(self, step: int, value: float) -> CuberError:
        return CuberError(
            f"{self._place(step)}: the loss is {value}; lower the learning rate ({self.config.lr:g}) or check the "
            "inputs"
        )

    def _place(self, step: int) -> str:
        return f"{self.task_run.place}, epoch {len(self.history) + 1}, step {step}"

    def _seed(self, purpose: str) -> int:
        return derive(self.setup.seed, purpose, self.task_run.number)
