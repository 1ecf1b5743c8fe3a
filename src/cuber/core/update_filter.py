"""Methods that let only a part of each update pass."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.layerwise import LayerwiseMethod
from cuber.core.optimizer_hooks import is_plain_sgd, layers_with_rates, parameters_of
from cuber.layers import ProtectedLayer


@dataclass(eq=False, repr=False)
class FilteredUpdates(LayerwiseMethod):
    """A method that says which part of a weight update passes: a subclass overrides ``filter_update``.

    Plain SGD adds a multiple of the gradient, so the gradient is filtered. Momentum, decay and preconditioning add
    something else: with other optimizers the change that a step has made is filtered.

    Args:
        model: any ``nn.Module``; it stays the same object.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> class Slower(FilteredUpdates):
    ...     "Layers change half as fast after the first task."
    ...     def filter_update(self, layer, change):
    ...         return 0.5 * change
    >>> Slower(torch.nn.Linear(4, 2)).tasks
    0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before: dict[str, Tensor] = {}
        """Layer name -> its weight before the present step, where the change is filtered."""

    @abstractmethod
    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Return the part of an update that old tasks allow.

        Args:
            layer: whose weight is updated.
            change: a gradient or a change of ``layer.matrix()``, out x d; the result must be linear in it.
        """

    def on_step_begin(self, optimizer: Optimizer) -> None:
        self._before = {}
        if self.tasks and not is_plain_sgd(optimizer, self.layers.values()):
            held = set(parameters_of(optimizer))
            for name, layer in self.layers.items():
                if layer.may_change and not held.isdisjoint(layer.parameters):
                    self._before[name] = layer.matrix().detach().clone()

    def before_step(self, optimizer: Optimizer) -> None:
        """Filter the gradients of an optimizer that adds multiples of them; call ``super()`` first."""
        if self.tasks and not self._before:
            for layer, _ in layers_with_rates(optimizer, self.layers.values()):
                layer.set_gradient(self.filter_update(layer, layer.gradient()))

    @torch.no_grad()
    def after_step(self, optimizer: Optimizer) -> None:
        """Filter what the step of any other optimizer has changed; call ``super()`` first."""
        for name, before in self._before.items():
            layer = self.layers[name]
            layer.set_matrix(before + self.filter_update(layer, layer.matrix() - before))
        self._before = {}
