"""The tasks of a stream one after another; the loop can be stopped and resumed between any two steps."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuber.core import distributed
from cuber.core.randomness import derive, random_state, set_random_state
from cuber.errors import CuberError
from cuber.runs.directory import Stopped
from cuber.runs.result import Epoch, Result
from cuber.streams import FixedLoader, ShuffledLoader
from cuber.training.describe import add_device
from cuber.training.early_stopping import EarlyStopping
from cuber.training.evaluation import Score
from cuber.training.loop import TaskLoop
from cuber.training.progress import ProgressEvent
from cuber.training.task_runs import TaskRun, task_runs

REPORT_STEPS = 100
"""Steps between two reports of progress, or two checkpoints."""
SMALLEST_SAMPLE_BATCH = 64
"""Smallest batch size of the loader that ``begin_task`` and ``end_task`` get."""


@dataclass(eq=False)
class Trainer(TaskLoop):
    """Runs a method through a stream, told where its tasks begin."""

    def __post_init__(self) -> None:
        self.task_runs = task_runs(self.stream, self.seed, joint=self.learner.joint)
        super().__post_init__()

    def _learn_tasks(self, state: dict[str, Any] | None) -> Result:
        loop_state = self._load(state) if state is not None else None
        for task_run in self.task_runs[len(self.result.accuracy) :]:
            if task_run.number == len(self.result.history):
                self._learn_task(task_run, loop_state)
                loop_state = None
            self._test(task_run.number)
            self._save()
        self._test_orders()
        return self.result

    # One task

    def _learn_task(self, task_run: TaskRun, state: dict[str, Any] | None) -> None:
        learner, number = self.learner, task_run.number
        self.set_up(task_run)
        if state is None:
            with self._seeded("begin", number):
                learner.begin_task(self.samples, self.loss_fn, steps=len(self.loader))
            if self.observer is not None:
                with self._seeded("observe", number):
                    self.observer.began(learner.sample)
        with self._seeded("train", number):
            self.prepare(state)
            while not self._over:
                self._train_epoch()
            kept = self._stopping.restore_best() if self._stopping is not None else -1
            self.history[kept].kept = True
        if self.observer is not None:
            with self._seeded("observe", number):
                self.observer.ending(self.samples)
        with self._seeded("end", number):
            learner.end_task(self.samples)
        self._record_task(learner.memory_bytes())

    def set_up(self, task_run: TaskRun) -> None:
        """Make the loaders of a task, and the state of its loop before the first step."""
        self.task_run = task_run
        sample_batch = max(self.config.batch_size, SMALLEST_SAMPLE_BATCH)
        look = derive(self.seed, "look", task_run.number)
        self.samples = FixedLoader(task_run.train, sample_batch, look, shared=True)
        order = torch.Generator().manual_seed(derive(self.seed, "order", task_run.number))
        self.loader = ShuffledLoader(task_run.train, self.config.batch_size, order, shared=True)
        self._order = order.get_state()  # when the current epoch began
        self._reset()

    def prepare(self, state: dict[str, Any] | None = None) -> None:
        """Make the optimizer, and what else the first step needs, or with a state the next one."""
        if state is not None:
            self.learner.resume_task(self.loss_fn)
        self._make_optimizer()
        self._stopping: EarlyStopping | None = None
        if self.task_run.validated and self.config.patience is not None:
            self._stopping = EarlyStopping(self.learner, self.optimizer, self.config)
        if state is not None:
            self._load_loop(state)

    def _train_epoch(self) -> None:
        lr = self.optimizer.param_groups[0]["lr"]
        loss = self.train_steps()
        try:
            self.learner.end_epoch()
        except CuberError as error:  # of the last step, which no later loss has shown
            raise CuberError(f"{self._place}: {error}") from error
        scores = [self._score(task, split, self.loss_fn) for task, split in self.task_run.probes.items()]
        score = Score(*map(sum, zip(*scores, strict=True)))
        self._check_finite(score.loss)
        epoch = Epoch(loss, lr, self._seconds - self._epoch_began)
        if self.task_run.validated:
            epoch.validation_loss, epoch.validation_accuracy = score.loss, score.accuracy
        else:
            epoch.train_accuracy = score.accuracy
        self.history.append(epoch)
        self._epoch_began = self._seconds
        if self._stopping is not None:
            self._stopping.observe(len(self.history) - 1, score.loss)
        self.step, self._loss, self._samples = 0, 0.0, 0
        self._order = self.loader.generator.get_state()
        self._report(loss)
        self._pause(len(self.history))

    def train_steps(self) -> float:
        """Make the remaining steps of an epoch; return its mean loss."""
        steps = len(self.loader)
        for batch in self.loader.batches(self.step):
            self.make_step(batch)
            if self.step % REPORT_STEPS == 0:
                self._report(self._loss / self._samples, self.step / steps)
            if self.step < steps:
                self._pause()
        return self._loss / self._samples

    def _combine(self, loss: float, samples: int) -> tuple[float, int]:
        if not distributed.is_active():
            return loss, samples
        samples, own = self.loader.share(self.step - 1)
        self.learner.average_gradients(own.weight)
        distributed.average_(self.learner.normalization.buffers(), own.weight)
        return distributed.sum_numbers(own.weight * loss)[0], samples

    @property
    def _over(self) -> bool:
        return len(self.history) == self.config.epochs or (self._stopping is not None and self._stopping.stopped)

    @property
    def _answering(self) -> Sequence[int]:
        return range(self.learner.tasks)

    # Stopping, saving and loading

    def _pause(self, epochs: int | None = None) -> None:
        """Called between steps, and after each epoch with the number of epochs: log, stop if asked to, save if due."""
        if not self._keeps:
            return
        if epochs is not None:
            self._log_epoch(self.task_run.number, self.task_run.name)
        self._stop_if_asked()
        may_be_due = epochs is not None or self.step % REPORT_STEPS == 0
        if may_be_due and distributed.broadcast(self._directory is not None and self._directory.due(epochs)):
            self._save()

    def _stop_if_asked(self) -> None:
        if not self._keeps or not any(distributed.sum_numbers(len(self._signals))):
            return
        self._save()
        if self.learner.task is None:
            # While other orders of the samples are tested, all task runs have been evaluated.
            last = self.task_runs[min(len(self.result.accuracy), len(self.task_runs) - 1)]
            place = f"in the tests after {last.place}"
        elif self._over:
            place = f"after the last epoch of {self.task_run.place}"
        else:
            place = f"in {self.task_run.place}, epoch {len(self.history) + 1}, before step {self.step + 1}"
        raise Stopped(self._signals[0] if self._signals else signal.SIGTERM, place)

    def _save(self) -> None:
        random = distributed.gather(random_state(self.learner.device)) if self._keeps else []
        if self._directory is not None:
            self._directory.save(
                {
                    "result": self.result.plain(),
                    "model": self.learner.model.state_dict(),
                    "learner": {**self.learner.state_dict(), "sample": []},  # samples are taken again
                    "trainer": self._loop_state(random) if self.learner.task is not None else None,
                }
            )

    def _loop_state(self, random: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "history": [dataclasses.asdict(epoch) for epoch in self.history],
            "step": self.step,
            "loss": {"total": self._loss, "samples": self._samples},
            "order": self._order,
            "optimizer": self.optimizer.state_dict(),
            "stopping": self._stopping.state() if self._stopping is not None else None,
            "random": random if len(random) > 1 else random[0],
            "seconds": self._seconds,
            "epoch_began": self._epoch_began,
        }

    def _load(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Restore a checkpoint, but for the loop; return the state of the loop if it was saved within a task."""
        self._set_result(Result.from_dict(state["result"]))
        add_device(self.result, self.learner.device)
        if state["trainer"] is not None:
            task_run = self.task_runs[len(self.result.history)]
            self.set_up(task_run)
            with self._seeded("begin", task_run.number):
                state["learner"]["sample"] = self.learner.take(self.samples)  # as begin_task did
        self.learner.load_state_dict(state["learner"])
        self.learner.model.load_state_dict(state["model"])
        return state["trainer"]

    def _load_loop(self, state: dict[str, Any]) -> None:
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.step = state["step"]
        self._loss, self._samples = state["loss"]["total"], state["loss"]["samples"]
        self._order = state["order"]
        self.loader.generator.set_state(self._order)
        self.optimizer.load_state_dict(state["optimizer"])
        if self._stopping is not None:
            self._stopping.load(state["stopping"])
        self._began, self._epoch_began = time.perf_counter() - state["seconds"], state["epoch_began"]
        random = state["random"]
        own = random[distributed.rank()] if isinstance(random, list) else random
        set_random_state(own, self.learner.device)

    # Reports

    def _report(self, loss: float, part: float = 0.0, *, finished: bool = False) -> None:
        """Report progress; ``part`` is the completed fraction of the current epoch."""
        if self.progress is None:
            return
        run, accuracy = self.task_run, None
        if self.history:
            accuracy = self.history[-1].validation_accuracy if run.validated else self.history[-1].train_accuracy
        self.progress(
            ProgressEvent(
                run.task,
                len(self.stream),
                run.name,
                epoch=len(self.history) + part,
                epochs=self.config.epochs,
                loss=loss,
                accuracy=accuracy,
                metric=self.result.metric,
                validated=run.validated,
                seconds=self._seconds,
                finished=finished,
            )
        )

    @property
    def _place(self) -> str:
        return f"{self.task_run.place}, epoch {len(self.history) + 1}, step {self.step}"
