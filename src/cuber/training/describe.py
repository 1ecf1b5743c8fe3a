"""Describe a run with plain values: its result before training, its configuration, its model and its data."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from cuber.core import distributed
from cuber.core.learner import Method
from cuber.core.metric import ACCURACY
from cuber.core.pooled import PooledMethod
from cuber.core.settings import settings_of
from cuber.errors import CuberError
from cuber.methods import method_name
from cuber.metrics import Measure
from cuber.networks.heads import heads_of
from cuber.runs import schema
from cuber.runs.config_file import Config, ready_for_toml
from cuber.runs.result import Result
from cuber.streams import Stream
from cuber.streams.splits import DatasetSplit
from cuber.version import __version__

if TYPE_CHECKING:
    from cuber.training.loop import TaskLoop
    from cuber.training.optimizers import OptimizerFactory

HASHED_NUMBERS = 2**19
"""Inputs of each split that go into the digest of the data: two megabytes."""


def empty_result(trainer: TaskLoop) -> Result:
    """Return a result with all that is known before the first task."""
    learner, stream, config, metric = trainer.learner, trainer.stream, trainer.config, trainer.metric
    one_head = stream.shared_head and not heads_of(learner.model)
    return Result(
        benchmark=stream.name,
        method=method_name(type(learner)),
        seed=trainer.seed,
        tasks=[
            {
                "name": task.name,
                "classes" if task.outputs is None else "outputs": task.classes,
                "train": len(task.train),
                "validation": 0 if task.validation is None else len(task.validation),
                "test": len(task.test),
            }
            for task in stream
        ],
        settings={name: getattr(learner, name) for name in settings_of(learner)},
        training={
            **dataclasses.asdict(config),
            "optimizer": optimizer_made(trainer.make_optimizer, learner.parameters(), config.lr),
            "loss": qualified_name(trainer.loss_fn),
            **({} if metric is ACCURACY else {"metric": metric.name}),
        },
        metric=Measure() if metric is ACCURACY else Measure(metric.name, metric.higher_is_better, unit=""),
        accuracy_bare=[] if one_head else None,
        accuracy_inferred=[] if learner.infers_tasks and (one_head or metric is ACCURACY) else None,
        machine={
            "cuber": __version__,
            "commit": _commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
            "processor": platform.machine(),
            "device": str(learner.device),
            "threads": torch.get_num_threads(),
            **({"processes": distributed.processes()} if distributed.is_active() else {}),
            "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
            "architecture": architecture(learner.model),
        },
        notes=list(stream.notes),
    )


def add_device(result: Result, device: torch.device) -> None:
    """Add the device that a run is resumed on to those that it ran on before."""
    before = result.machine["device"]
    if before.split(", ")[-1] != str(device):
        result.machine["device"] = f"{before}, {device}"


def configuration(result: Result, stream: Stream, about: Mapping[str, Any]) -> Config:
    """Return the tables of ``config.toml``: all that decides a result, ``about`` included, and the machine."""
    machine = dict(result.machine)
    names = ("device", "threads", "processes", "parameters", "architecture")
    decisive = {name: machine.pop(name) for name in names if name in machine}
    decisive["contents"] = contents(stream)
    run = {name: getattr(result, name) for name in ("benchmark", "method", "seed")}
    if taken := sorted(about.keys() & {*decisive, *run} - {"method"}):
        raise CuberError(f"about: the name '{taken[0]}' is reserved: choose another")
    try:
        schema.CONFIG(ready_for_toml({"experiment": about}), "")
    except ValueError as error:
        raise CuberError(f"about: {error}") from error
    return {
        "experiment": {**about, **run, **decisive},
        "training": result.training,
        "settings": result.settings,
        "stream": {"tasks": result.tasks, "notes": result.notes},
        "machine": machine,
    }


def regimes_of(learner: Method) -> list[dict[str, dict[int, dict[str, Any]]]]:
    """Return the regimes of a learner as plain values; empty for methods that have none."""
    return [
        {
            layer: {
                old: {"regime": r.number, "ratio": r.ratio, "cosine": r.cosine, "demoted_at": r.demoted_at}
                for old, r in by_task.items()
            }
            for layer, by_task in by_layer.items()
        }
        for by_layer in getattr(learner, "regimes", [])
    ]


def pool_of(learner: Method) -> dict[str, dict[str, int]]:
    """Return size and dimension of each layer's pool; empty for methods that have none."""
    pools = learner.memory if isinstance(learner, PooledMethod) else {}
    return {layer: {"size": pool.size, "dimension": pool.dimension} for layer, pool in pools.items()}


