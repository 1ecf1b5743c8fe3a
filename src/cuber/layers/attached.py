"""The forward passes that a learner gives to modules: of a layer, and of a module with several weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cuber.errors import CuberError
from cuber.layers.composite import CompositeRule
from cuber.layers.rule import rule_for

if TYPE_CHECKING:
    from cuber.layers.protected import ProtectedLayer


class Replacement(ABC):
    """A forward pass in place of a module's own; copied and saved with the model."""

    @abstractmethod
    def protected(self) -> list[ProtectedLayer]:
        """Return the layers that compute in it."""

    def block_fused(self, module: nn.Module) -> None:
        """Keep torch from using its fused kernels: it does not where a module has a hook."""
        if not _hooks(module):
            module.register_forward_pre_hook(self._no_op)

    def _no_op(self, *_: Any) -> None:
        """A hook that does nothing."""
        return


class Attached(Replacement):
    """The ``forward`` of one module while its layer is protected."""

    def __init__(self, layer: ProtectedLayer, module: nn.Module) -> None:
        self.layer = layer
        self.module = module

    def protected(self) -> list[ProtectedLayer]:
        return [self.layer]

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        refuse_tracing(self.layer)
        module, x = self.layer.rule.bind(self.module, *arguments, **named)
        if self.layer.observer is not None:
            self.layer.observer(self.layer, module, x)
        return self.layer.forward(module, x)


class AttachedParts(Replacement):
    """The ``forward`` of a module with several weights while any of them is protected."""

    def __init__(self, module: nn.Module, rule: type[CompositeRule]) -> None:
        self.module = module
        self.rule = rule
        self.layers: dict[str, tuple[ProtectedLayer, nn.Module]] = {}
        """Name of a part -> the layer that protects it, and the module that holds the weight."""

    def protected(self) -> list[ProtectedLayer]:
        return [layer for layer, _ in self.layers.values()]

    @classmethod
    def on(cls, module: nn.Module) -> AttachedParts:
        """Return the one that a module has, or give it one."""
        attached = module.__dict__.get("forward")
        if not isinstance(attached, cls):
            module.forward = attached = cls(module, rule_for(module))
        return attached

    def add(self, layer: ProtectedLayer, holder: nn.Module, weight: str) -> None:
        """Compute the part whose weight this is with a layer."""
        for name, part in self.rule.parts(self.module).items():
            if part.module is holder and part.weight == weight:
                self.layers[name] = layer, holder

    def remove(self, layer: ProtectedLayer) -> bool:
        """Compute the parts of a layer with their own weights; return whether no layer is left."""
        self.layers = {name: pair for name, pair in self.layers.items() if pair[0] is not layer}
        return not self.layers

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        refuse_tracing(*self.protected())
        if all(layer.observer is None and layer.scaling is None for layer, _ in self.layers.values()):
            return type(self.module).forward(self.module, *arguments, **named)
        return self.rule.forward(self.module, self, *arguments, **named)

    # For the rule

    def weight(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return the effective weight and bias of a part."""
        if name in self.layers:
            layer, holder = self.layers[name]
            return layer.effective(holder)
        part = self.rule.parts(self.module)[name]
        return getattr(part.module, part.weight), None if part.bias is None else getattr(part.module, part.bias)

    def is_observed(self, name: str) -> bool:
        """Return whether an observer sees the inputs of a part."""
        return name in self.layers and self.layers[name][0].observer is not None

    def observe(self, name: str, x: Tensor) -> None:
        """Show the inputs of a part, samples first."""
        if self.is_observed(name):
            layer, holder = self.layers[name]
            assert layer.observer is not None
            layer.observer(layer, holder, x)


def refuse_tracing(layer: ProtectedLayer, *_: ProtectedLayer) -> None:
    """Raise if a layer is called in order to trace the model."""
    # Not is_exporting(), which the compiler of torch 2.8 takes for True in torch.compile too.
    if torch.jit.is_tracing() or torch.compiler._is_exporting_flag:
        raise CuberError(
            f"layer '{layer.name}' has a learner, which decides for which task it computes: a trace would fix that; "
            "trace or export what learner.export(task) returns, a plain module"
        )


def attached_layers(model: nn.Module) -> list[ProtectedLayer]:
    """Return the layers whose forward pass a learner has replaced; those of a copied model are copies too."""
    found: list[ProtectedLayer] = []
    for module in model.modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, Replacement):
            found += forward.protected()
    return list(dict.fromkeys(found))


def has_fused_kernels(model: nn.Module) -> bool:
    """Return whether a model has modules whose fused kernels would skip the forward pass of their layers."""
    return any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules())


def strip(module: nn.Module) -> None:
    """Remove what a learner has left on a module, also on a copy of it."""
    if isinstance(module.__dict__.get("forward"), Replacement):
        del module.__dict__["forward"]
    for key in _hooks(module):
        del module._forward_pre_hooks[key]


def _hooks(module: nn.Module) -> list[int]:
    """Return the keys of a learner's hooks on a module."""
    hooks = module._forward_pre_hooks.items()
    return [key for key, hook in hooks if isinstance(getattr(hook, "__self__", None), Replacement)]
