"""``cuber.learn``: run a method through a stream."""

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberError, CuberWarning
from cuber.layers import evaluation_mode, normalized_by_batch
from cuber.networks.heads import heads_of
from cuber.runs.directory import RunDirectory
from cuber.runs.interrupts import Interrupts, Stopped
from cuber.runs.lock import RefusedError
from cuber.runs.result import Result
from cuber.streams import FixedLoader, Stream, Task
from cuber.training.config import TrainingConfig, training_options
from cuber.training.describe import configuration, empty_result, pool_of, regimes_of
from cuber.training.evaluation import evaluate
from cuber.training.forward import autocast, check_can_compile, check_precision
from cuber.training.randomness import check_seed, derive, seeded
from cuber.training.task_runs import TaskRun, task_runs
from cuber.training.trainer import REPORT_STEPS, Observer, OptimizerFactory, Progress, Trainer, TrainingSetup

Function = TypeVar("Function", bound=Callable[..., Result])


def _document_training_options(function: Function) -> Function:
    """Write the options of TrainingConfig into a function's signature and docstring, in place of ``**training``."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=field.type,
        )
        for field in fields(TrainingConfig)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    lines = "\n".join(f"        {name}: {limits.help}" for name, (_, _, limits) in training_options().items())
    function.__doc__ = (function.__doc__ or "").replace("        **training: See TrainingConfig.", lines)
    return function


@_document_training_options
def learn(
    method: Method,
    stream: Stream,
    *,
    seed: int = 0,
    optimizer: OptimizerFactory = SGD,
    loss_fn: LossFunction = functional.cross_entropy,
    progress: Progress | None = None,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    about: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    **training: Any,
) -> Result:
    """Learn the tasks of a stream one after another, and test all tasks seen after each.

    With ``patience``, tasks that have a validation split stop early and keep their best weights. A ``joint`` method
    learns all tasks at once, in batches that mix them.

    Args:
        method: A method around a model, such as ``cuber.CUBER(model)``, that has not learned a task yet.
        seed: Seed of all random numbers.
        optimizer: Called with parameters and learning rate in each task.
        progress: Called with a ProgressEvent every 100 steps and after each epoch.
        directory: Write logs, checkpoints and the result there; the same call resumes a run that was stopped.
        about: More values for the run's ``config.toml`` that identify the data and the model.
        observer: Measures during training, as ``cuber.training.TheoryRecorder(method)`` does.
        **training: See TrainingConfig.

    Raises:
        CuberError: If an option is invalid, the model does not fit the stream, or the loss is not finite.

    >>> result = cuber.learn(cuber.CUBER(model), stream, epochs=5, lr=0.01)  # doctest: +SKIP
    >>> result.accuracy, result.acc, result.bwt, result.regimes  # doctest: +SKIP
    """
    try:
        config = TrainingConfig(**training)
    except TypeError as error:  # a missing or an unknown argument
        raise TypeError(str(error).replace("TrainingConfig.__init__", "learn")) from None
    check_seed(seed)
    check_fit(method, stream)
    check_precision(config.precision, method.device)
    if config.compile:
        check_can_compile(method)
    if config.patience is not None and all(task.validation is None for task in stream):
        warnings.warn(
            f"no task of '{stream.name}' has a validation split, so patience={config.patience} has no effect; "
            "stream.split(0.1) makes one",
            CuberWarning,
            stacklevel=2,
        )
    was_training = method.model.training
    try:
        with seeded(derive(seed, "learn"), method.device):
            method.model.train()
            run = StreamRun(method, stream, TrainingSetup(config, seed, optimizer, loss_fn, progress, observer))
            run.result.method = (about or {}).get("method", run.result.method)
            return run.learn(directory, about or {})
    finally:
        method.model.train(was_training)


ORDERS = 5
"""Number of other orders of the test samples, to measure the spread that the order causes."""


class StreamRun:
    """A run of a method through a stream; it can stop between any two steps and be resumed to the same bits."""

    def __init__(self, learner: Method, stream: Stream, setup: TrainingSetup) -> None:
        self.learner = learner
        self.stream = stream
        self.setup = setup
        self.task_runs = task_runs(stream, setup.seed, joint=learner.joint)
        self.result = empty_result(learner, stream, setup)
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
        with held, self._interrupts:
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
            with seeded(derive(self.setup.seed, "test", "orders"), self.learner.device):
                self.result.reshuffled = [self._row(bare=False, order=order) for order in range(ORDERS)]
        return self.result

    def _learn_task(self, task_run: TaskRun, state: dict[str, Any] | None) -> None:
        self._trainer = Trainer(self.learner, task_run, self.setup)
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
        with seeded(derive(self.setup.seed, "test", number), self.learner.device):
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
            shuffle = None if order is None else derive(self.setup.seed, "test order", order, old)
            precision = autocast(self.setup.config.precision, self.learner.device)
            with self.learner.as_task(None if bare else old) as model, precision:
                score = evaluate(model, self.stream[old].test, self.setup.config.evaluation_batch_size, order=shuffle)
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
            trainer = Trainer(self.learner, self.task_runs[len(self.result.history)], self.setup)
            state["learner"]["sample"] = trainer.sample()
        self.learner.load_state_dict(state["learner"])
        self.learner.model.load_state_dict(state["model"])
        return state["trainer"]

    def _connect_observer(self) -> None:
        if self.setup.observer is not None:
            self.setup.observer.records = self.result.theory


def check_fit(learner: Method, stream: Stream) -> None:
    """Raise a CuberError unless the learner is new and its model fits every task of the stream."""
    if not isinstance(learner, Method):
        raise CuberError(
            f"learn takes a method around a model: give cuber.CUBER(model), not a {type(learner).__name__}"
        )
    if not isinstance(stream, Stream):
        raise CuberError(f"learn takes a cuber.Stream, not a {type(stream).__name__}")
    if learner.tasks or learner.task is not None:
        raise CuberError("this learner has learned a task already: give learn a new one, or write your own loop")
    if learner.forward is not None:
        raise CuberError("learn computes loss_fn(model(x), y) itself: with forward=, write your own training loop")
    heads = heads_of(learner.model)
    if not heads and len(stream) > 1 and not stream.shared_head:
        raise CuberError(
            f"each task of stream '{stream.name}' has its own head, but the model has one for all: "
            "build a cuber.MultiHead(backbone, ...), or set Stream(..., shared_head=True)"
        )
    for multi_head in heads:
        if len(multi_head.heads) < len(stream):
            raise CuberError(
                f"the model has {len(multi_head.heads)} heads, but stream '{stream.name}' has {len(stream)} tasks: "
                "list all of them in MultiHead's classes_per_task"
            )
    selected = [multi_head.task for multi_head in heads]
    try:
        with torch.no_grad(), evaluation_mode(learner.model):
            for position, task in enumerate(stream):
                for multi_head in heads:
                    multi_head.select_task(position)
                _check_output(learner, position, task)
    finally:
        for multi_head, before in zip(heads, selected, strict=True):
            multi_head.select_task(before)


def _check_output(learner: Method, position: int, task: Task) -> None:
    where = f"task {position} ('{task.name}')"
    x, y = next(iter(FixedLoader(task.train, 2)))
    try:
        output = learner.model(x.to(learner.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CuberError(f"{where}: the model cannot take inputs of shape {tuple(x.shape[1:])}: {reason}") from error
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(y):
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
        raise CuberError(f"{where}: for {len(y)} samples the output must have shape ({len(y)}, classes), not {what}")
    if output.shape[1] < task.classes:
        raise CuberError(f"{where} has {task.classes} classes, but the model has only {output.shape[1]} outputs for it")
