"""Normalization layers: what each task keeps of them, and batches that are normalized by themselves.

Parameters that each task keeps values of its own of are kept like running statistics, whatever their layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from cuber.layers.model import training_mode

Statistics = dict[str, Tensor]
"""Name -> running mean, variance or count of a normalization layer, or values of a parameter that is kept per task."""


class Normalization:
    """The normalization layers of a model that have running statistics, and parameters that are kept per task.

    Args:
        model: whose layers they are.
        mode: "task": each task has its own running statistics; "batch": each batch is normalized by itself.
        per_task: names of parameters that each task has its own values of; names of other things are ignored.
    """

    def __init__(self, model: nn.Module, mode: str, per_task: Iterable[str] = ()) -> None:
        self.model = model
        self.mode = mode
        self.per_task = set(per_task)
        self.layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, _NormBase) and module.track_running_stats and module.running_mean is not None
        }
        self.has_layer_norm = has_layer_norm(model)
        self.detach()  # a copy of a model comes with the forward passes of the original's learner
        for module in self.layers.values() if mode == "batch" else []:
            if isinstance(module, _BatchNorm):
                module.forward = BatchStatistics(module)  # type: ignore[assignment]

    def detach(self) -> None:
        """Restore the layers' own forward pass."""
        for module in self.layers.values():
            if isinstance(module.__dict__.get("forward"), BatchStatistics):
                del module.__dict__["forward"]

    def buffers(self) -> list[Tensor]:
        """Return the running statistics themselves; nothing in mode "batch"."""
        return [] if self.mode == "batch" else [buffer for _, buffer in self.named_buffers()]

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the running statistics, with names."""
        for name, module in self.layers.items():
            for key, buffer in module.named_buffers(recurse=False):
                yield f"{name}.{key}", buffer

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are kept per task, by name."""
        if not self.per_task:
            return {}
        named = self.model.named_parameters(remove_duplicate=False)
        return {name: parameter for name, parameter in named if name in self.per_task}

    def keep(self, names: Iterable[str], earlier: Iterable[Statistics]) -> None:
        """Keep more parameters per task.

        Args:
            names: of the parameters.
            earlier: statistics of earlier tasks, which had the present values if they lack others.
        """
        self.per_task.update(names)
        for name, parameter in self.parameters().items():
            present = parameter.detach().clone()
            for statistics in earlier:
                statistics.setdefault(name, present)

    def statistics(self) -> Statistics:
        """Return a copy of the parameters that are kept per task and, but in mode "batch", the running statistics."""
        buffers = {} if self.mode == "batch" else dict(self.named_buffers())
        return {name: tensor.detach().clone() for name, tensor in {**buffers, **self.parameters()}.items()}

    @torch.no_grad()
    def restore(self, statistics: Statistics) -> None:
        """Copy ``statistics`` into the layers and parameters that it names."""
        for name, buffer in self.named_buffers():
            if name in statistics:
                buffer.copy_(statistics[name])
        for name, parameter in self.parameters().items():
            if name not in statistics:
                continue
            values = statistics[name].to(parameter)
            if not torch.equal(parameter, values):  # a copy invalidates graphs that a backward pass has yet to read
                parameter.copy_(values)

    def trained_layers(self, model: nn.Module) -> list[_NormBase]:
        """Return the layers whose running statistics training changes: none that is in evaluation mode by itself."""
        if self.mode == "batch" or not self.layers:  # a ``train()`` of the user's own may do more than set modes
            return []
        with nullcontext() if model.training else training_mode(model):
            return [module for module in self.layers.values() if module.training]

    @contextmanager
    def estimating(self, layers: list[_NormBase]) -> Iterator[None]:
        """While open, forward passes compute the layers' statistics anew, as averages over the batches."""
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
    """The forward pass of the paper's batch norm: every batch is normalized by itself, in evaluation too.

    Args:
        module: the layer.
        constants: mean and variance to use instead, for each call in a cycle.
    """

    def __init__(self, module: _BatchNorm, constants: list[tuple[Tensor, Tensor]] | None = None) -> None:
        self.module = module
        self.constants = None if constants is None else cycle(constants)

    def __call__(self, x: Tensor) -> Tensor:
        module, (mean, variance) = self.module, (None, None) if self.constants is None else next(self.constants)
        return functional.batch_norm(x, mean, variance, module.weight, module.bias, mean is None, 0.0, module.eps)


def normalized_by_batch(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers that normalize every batch by itself, in evaluation too."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        and (module.running_mean is None or isinstance(module.__dict__.get("forward"), BatchStatistics))
    ]


@contextmanager
def observed_norms(model: nn.Module) -> Iterator[list[nn.Module]]:
    """While open, every layer that normalizes by statistics of batches is added to the list when it is called."""
    called: list[nn.Module] = []
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    hooks = [module.register_forward_pre_hook(lambda module, _: called.append(module)) for module in norms]
    try:
        yield called
    finally:
        for hook in hooks:
            hook.remove()


def has_layer_norm(model: nn.Module) -> bool:
    """Return whether a model normalizes activations sample by sample, as transformers do, by a class of any library."""
    names = {kind.__name__.lower() for module in model.modules() for kind in type(module).__mro__}
    return any("layernorm" in name or "rmsnorm" in name for name in names)


@contextmanager
def constant_statistics(layers: list[_BatchNorm], run: Callable[[], object]) -> Iterator[None]:
    """While open, layers use the mean and variance of their inputs in ``run()`` as constants.

    Samples do not interact, so that each has its own gradient.
    """
    seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {module: [] for module in layers}

    def measure(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        over = [dim for dim in range(arguments[0].dim()) if dim != 1]
        variance, mean = torch.var_mean(arguments[0], over, correction=0)
        seen[module].append((mean, variance))

    with ExitStack() as hooks, torch.no_grad():
        for module in layers:
            hooks.enter_context(module.register_forward_pre_hook(measure))
        if layers:
            run()
    before = {module: module.__dict__.get("forward") for module in layers}
    try:
        for module in layers:
            module.forward = BatchStatistics(module, seen[module])  # type: ignore[assignment]
        yield
    finally:
        for module, forward in before.items():
            del module.__dict__["forward"]
            if forward is not None:
                module.__dict__["forward"] = forward
