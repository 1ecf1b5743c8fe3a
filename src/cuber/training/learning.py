"""Door two: a whole stream, task after task or all at once, all tasks seen tested after each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from torch.nn import functional
from torch.optim import SGD

from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberWarning
from cuber.runs.directory import RunDirectory
from cuber.runs.result import Result
from cuber.streams import Stream
from cuber.training.checks import check_fit
from cuber.training.compiled import check_can_compile
from cuber.training.config import TrainingConfig
from cuber.training.describe import blank
from cuber.training.precision import check_precision
from cuber.training.progress import Progress
from cuber.training.randomness import check_seed, derive, seeded
from cuber.training.run import Run
from cuber.training.theory_recorder import Observer
from cuber.training.trainer import OptimizerFactory, Recipe


def learn(
    method: Method,
    stream: Stream,
    *,
    epochs: int,
    lr: float,
    batch_size: int = 64,
    seed: int = 0,
    optimizer: OptimizerFactory = SGD,
    loss_fn: LossFunction = functional.cross_entropy,
    patience: int | None = None,
    factor: float = 2.0,
    floor: float = 1e-5,
    evaluation_batch_size: int = 256,
    precision: str = "float32",
    compile: bool = False,
    progress: Progress | None = None,
    directory: RunDirectory | str | os.PathLike[str] | None = None,
    about: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> Result:
    """Learn every task of a stream with a method around a model, and test all tasks seen after each.

    With ``patience``, tasks that have a validation part are stopped early: the learning rate is divided by ``factor``
    after so many epochs without a new best validation loss, training ends below ``floor``, the best weights are kept.

    With ``precision="bf16"`` forward passes and tests are computed in it, under torch's autocast, while weights and all
    that protects them stay as they are; with ``compile``, torch.compile makes the forward pass of the steps.

    A method that is ``joint`` learns all tasks at once, in batches that mix them; what it is validated on is mixed too.

    With a ``directory``, the run is written there as it goes, and the same call again goes on where it stopped, to the
    same result to the bit; ``about`` is what its configuration should say of the data and the model besides.

    An ``observer`` looks on and writes into the result: ``cuber.training.Conditions(method)`` does, about the theorems.

    >>> result = cuber.learn(cuber.CUBER(model), stream, epochs=5, lr=0.01)  # doctest: +SKIP
    >>> result.accuracy, result.acc, result.bwt, result.regimes  # doctest: +SKIP
    """
    training = TrainingConfig(
        epochs, lr, batch_size, patience, factor, floor, evaluation_batch_size, precision, compile
    )
    check_seed(seed)
    check_fit(method, stream)
    check_precision(precision, method.device)
    if compile:
        check_can_compile(method)
    if patience is not None and all(task.validation is None for task in stream):
        warnings.warn(
            f"no task of '{stream.name}' has a validation part, so patience={patience} stops nothing early; "
            "stream.split(0.1) holds one out",
            CuberWarning,
            stacklevel=2,
        )
    recipe = Recipe(training, seed, optimizer, loss_fn, progress, observer)
    was_training = method.model.training
    try:
        with seeded(derive(seed, "learn"), method.device):
            method.model.train()
            result = blank(method, stream, recipe)
            result.method = (about or {}).get("method", result.method)
            return Run(method, stream, recipe, result).learn(directory, about or {})
    finally:
        method.model.train(was_training)
