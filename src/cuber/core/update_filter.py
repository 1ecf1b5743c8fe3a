"""What methods share that let a step through only in part."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.layerwise import LayerwiseMethod
from cuber.layers import ProtectedLayer


@dataclass(eq=False, repr=False)
class ModulatedSteps(LayerwiseMethod):
    """A method that says what becomes of a change to a layer's weights: ``modulate``, a linear function of it.

    Plain SGD's change is its gradient times a number, so the gradient is what is modulated. Whatever else an optimizer
    does (decay, preconditioning) would let more through than that: there it is the change that it has made.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before: dict[str, Tensor] = {}
        """Layer -> its weights before the step, while an optimizer makes one that is not straight."""

    @abstractmethod
    def modulate(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """What old tasks let through of a change, out x d, that the present task would make."""

    def _on_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._before = {}  # of a step that somebody broke off
        return super()._on_step(optimizer, args, kwargs)

    def before_step(self, optimizer: Optimizer) -> None:
        if self.tasks == 0:
            return
        straight = self._steps_straight(optimizer)
        for layer in self.layers_of(optimizer):
            if straight:
                layer.set_gradient(self.modulate(layer, layer.gradient()))
            elif layer.name not in self._before:  # LBFGS asks for gradients many times in a step
                self._before[layer.name] = layer.matrix().detach().clone()

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        for name, before in self._before.items():
            layer = self.layers[name]
            layer.set_matrix(before + self.modulate(layer, layer.matrix() - before))
        self._before = {}
