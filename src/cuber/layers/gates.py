"""Gates on the outputs of layers: what they do, and where they belong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
        if self.forced is not None:
            return torch.zeros_like(output) + self._along_units(self.forced, output)
        if self.embedding is None:
            return None
        return output * self._along_units(self.attention(self.embedding), output)

    def attention(self, embedding: Tensor) -> Tensor:
        """How far each unit is open, from 0 to 1."""
        if embedding.device != self.layer.parameter.device:  # the model has been moved
            embedding.data = embedding.data.to(self.layer.parameter.device)
        trains = self.annealed is not None and self.layer.modules[0].training
        return torch.sigmoid(embedding * (self.annealed if trains else self.sharpness))

    def _along_units(self, values: Tensor, output: Tensor) -> Tensor:
        after = self.layer.rule.dimensions_after_units(self.layer.modules[0])
        return values.to(output).reshape(-1, *[1] * after)

    def sit_on(self, modules: Iterable[nn.Module]) -> None:
        """Act on what these modules put out."""
        for module in modules:
            module.register_forward_hook(self)


def strip_gates(model: nn.Module) -> None:
    """Remove all gates from a model, also those that a copy of it has brought along."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, Gate):
                hook.embedding = None  # for compiled code, which does not notice that a hook has gone
                del module._forward_hooks[key]


def find_places(model: nn.Module, layers: Iterable[ProtectedLayer], run: Run) -> dict[str, list[nn.Module]]:
    """The layers that ``run`` passes, the last one last, and the modules on whose outputs their gates belong.

    That is the layer's own output, but for a normalization of each unit for itself that takes it up and would undo the
    gate: there it is the output of the normalization. (One that mixes units would let closed ones have a say.)
    """
    layers = {layer.name: layer for layer in layers}
    outputs: dict[int, tuple[str, Tensor]] = {}
    passed: dict[str, int] = {}
    readers: dict[nn.Module, list[str | None]] = {}

    def after_layer(layer: ProtectedLayer, output: Tensor) -> None:
        passed[layer.name] = passed.pop(layer.name, 0) + 1
        outputs[id(output)] = layer.name, output  # held on to, so that no other tensor gets its number

    def before_norm(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        name, _ = outputs.get(id(arguments[0]) if arguments else 0, (None, None))
        readers.setdefault(module, []).append(name)

    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.enter_context(_after(layer.modules, lambda output, layer=layer: after_layer(layer, output)))
        for module in model.modules():
            if isinstance(module, _NormBase):
                hooks.enter_context(module.register_forward_pre_hook(before_norm))
        run()
    places: dict[str, list[nn.Module]] = {}
    for name, times in passed.items():
        norms = [module for module, read in readers.items() if set(read) == {name}]
        followed = norms and sum(len(readers[module]) for module in norms) == times
        places[name] = norms if followed and not _leaks(layers[name], norms, run) else layers[name].modules
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
