"""Normalization statistics that belong to a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

Statistics = dict[str, Tensor]
"""Running mean, variance and count of every normalization layer, by the name of the buffer."""


class Normalization:
    """The normalization layers of a model that keep running statistics: the task's own, or none at all."""

    def __init__(self, model: nn.Module, mode: str) -> None:
        self.mode = mode
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, _NormBase) and module.track_running_stats and module.running_mean is not None
        }
        self.detach()  # a copy of a model comes with what the learner of the original had put there
        if mode == "batch":
            for module in self.layers.values():
                if isinstance(module, _BatchNorm):
                    module.forward = BatchStatistics(module)  # type: ignore[assignment]

    def detach(self) -> None:
        """Give the layers back as they were."""
        for module in self.layers.values():
            if isinstance(module.__dict__.get("forward"), BatchStatistics):
                del module.__dict__["forward"]

    def statistics(self) -> Statistics:
        """A copy of the present running statistics; nothing where every batch has its own."""
        if self.mode == "batch":
            return {}
        return {
            f"{name}.{key}": buffer.clone()
            for name, module in self.layers.items()
            for key, buffer in module.named_buffers(recurse=False)
        }

    def restore(self, statistics: Statistics) -> None:
        """Put a copy of ``statistics`` into the layers; layers it does not name stay as they are."""
        for name, module in self.layers.items():
            for key, buffer in module.named_buffers(recurse=False):
                if f"{name}.{key}" in statistics:
                    buffer.copy_(statistics[f"{name}.{key}"])

    def trained_layers(self, model: nn.Module) -> list[_NormBase]:
        """Return the layers whose running statistics training changes.

        A layer that is in evaluation mode while the model trains is frozen.
        """
        if self.mode == "batch":
            return []
        return [module for module in self.layers.values() if module.training or not model.training]

    @contextmanager
    def estimating(self, layers: list[_NormBase]) -> Iterator[None]:
        """While open, forward passes estimate the layers' statistics anew, as plain averages over the batches."""
        before = [(module.momentum, module.training) for module in layers]
        for module in layers:
            module.reset_running_stats()
            module.momentum = None
            module.train()
        try:
            yield
        finally:
            for module, (momentum, training) in zip(layers, before, strict=True):
                module.momentum, module.training = momentum, training


class BatchStatistics:
    """The paper's batch normalization: every batch is normalized by itself, in evaluation too."""

    def __init__(self, module: _BatchNorm) -> None:
        self.module = module

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        return functional.batch_norm(x, None, None, module.weight, module.bias, True, 0.0, module.eps)


class ConstantStatistics:
    """Batch normalization by statistics that are given, call by call, and begin again when all have been used."""

    def __init__(self, module: _BatchNorm, statistics: list[tuple[Tensor, Tensor]]) -> None:
        self.module = module
        self.statistics = cycle(statistics)

    def __call__(self, x: Tensor) -> Tensor:
        module = self.module
        mean, variance = next(self.statistics)
        return functional.batch_norm(x, mean, variance, module.weight, module.bias, False, 0.0, module.eps)


def normalized_by_batch(model: nn.Module) -> list[_BatchNorm]:
    """The layers that normalize every batch by itself, in evaluation too."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        and (module.running_mean is None or isinstance(module.__dict__.get("forward"), BatchStatistics))
    ]


@contextmanager
def constant_statistics(layers: list[_BatchNorm], batch: Callable[[], object]) -> Iterator[None]:
    """While open, these layers take the mean and variance of what ``batch`` passes through them as constants.

    So samples do not interact, and each has a gradient of its own.
    """
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {module: [] for module in layers}

    def measure(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        over = [dim for dim in range(arguments[0].dim()) if dim != 1]
        variance, mean = torch.var_mean(arguments[0], over, correction=0)
        seen[module].append((mean, variance))

    hooks = [module.register_forward_pre_hook(measure) for module in layers]
    try:
        if layers:
            with torch.no_grad():
                batch()
    finally:
        for hook in hooks:
            hook.remove()
    before = [module.__dict__.get("forward") for module in layers]
    try:
        for module in layers:
            module.forward = ConstantStatistics(module, seen[module])  # type: ignore[assignment]
        yield
    finally:
        for module, forward in zip(layers, before, strict=True):
            del module.__dict__["forward"]
            if forward is not None:
                module.__dict__["forward"] = forward


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; every module gets back the mode it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
