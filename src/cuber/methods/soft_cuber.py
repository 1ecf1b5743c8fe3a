"""SoftCUBER: a second-order memory of old losses instead of subspaces that nothing may enter.

CUBER either forbids a direction or allows it. Here each layer remembers the sum of all old losses to second order,
``<g, D> + c / 2 tr(D A D')`` after a displacement D (subspace/quadratic.py), and a new task descends on its own loss
and that model together:

    W <- W - lr * (grad L_t + old * (g + c D A)) P,    P = (I + A / lam)^-1

- ``P`` is GPM's projector made gradual. Along an eigenvector of A, an update is divided by 1 + a / lam: what old inputs
  need much hardly moves, the rest is free.
- ``g + c D A`` is what the gradient of old losses has become after D: following it improves old tasks, and ends where
  the model says that they have no more to gain.
- When the task ends, the model is expanded at the new weight, and the task's own gradient and inputs are added to it.

The nearest old tasks are reused by scalings as in TRGP, which never needed a weight to stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.batches import Batch
from cuber.core.settings import setting
from cuber.core.update_filter import FilteredUpdates
from cuber.layers import ProtectedLayer
from cuber.methods.cuber import SubspaceMethod
from cuber.subspace import Constraint, QuadraticModel


@dataclass(eq=False, repr=False)
class SoftCUBER(FilteredUpdates, SubspaceMethod):
    """Learn a new task on top of a second-order model of the old losses."""

    remembered: ClassVar[dict[str, Any]] = {"models": dict[str, QuadraticModel]}
    in_task: ClassVar[dict[str, Any]] = {"start": dict[str, Tensor]}
    kinds: ClassVar[dict[str, str]] = {"gradient": "gradients", "moments": "moments"}

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace to reuse it", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)
    lam: float = setting(0.3, "input energy, relative to its mean, at which updates are halved", low=1e-6)
    curvature: float = setting(1.0, "c, the curvature of old losses relative to the energy of their inputs", low=0)
    old: float = setting(1.0, "weight of the old losses beside the new one", low=0)

    def __post_init__(self) -> None:
        self.models: dict[str, QuadraticModel] = {}
        """Layer name -> the old losses as a function of its weight."""
        self.start: dict[str, Tensor] = {}
        """Layer name -> its weight when the present task began."""
        self.filters: dict[str, Tensor] = {}
        """Layer name -> P, in the present task."""
        super().__post_init__()

    def on_task_begin(self) -> None:
        """Choose the tasks to reuse, and compute P."""
        SubspaceMethod.on_task_begin(self)
        self.start = {name: layer.matrix().detach().clone() for name, layer in self.layers.items()}
        self.filters = {name: self.models[name].filter(self.lam) for name in self.models.keys() & self.layers.keys()}

    def protected_columns(self, name: str, *, at_start: bool = False) -> Tensor:
        """Forbid no direction."""
        memory = self.memory[name]
        return torch.zeros(memory.size, dtype=torch.bool, device=memory.owners.device)

    def constrain(self, layer: ProtectedLayer) -> None:
        """Let the scalings read the weight where it is now."""
        memory, none = self.memory[layer.name], self.protected_columns(layer.name)
        layer.constraint = Constraint(memory.basis, none, none, self.anchors[layer.name], anchored=False)

    def moved(self, layer: ProtectedLayer) -> Tensor:
        """Return D, how far a weight has moved in the present task."""
        return layer.matrix().detach() - self.start[layer.name]

    def before_step(self, optimizer: Optimizer) -> None:
        """Add the gradient of old losses, as the model has it here, and filter the sum."""
        for layer, _ in self.optimizers.layers_to_change(optimizer, self.layers.values()):
            layer.require_whole()
            if layer.name not in self.models:
                continue
            gradient = layer.gradient()
            below = self.models[layer.name].gradient_at(self.moved(layer), self.curvature)
            gradient = gradient + self.old * below.to(gradient)
            filtered = layer.name not in self._before  # the change that other optimizers make is filtered instead
            layer.set_gradient(self.filter_update(layer, gradient) if filtered else gradient)

    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Multiply by P."""
        matrix = self.filters.get(layer.name)
        return change if matrix is None else (change.to(matrix) @ matrix).to(change)

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """Return what the model says about old losses, for optimizers that step with a closure."""
        layers = [layer for layer in self.layers.values() if layer.name in self.models]
        values = [self.models[layer.name].value(self.moved(layer), self.curvature) for layer in layers]
        return self.old * torch.stack(values).sum() if values else None

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Expand the models at the new weights, and add the task to them; remember its subspace and scalings."""
        self.require_trained("end_task")
        gradients = self.mean_gradients(loader)
        moments = {name: gram.matrix for name, gram in self.input_grams(loader).items()}
        for name, scaling in self.scalings.items():
            if name in moments:  # the weight itself is multiplied with (I + U S U') x
                basis = scaling.basis.to(moments[name])
                scale = torch.eye(len(basis)).to(basis) + basis @ scaling.dense().to(basis) @ basis.mT
                moments[name] = scale @ moments[name] @ scale.mT
        SubspaceMethod.on_task_end(self, loader)
        for name, layer in self.layers.items():
            if name in self.models:
                self.models[name].move(self.moved(layer), self.curvature)
            if name in gradients and name in moments:
                empty = QuadraticModel.empty(layer.outputs, layer.dimension, like=layer.parameter)
                self.models.setdefault(name, empty).add(gradients[name], moments[name])

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        self.filters = {name: self.models[name].filter(self.lam) for name in self.models.keys() & self.layers.keys()}
