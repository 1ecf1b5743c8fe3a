"""``cuber.learn``: run a method through a stream."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD

from cuber.core import distributed
from cuber.core.batches import explained
from cuber.core.boundaries import Boundaries
from cuber.core.learner import LossFunction, Method
from cuber.core.metric import ACCURACY, Metric, as_metric
from cuber.core.randomness import check_seed, derive, seeded
from cuber.core.settings import is_number, short
from cuber.errors import CuberError, CuberWarning, UnknownKeyword, first_line, unknown
from cuber.layers import evaluation_mode
from cuber.networks.heads import heads_of
from cuber.runs.directory import RunDirectory
from cuber.runs.result import Result
from cuber.streams import FixedLoader, Stream, Task
from cuber.streams.reading import reading
from cuber.streams.splits import TensorSplit
from cuber.training.config import TrainingConfig, training_options
from cuber.training.detecting import DetectingTrainer
from cuber.training.forward import check_can_compile, check_precision
from cuber.training.optimizers import OptimizerFactory
from cuber.training.progress import Progress
from cuber.training.trainer import Trainer

if TYPE_CHECKING:
    from cuber.training.theory_recorder import TheoryRecorder

Function = TypeVar("Function", bound=Callable[..., Result])


def _document_training_options(function: Function) -> Function:
    """Write the options of TrainingConfig into a function's signature and docstring, in place of ``**training``."""
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    options = inspect.signature(TrainingConfig).parameters.values()
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
    metric: Any = None,
    progress: Progress | None = None,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    about: Mapping[str, Any] | None = None,
    observer: TheoryRecorder | None = None,
    workers: int = 0,
    boundaries: str | Boundaries | None = None,
    **training: Any,
) -> Result:
    """Learn the tasks of a stream one after another, and test all tasks seen after each.

    With ``patience``, tasks that have a validation split stop early and keep their best weights. A ``joint`` method
    learns all tasks at once, in batches that mix them.

    Args:
        method: A method around a model, such as ``cuber.CUBER(model)``, that has not learned a task yet.
        stream: The tasks, in the order in which they are learned.
        seed: Seed of all random numbers.
        optimizer: Called with parameters and learning rate in each task.
        loss_fn: ``loss_fn(output, target)``, a mean over the batch. Targets that are numbers need another than the
            default.
        metric: A :class:`cuber.Metric` or a torchmetrics object (default: that of the stream, which is accuracy).
        progress: Called with a ProgressEvent every 100 steps and after each epoch; with ``boundaries``, after each
            epoch, which is 1,000 samples there.
        directory: Write logs, checkpoints and the result there; the same call resumes a run that was stopped.
        about: More values for the run's ``config.toml`` that identify the data and the model.
        observer: Measures during training, as ``cuber.training.TheoryRecorder(method)`` does.
        workers: Processes that read images on disk and torch Datasets; 0: this one. The result is the same.
        boundaries: ``"detect"``, or a :class:`cuber.Boundaries` around ``method``: learn the batches of the stream
            without being told where a task ends.
        **training: See TrainingConfig.

    Returns:
        The :class:`cuber.Result`, with the accuracy matrix, losses, regimes, times and memory.

    Raises:
        CuberError: If an option is invalid, the model does not fit the stream, or the loss is not finite.

    >>> import cuber
    >>> x, y = torch.eye(4), torch.tensor([0, 1, 2, 3])
    >>> stream = Stream("points", [Task(name, (x, y), (x, y)) for name in "ab"], shared_head=True)
    >>> result = learn(cuber.CUBER(torch.nn.Linear(4, 4)), stream, epochs=50, lr=1.0, batch_size=4)
    >>> result.acc, result.bwt
    (100.0, 0.0)
    """
    if name := next((name for name in training if name not in training_options()), None):
        raise unknown("argument of cuber.learn", name, inspect.signature(learn).parameters, UnknownKeyword)
    try:
        config = TrainingConfig(**training)
    except TypeError as error:  # a missing argument
        raise TypeError(str(error).replace("TrainingConfig.__init__", "learn")) from None
    check_seed(seed)
    measured = as_metric(getattr(stream, "metric", None) if metric is None else metric)
    check_fit(method, stream, loss_fn, measured)
    check_precision(config.precision, method.device)
    check_workers(workers, stream)
    found = find_boundaries(boundaries, method, config, observer)
    if config.compile:
        check_can_compile(method)
    if observer is not None and distributed.is_active():
        raise CuberError("the theorems' conditions are measured in one process: start this run without torchrun")
    if config.patience is not None and all(task.validation is None for task in stream):
        message = f"no task of '{stream.name}' has a validation split, so patience={config.patience} has no effect"
        warnings.warn(f"{message}; stream.split(0.1) makes one", CuberWarning, stacklevel=2)
    was_training = method.model.training
    try:
        on_gpu = method.device.type == "cuda"
        with seeded(derive(seed, "learn"), method.device), reading(workers, pinned=on_gpu):
            method.model.train()
            options = (method, stream, config, seed, optimizer, loss_fn, progress, observer, measured)
            trainer = Trainer(*options) if found is None else DetectingTrainer(*options, boundaries=found)
            trainer.result.method = (about or {}).get("method", trainer.result.method)
            if directory is not None and not isinstance(directory, RunDirectory):
                directory = RunDirectory(directory)
            return trainer.learn(directory, about or {})
    finally:
        method.model.train(was_training)