def qualified_name(function: Any) -> str:
    """Return the full name of a function or callable object, with its arguments.

    >>> qualified_name(nn.functional.cross_entropy), qualified_name(nn.NLLLoss(reduction="sum"))
    ('torch.nn.functional.cross_entropy', "torch.nn.modules.loss.NLLLoss(reduction='sum', ignore_index=-100)")
    """
    if hasattr(function, "func"):  # functools.partial(cross_entropy, label_smoothing=0.1)
        return qualified_name(function.func) + _arguments(function.keywords)
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    own = {name: value for name, value in vars(function).items() if name[0] != "_" and name != "training"}
    plain = {name: value for name, value in own.items() if isinstance(value, bool | int | float | str | tuple | None)}
    return qualified_name(type(function)) + _arguments(plain)


def optimizer_made(make: OptimizerFactory, parameters: list[nn.Parameter], lr: float) -> str:
    """Return the name of the optimizer that a factory makes, with options other than the defaults and ``lr``.

    >>> weights = [nn.Parameter(torch.zeros(2))]
    >>> optimizer_made(lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9), weights, 0.1)
    'SGD(momentum=0.9)'
    """
    # LoRA on a model without heads has nothing to train before its first task; a matrix, as Muon takes no other shape.
    optimizer = make(parameters or [nn.Parameter(torch.zeros(1, 1))], lr)
    kind = type(optimizer)
    name = kind.__qualname__ if kind.__module__.startswith(optim.__name__) else qualified_name(kind)
    if not isinstance(optimizer, optim.Optimizer):
        return name  # Method.wrap refuses it
    options = inspect.signature(kind).parameters.items()
    usual = {option: each.default for option, each in options if option != "params"} | {"lr": lr}
    groups = [
        name
        + _arguments({option: group[option] for option in usual if group.get(option, usual[option]) != usual[option]})
        for group in optimizer.param_groups
    ]
    return " and ".join(groups if len(set(groups)) > 1 else groups[:1])


def architecture(model: nn.Module) -> str:
    """Return the class of a model and a digest of its modules and shapes, whatever its weights."""
    parts = [
        # Only torch's own modules: extra_repr of others may change from call to call.
        f"{name}: {type(m).__qualname__}({m.extra_repr() if type(m).__module__.startswith(nn.__name__) else ''})"
        for name, m in model.named_modules()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts += [f"{name}: {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{type(model).__qualname__} {digest[:16]}"


def contents(stream: Stream) -> str:
    """Return a digest of the labels and of some inputs; Datasets are left out, as they may draw samples at random."""
    digest = hashlib.sha256()
    for split in (split for task in stream for split in (task.train, task.validation, task.test)):
        if split is None or isinstance(split, DatasetSplit):
            continue
        most = max(1, HASHED_NUMBERS // max(1, math.prod(split.shape)))
        chosen = torch.arange(0, len(split), 1 + (len(split) - 1) // most)
        x, _ = next(iter(split.batches([chosen], 0)))
        for tensor in (x, split.y):
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().resolve_neg().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _arguments(values: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in values.items())})" if values else ""


@cache
def _commit() -> str | None:
    """Return the commit of this checkout, "-dirty" if it has changes; None outside of one."""
    if not any((folder / ".git").exists() for folder in Path(__file__).parents[2:4]):
        return None
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
    except (OSError, subprocess.SubprocessError):
        return None
