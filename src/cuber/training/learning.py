"""Door two: a whole stream, task after task, all tasks seen tested after each."""

from __future__ import annotations

import dataclasses
import platform
import time
import warnings
from typing import Any

import torch
from torch.nn import functional
from torch.optim import SGD

from cuber.errors import CuberWarning
from cuber.methods.gpm import GPM
from cuber.methods.method import LossFunction, Method
from cuber.methods.settings import settings_of
from cuber.networks.heads import heads_of
from cuber.streams import Stream
from cuber.training.checks import check_fit
from cuber.training.evaluate import evaluate
from cuber.training.progress import Progress
from cuber.training.randomness import check_seed, derive, seeded
from cuber.training.result import AccuracyMatrix, Result
from cuber.training.settings import Training
from cuber.training.trainer import OptimizerFactory, Recipe, Trainer
from cuber.version import __version__


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
    progress: Progress | None = None,
) -> Result:
    """Learn every task of a stream with a method around a model, and test all tasks seen after each.

    With ``patience``, tasks that have a validation part are stopped early: the learning rate is divided by ``factor``
    after so many epochs without a new best validation loss, training ends below ``floor``, the best weights are kept.

    >>> result = cuber.learn(cuber.CUBER(model), stream, epochs=5, lr=0.01)  # doctest: +SKIP
    >>> result.accuracy, result.acc, result.bwt, result.regimes  # doctest: +SKIP
    """
    training = Training(epochs, lr, batch_size, patience, factor, floor, evaluation_batch_size)
    check_seed(seed)
    check_fit(method, stream)
    if patience is not None and all(task.validation is None for task in stream):
        warnings.warn(
            f"no task of '{stream.name}' has a validation part, so patience={patience} stops nothing early; "
            "stream.split(0.1) holds one out",
            CuberWarning,
            stacklevel=2,
        )
    recipe = Recipe(training, seed, optimizer, loss_fn, progress)
    was_training = method.model.training
    try:
        with seeded(derive(seed, "learn"), method.device):
            method.model.train()
            return _learn(method, stream, recipe)
    finally:
        method.model.train(was_training)


def _learn(learner: Method, stream: Stream, recipe: Recipe) -> Result:
    result = _blank(learner, stream, recipe)
    for position in range(len(stream)):
        began = time.perf_counter()
        trainer = Trainer(learner, stream, position, recipe)
        result.history.append(trainer.train())
        result.seconds.append(time.perf_counter() - began)
        result.bytes.append(learner.memory_bytes())
        result.pool.append(_pool(learner))
        result.regimes = _regimes(learner)
        _test(learner, stream, position, recipe.training.evaluation_batch_size, result)
        trainer.tell(result.history[-1][-1].train_loss, finished=True)
    return result


def _test(learner: Method, stream: Stream, learnt: int, batch_size: int, result: Result) -> None:
    """Add a row to the accuracy matrix, and to the one of the bare weights where tasks share a head."""

    def row(bare: bool) -> list[float | None]:
        accuracies: list[float | None] = [None] * len(stream)
        for old in range(learnt + 1):
            with learner.as_task(None if bare else old) as model:
                accuracies[old] = evaluate(model, stream[old].test, batch_size).accuracy
        return accuracies

    result.accuracy.append(row(bare=False))
    if result.accuracy_bare is not None:
        result.accuracy_bare.append(row(bare=True))


def _blank(learner: Method, stream: Stream, recipe: Recipe) -> Result:
    """All that is known of a result before the first task."""
    bare: AccuracyMatrix | None = [] if stream.shared_head and not heads_of(learner.model) else None
    return Result(
        benchmark=stream.name,
        method=type(learner).__name__.lower(),
        seed=recipe.seed,
        tasks=[
            {
                "name": task.name,
                "classes": task.classes,
                "train": len(task.train),
                "validation": 0 if task.validation is None else len(task.validation),
                "test": len(task.test),
            }
            for task in stream
        ],
        settings={name: getattr(learner, name) for name in settings_of(learner)},
        training=dataclasses.asdict(recipe.training) | {"optimizer": _name(recipe.make_optimizer)},
        accuracy_bare=bare,
        machine={
            "cuber": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
            "processor": platform.machine(),
            "device": str(learner.device),
            "threads": torch.get_num_threads(),
            "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
        },
        notes=list(stream.notes),
    )


def _regimes(learner: Method) -> list[dict[str, dict[int, dict[str, Any]]]]:
    """What the learner says of regimes, as plain values; nothing for methods that know of none."""
    return [
        {
            layer: {
                old: {"regime": regime.number, "ratio": regime.ratio, "cosine": regime.cosine, "fell": regime.fell}
                for old, regime in by_task.items()
            }
            for layer, by_task in by_layer.items()
        }
        for by_layer in getattr(learner, "regimes", [])
    ]


def _pool(learner: Method) -> dict[str, dict[str, int]]:
    """How full each layer's pool is; nothing for methods that have none."""
    pools = learner.memory if isinstance(learner, GPM) else {}
    return {layer: {"size": pool.size, "dimension": pool.dimension} for layer, pool in pools.items()}


def _name(optimizer: OptimizerFactory) -> str:
    inner = getattr(optimizer, "func", optimizer)  # functools.partial(Adam, weight_decay=...)
    return getattr(inner, "__name__", type(inner).__name__)