def find_boundaries(
    given: object, method: Method, config: TrainingConfig, observer: TheoryRecorder | None
) -> Boundaries | None:
    """Return what detects the boundaries of tasks, None if they are told; raise where that is not possible."""
    if given is None:
        return None
    if given != "detect" and not isinstance(given, Boundaries):
        raise CuberError(f"boundaries must be 'detect', a cuber.Boundaries or None, not {short(given)}")
    if config.patience is not None:
        raise CuberError(
            "early stopping needs the validation data of a task, and which task it is has to be detected: "
            "leave patience out, or set it to 0"
        )
    if observer is not None:
        raise CuberError("the theorems' conditions are measured with known boundaries only: leave boundaries out")
    if distributed.is_active():
        raise CuberError("boundaries are detected in one process: start this run without torchrun")
    found = Boundaries(method) if not isinstance(given, Boundaries) else given
    if found.learner is not method:
        raise CuberError("these boundaries belong to another learner: give learn cuber.Boundaries(method)")
    if found.batches:
        raise CuberError("these boundaries have observed batches already: give learn new ones")
    return found


def check_workers(workers: int, stream: Stream) -> None:
    """Raise a CuberError unless the number is valid and that number of processes has something to read."""
    if not is_number(workers, whole=True) or workers < 0:
        raise CuberError(f"workers must be a whole number of at least 0, not {short(workers)}")
    splits = [split for task in stream for split in (task.train, task.validation, task.test) if split is not None]
    if workers and all(isinstance(split, TensorSplit) for split in splits):
        raise CuberError(
            f"all samples of '{stream.name}' are in memory, so that workers={workers} has nothing to read: leave it out"
        )


def check_fit(
    learner: Method,
    stream: Stream,
    loss_fn: LossFunction = functional.cross_entropy,
    metric: Metric = ACCURACY,
) -> None:
    """Raise a CuberError unless the learner is new and its model fits every task of the stream, its loss and metric."""
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
                _check_output(learner, position, task, loss_fn, metric)
    finally:
        for multi_head, before in zip(heads, selected, strict=True):
            multi_head.select_task(before)


def _check_output(learner: Method, position: int, task: Task, loss_fn: LossFunction, metric: Metric) -> None:
    where = f"task {position} ('{task.name}')"
    if metric is ACCURACY and task.outputs is not None:
        raise CuberError(
            f"{where} has other targets than one label per sample, so it needs a metric: learn(..., metric=)"
        )
    x, y = next(iter(FixedLoader(task.train, 2)))
    try:
        output = learner.model(x.to(learner.device))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shape = tuple(x.shape[1:])
        raise CuberError(f"{where}: the model cannot take inputs of shape {shape}: {first_line(error)}") from error
    if task.outputs is not None and loss_fn is functional.cross_entropy:
        _check_cross_entropy(where, task, y)
    if task.outputs is not None or metric is not ACCURACY:
        y = y.to(learner.device)
        with explained(f"{where}: the loss cannot take the model's output and the targets"):
            loss_fn(output, y)
        with explained(f"{where}: metric '{metric.name}' cannot take the model's output and the targets"):
            metric.start(learner.device).add(output, y)
    if task.outputs is not None:
        return
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(y):
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
        raise CuberError(f"{where}: for {len(y)} samples the output must have shape ({len(y)}, classes), not {what}")
    if output.shape[1] < task.classes:
        raise CuberError(f"{where} has {task.classes} classes, but the model has only {output.shape[1]} outputs for it")


def _check_cross_entropy(where: str, task: Task, y: Tensor) -> None:
    """Raise a CuberError for targets of which the default loss would compute something without an error."""
    if task.outputs == 1:  # the softmax of one output is 1, and the loss 0
        raise CuberError(f"{where} has outputs=1, of which cross entropy learns nothing: pass learn(..., loss_fn=...)")
    if y.is_floating_point() and y.dim() > 1:
        total = y.double().sum(1)
        if bool((y < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-2):
            raise CuberError(
                f"{where} has targets that are neither labels nor probabilities, as cross entropy needs: "
                "pass learn(..., loss_fn=...)"
            )
