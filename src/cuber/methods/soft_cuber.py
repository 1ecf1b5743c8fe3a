"""SoftCUBER: a second-order memory of old losses instead of subspaces that nothing may enter.

Each layer remembers the sum of all old losses to second order, ``<g, D> + 1/2 tr(D H D')`` after a displacement D. A
new task reuses old ones by scalings, as in TRGP, and descends on its own loss and that model together:

    W <- W - lr * (grad L_t + old * (g + D H)) P,    P = (I + H / lam)^-1

- ``P`` is GPM's projector made gradual. Along an eigenvector of H, an update is divided by 1 + h / lam: what old inputs
  need much hardly moves, the rest is free.
- ``g + D H`` is what the gradient of old losses has become after D: following it improves old tasks, and ends where the
  model says that they have no more to gain.
- When the task ends, the model is expanded at the new weight, and the task's own gradient and inputs are added to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from cuber.core.averaging import AveragedWeights
from cuber.core.batches import Batch
from cuber.core.layerwise import LayerwiseMethod
from cuber.core.misuse import require_task
from cuber.core.settings import setting
from cuber.core.update_filter import FilteredUpdates
from cuber.layers import ProtectedLayer
from cuber.methods.cuber import SubspaceMethod
from cuber.subspace import Constraint, DampedGradient, QuadraticModel

DAMPING = 0.1  # share of lam below which the curvature of old losses is too small to follow their gradient
WITH_LAYER_NORM = 10.0  # factor of the curvature in models with layer norm, which react to changes more strongly


@dataclass(eq=False, repr=False)
class SoftCUBER(AveragedWeights, FilteredUpdates, SubspaceMethod):
    """Learn a new task on top of a second-order model of the old losses.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.
        mask: function of a batch that says which positions are real, or None; default: ``attention_mask``.

    >>> learner = SoftCUBER(nn.Linear(4, 2), lam=0.3)
    """

    remembered: ClassVar[dict[str, Any]] = {"models": dict[str, QuadraticModel], "predictions": list[float]}
    in_task: ClassVar[dict[str, Any]] = {"start": dict[str, Tensor], "pulls": dict[str, Tensor], "ages": dict[str, int]}
    kinds: ClassVar[dict[str, str]] = {"gradient": "gradients", "directions": "moments", "curvatures": "moments"}

    eps1: float = setting(0.5, "share of the gradient that must lie in an old task's subspace to reuse it", low=0)
    selected: int = setting(2, "how many old tasks a layer may reuse", low=0)
    lam: float = setting(1.0, "curvature of old losses at which updates are halved", low=1e-6)
    curvature: float = setting(20.0, "c, curvature of old losses by the relative change of outputs, per layer", low=0)
    old: float = setting(1.0, "weight of the old losses beside the new one", low=0)
    every: int = setting(10, "steps after which the gradient of old losses is computed anew", low=1)
    moment_samples: int = setting(2000, "training samples that second moments are computed from", low=1)

    def __post_init__(self) -> None:
        self.models: dict[str, QuadraticModel] = {}
        """Layer name -> the old losses as a function of its weight."""
        self.predictions: list[float] = []
        """Task -> by how much it has changed the sum of old losses, as the models have it."""
        self.start: dict[str, Tensor] = {}
        """Layer name -> its weight when the present task began."""
        self.old_gradients: dict[str, DampedGradient] = {}
        """Layer name -> the gradient of old losses in the present task, as a function of D."""
        self.pulls: dict[str, Tensor] = {}
        """Layer name -> the gradient of old losses times P, as it was a few steps ago."""
        self.ages: dict[str, int] = {}
        """Layer name -> steps since then."""
        super().__post_init__()

    def on_task_begin(self) -> None:
        """Choose the tasks to reuse, and filter every layer's updates."""
        self.start = {name: layer.matrix().detach().clone() for name, layer in self.layers.items()}
        SubspaceMethod.on_task_begin(self)

    def protected_columns(self, name: str, *, at_start: bool = False) -> Tensor:
        """Forbid no direction."""
        memory = self.memory[name]
        return torch.zeros(memory.size, dtype=torch.bool, device=memory.owners.device)

    def constrain(self, layer: ProtectedLayer) -> None:
        """Multiply gradients by P, and let the scalings read the weight where it is now."""
        name, none = layer.name, self.protected_columns(layer.name)
        if name in self.models:
            self.old_gradients[name] = DampedGradient(self.models[name], DAMPING * self.lam, self.lam)
        projector = self.old_gradients[name].projector if name in self.models else None
        basis, anchor = self.memory[name].basis, self.anchors[name]
        layer.constraint = Constraint(basis, none, none, anchor, projector=projector, anchored=False)

    def moved(self, layer: ProtectedLayer) -> Tensor:
        """Return D, how far a weight has moved in the present task."""
        require_task(self, "moved")
        return layer.matrix().detach() - self.start[layer.name]

    def before_step(self, optimizer: Optimizer) -> None:
        """Filter the gradient, and add that of old losses."""
        for layer, lr in self.optimizers.layers_to_change(optimizer, self.layers.values()):
            layer.require_whole()
            name = layer.name
            if name in self._before and name in self.models:  # the change that the optimizer makes is filtered instead
                layer.add_to_gradient(self.old * self.old_gradients[name].at(self.moved(layer)))
            elif name in self.models:
                layer.backend.project_gradient()
                if self.ages.get(name, self.every) >= self.interval(lr):
                    self.pulls[name] = self.old * self.old_gradients[name].filtered_at(self.moved(layer))
                    self.ages[name] = 0
                self.ages[name] += 1
                layer.add_to_gradient(self.pulls[name])

    def interval(self, lr: float) -> int:
        """Return ``every``, or less where the weight would otherwise swing around the minimum of the model."""
        rate = lr * self.old * self.lam  # at most, along the direction of the largest curvature: H P is below lam
        return max(1, min(self.every, int(1 / max(rate, 1e-12))))

    def filter_update(self, layer: ProtectedLayer, change: Tensor) -> Tensor:
        """Multiply by P."""
        return layer.require_constraint().projector.outside(change)

    def predicted_change(self, damping: float = 0.0) -> Tensor:
        """Return by how much the present task has changed the sum of old losses, as the models have it."""
        layers = {name: self.layers[name] for name in self.models if name in self.layers}  # a task may bypass some
        values = [self.models[name].value(self.moved(layer), damping) for name, layer in layers.items()]
        return torch.stack(values).sum() if values else torch.zeros(())

    def added_loss(self, optimizer: Optimizer) -> Tensor | None:
        """Return the function whose gradient was added, for optimizers that step with a closure."""
        return self.old * self.predicted_change(DAMPING * self.lam) if self.models else None

    def on_weights_restored(self) -> None:
        self.ages = {}
        super().on_weights_restored()

    def on_task_left(self) -> None:
        self.start, self.old_gradients, self.pulls, self.ages = {}, {}, {}, {}
        super().on_task_left()

    def on_task_end(self, loader: Iterable[Batch]) -> None:
        """Expand the models at the new weights, and add the task to them; remember its subspace and scalings."""
        self.require_trained("end_task")
        gradients = self.mean_gradients(loader, dropout=True)  # the loss that was trained, and has ended near a minimum
        moments = {name: gram.matrix for name, gram in self.input_grams(loader, self.moment_samples).items()}
        for name in self.scalings.keys() & moments.keys():
            moments[name] = self.scalings[name].read_moments(moments[name])
        SubspaceMethod.on_task_end(self, loader)
        self.predictions.append(float(self.predicted_change()))
        # Changes of several layers add up: (sum r)^2 <= n sum r^2.
        curvature = self.curvature * len(self.layers) * (WITH_LAYER_NORM if self.normalization.has_layer_norm else 1)
        for name, layer in self.layers.items():
            if name in self.models:
                self.models[name].move(self.moved(layer))
            if name in moments:  # also where the task has not trained the layer, and there is no gradient
                empty = QuadraticModel.empty(layer.outputs, layer.dimension, like=layer.parameter)
                model, weight = self.models.setdefault(name, empty), layer.matrix().detach()
                model.add(gradients.get(name, 0 * weight), moments[name], weight, curvature, self.lam)

    def describe(self) -> list[str]:
        held = {name: f"{len(model.curvatures)} of {model.gradient.shape[1]}" for name, model in self.models.items()}
        return [f"{name}: {of} directions held back" for name, of in held.items()] + LayerwiseMethod.describe(self)
