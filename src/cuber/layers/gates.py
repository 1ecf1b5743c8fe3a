"""Gates on the outputs of layers: what they do, and where they belong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from cuber.layers.protected import ProtectedLayer

Run = Callable[[], Tensor]
"""Some samples through the model, to their loss."""


class Gate:
    """Multiplies what a layer puts out, unit by unit, by ``sigmoid(s e)``; a forward hook, copied with the model."""

    def __init__(self, layer: ProtectedLayer, sharpness: float) -> None:
        self.layer = layer
        self.sharpness = sharpness
        """s wherever it is not annealed."""
        self.embedding: Tensor | None = None
        """e, one number per unit; None: there is no gate."""
        self.annealed: Tensor | None = None
        """s while the layer trains; None: as ever."""
        self.forced: Tensor | None = None
        """What every unit puts out instead, for those who look where it goes."""

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if (forced := self.forced) is not None:
            return _each(output, lambda y: torch.zeros_like(y) + self._along_units(forced, y))
        if self.embedding is None:
            return None
        attention = self.attention(self.embedding)
        return _each(output, lambda y: y * self._along_units(attention, y))

    def attention(self, embedding: Tensor) -> Tensor:
        """How far each unit is open, from 0 to 1."""
        if embedding.device != self.layer.parameter.device:  # the model has been moved
            embedding.data = embedding.data.to(self.layer.parameter.device)
        s = self.sharpness if self.annealed is None or not self.layer.modules[0].training else self.annealed
        return torch.sigmoid(embedding * s)

    def _along_units(self, values: Tensor, output: Tensor) -> Tensor:
        return values.to(output).reshape(-1, *[1] * self.layer.dimensions_after_units)


def _each(output: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of a tensor; of every sequence, where torch's transformers have packed some of different lengths."""
    if output.is_nested:
        return torch.nested.as_nested_tensor([function(sequence) for sequence in output.unbind()])
    return function(output)


def strip_gates(model: nn.Module) -> None:
    """Remove all gates from a model, also those that a copy of it has brought along."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, Gate):
                hook.embedding = None  # for compiled code, which does not notice that a hook has gone
                del module._forward_hooks[key]


def find_gated_modules(model: nn.Module, layers: Iterable[ProtectedLayer], run: Run) -> dict[str, list[nn.Module]]:
    """The layers that ``run`` passes, the last one last, and the modules on whose outputs their gates belong.

    That is the layer's own output, but for a normalization of each unit for itself that takes it up and would undo the
    gate: there it is the output of the normalization. (One that mixes units would let closed ones have a say.)
    """
    by_name = {layer.name: layer for layer in layers}
    outputs: dict[int, tuple[str, Tensor]] = {}
    passed: dict[str, int] = {}
    readers: dict[nn.Module, list[str | None]] = {}

    def after_layer(name: str, output: Tensor) -> None:
        passed[name] = passed.pop(name, 0) + 1
        outputs[id(output)] = name, output  # held on to, so that no other tensor gets its number

    def before_norm(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        name, output = outputs.get(id(arguments[0]) if arguments else 0, (None, None))
        if output is not None and name is not None and output.dim() - by_name[name].dimensions_after_units != 2:
            name = None  # it takes something else for the units: it would mix them
        readers.setdefault(module, []).append(name)

    with ExitStack() as hooks:
        for name, layer in by_name.items():
            hooks.enter_context(_after(layer.modules, partial(after_layer, name)))
        for module in model.modules():
            if isinstance(module, _NormBase):
                hooks.enter_context(module.register_forward_pre_hook(before_norm))
        run()
    places: dict[str, list[nn.Module]] = {}
    for name, times in passed.items():
        norms = [module for module, read in readers.items() if set(read) == {name}]
        followed = norms and sum(len(readers[module]) for module in norms) == times
        places[name] = norms if followed and not _leaks(by_name[name], norms, run) else by_name[name].modules
    return places


def _leaks(layer: ProtectedLayer, norms: list[nn.Module], run: Run) -> bool:
    """Whether what a layer puts out has another way to the loss than through these."""
    with _after(layer.modules, lambda output: torch.full_like(output, torch.nan)), _after(norms, torch.zeros_like):
        return not bool(run().isfinite())


@contextmanager
def _after(modules: Iterable[nn.Module], function: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """While open, ``function`` sees what the modules put out; what it returns takes its place."""
    handles = [module.register_forward_hook(lambda module, arguments, output: function(output)) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
