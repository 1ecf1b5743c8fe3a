"""What a run was made of, in words short enough for its configuration: the loss, the optimizer, the model, the data."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

from cuber.streams import ImageSplit, Stream
from cuber.streams.splits import DatasetSplit, TensorSplit
from cuber.training.trainer import OptimizerFactory

PLAIN = (bool, int, float, str, tuple, type(None))
NUMBERS_LOOKED_AT = 2**19
"""Of each part, to tell data apart: two megabytes."""


def called(function: Any) -> str:
    """A function or a callable object by its name, with what it was given; no address, which no two runs share.

    >>> called(nn.functional.cross_entropy), called(nn.NLLLoss(reduction="sum"))
    ('torch.nn.functional.cross_entropy', "torch.nn.modules.loss.NLLLoss(reduction='sum', ignore_index=-100)")
    """
    if hasattr(function, "func"):  # functools.partial(cross_entropy, label_smoothing=0.1)
        return called(function.func) + _given(function.keywords)
    if hasattr(function, "__qualname__"):
        return f"{function.__module__}.{function.__qualname__}"
    own = {name: value for name, value in vars(function).items() if name[0] != "_" and name != "training"}
    return called(type(function)) + _given({name: value for name, value in own.items() if isinstance(value, PLAIN)})


def optimizer_made(make: OptimizerFactory, parameters: list[nn.Parameter], lr: float) -> str:
    """The optimizer that a factory makes, with what is neither as its class has it nor as the training says.

    >>> weights = [nn.Parameter(torch.zeros(2))]
    >>> optimizer_made(lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9), weights, 0.1)
    'SGD(momentum=0.9)'
    """
    optimizer = make(parameters, lr)
    kind = type(optimizer)
    name = kind.__qualname__ if kind.__module__.startswith(optim.__name__) else called(kind)
    if not isinstance(optimizer, optim.Optimizer):
        return name  # which whoever trains with it will not take
    options = inspect.signature(kind).parameters.items()
    usual = {option: each.default for option, each in options if option != "params"} | {"lr": lr}
    groups = [
        name + _given({option: group[option] for option in usual if group.get(option, usual[option]) != usual[option]})
        for group in optimizer.param_groups
    ]
    return " and ".join(groups if len(set(groups)) > 1 else groups[:1])


def architecture(model: nn.Module) -> str:
    """The same for models that compute alike, whatever their weights: the class, and a digest of all that is in it."""
    parts = [f"{name}: {type(module).__qualname__}({_details(module)})" for name, module in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    parts += [f"{name}: {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{type(model).__qualname__} {digest[:16]}"


def contents(stream: Stream) -> str:
    """A digest of the data: all labels, and of inputs as many as are read in no time; of Datasets nothing.

    What those yield may be drawn anew each time.
    """
    digest = hashlib.sha256()
    for part in (part for task in stream for part in (task.train, task.validation, task.test)):
        if part is not None and not isinstance(part, DatasetSplit):
            for tensor in (_some_inputs(part), part.y):
                digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().resolve_neg().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _some_inputs(part: TensorSplit | ImageSplit) -> Tensor:
    """From all over the part, as a network gets them."""
    most = max(1, NUMBERS_LOOKED_AT // max(1, math.prod(part.shape)))
    chosen = torch.arange(0, len(part), 1 + (len(part) - 1) // most)
    x, _ = next(iter(part.batches([chosen], torch.Generator())))
    return x


def _details(module: nn.Module) -> str:
    """What torch says of its own modules: strides, rates of dropout. What others say may change from call to call."""
    return module.extra_repr() if type(module).__module__.startswith(nn.__name__) else ""


def _given(values: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in values.items())})" if values else ""
