"""How a protected layer computes: every formula as it is written in the method's description.

``W`` is the layer's weight as a matrix, ``[W | b]`` where there is a bias. The fast back end computes the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from cuber.layers.protected import ProtectedLayer


class PlainBackend:
    """The formulas of one layer, without shortcuts."""

    cached_displacement: Tensor | None = None
    """What a back end has to save with the state of a task."""

    def __init__(self, layer: ProtectedLayer) -> None:
        self.layer = layer

    def on_constraint_changed(self) -> None:
        """The layer has another constraint."""

    def on_scaling_changed(self) -> None:
        """The layer has another scaling."""

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """Apply the layer with its effective weight ``W~ = W + (W U) S U'``."""
        layer = self.layer
        if layer.scaling is None:
            return type(module).forward(module, x)
        weight, *bias = layer.split(self.effective_weight(module))
        return layer.rule.apply(module, x, weight, bias[0] if bias else layer.bias)

    def effective_weight(self, module: nn.Module) -> Tensor:
        """Return ``W~``. While the task trains, its scalings read ``W U`` as a constant along protected columns."""
        layer, weight = self.layer, self.layer.matrix()
        assert layer.scaling is not None
        if self.reads_anchor(module):
            return layer.scaling.weight(weight, layer.require_constraint().along(weight).to(weight))
        return layer.scaling.weight(weight, weight @ layer.scaling.basis)

    def reads_anchor(self, module: nn.Module) -> bool:
        """Return whether the scaling is the one being trained, in a training step."""
        scaling, constraint = self.layer.scaling, self.layer.constraint
        if scaling is None or constraint is None or not constraint.anchored or not self.layer.is_constrained:
            return False
        return module.training and scaling.matrix.requires_grad

    def project_gradient(self) -> None:
        """Remove the protected directions from the gradient: ``G - (G U) U'``."""
        constraint, gradient = self.layer.require_constraint(), self.layer.gradient()
        protected = constraint.basis[:, constraint.protected_columns].to(gradient)
        self.layer.set_gradient(gradient - (gradient @ protected) @ protected.mT)

    def displacement(self) -> Tensor:
        """Return ``(W - w') F``: how far the weight has moved along the free columns since the task began."""
        return self.layer.require_constraint().displacement(self.layer.matrix().detach())

    def add_to_gradient(self, along: Tensor, scale: float) -> None:
        """Add ``scale * along F'`` to the gradient, for ``along`` (out x f) in coordinates of the free columns."""
        free = self.layer.require_constraint().free
        self.layer.set_gradient(self.layer.gradient() + scale * (along @ free.mT.to(along)).to(self.layer.parameter))

    def after_step(self, lr: float | None) -> None:
        """The weight has changed: by ``-lr`` times its gradient, or in another way (None)."""

    @torch.no_grad()
    def restore_protected(self) -> None:
        """Move the weight back to where it is held along the protected columns."""
        layer = self.layer
        layer.set_matrix(layer.require_constraint().restored(layer.matrix()))

    def has_drifted(self) -> bool:
        """Return whether a step may have moved the weight along a protected direction."""
        return True
