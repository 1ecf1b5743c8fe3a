"""SoftCUBER for a multi-layer perceptron, dense, in float64: every old task keeps a quadratic model of its own.

The loss of task j is remembered around the weight w_j at which it was learned. Ours keeps one sum for all tasks, which
follows the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.oracles.trajectory import Batches, SlowLearner


@dataclass
class OldLoss:
    """``<g_j, W - w_j> + c / 2 tr((W - w_j) A_j (W - w_j)')``."""

    weight: Tensor
    gradient: Tensor
    moments: Tensor

    def value(self, weight: Tensor, curvature: float) -> Tensor:
        moved = weight - self.weight
        return (self.gradient * moved).sum() + curvature / 2 * torch.trace(moved @ self.moments @ moved.T)


@dataclass
class SlowSoftLearner(SlowLearner):
    soft: float = 1.0
    """lam of the method; that of SlowLearner is the weight of CUBER's penalty."""
    curvature: float = 1.0
    old: float = 1.0
    losses: list[list[OldLoss]] = field(default_factory=list)
    """Per task and layer."""

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        weights, scalings = self.gradients([batch])
        for position, (layer, gradient, of_scalings) in enumerate(zip(self.layers, weights, scalings, strict=True)):
            weight = layer.weight.clone().requires_grad_()
            total = weight.sum() * 0
            inverse = torch.eye(weight.shape[1], dtype=weight.dtype)
            for losses in self.losses:
                total = total + self.old * losses[position].value(weight, self.curvature)
                inverse = inverse + losses[position].moments / self.soft
            total.backward()
            layer.weight = layer.weight - self.lr * (gradient + weight.grad) @ torch.linalg.inv(inverse)
            layer.learning = {task: A - self.lr * of_scalings[task] for task, A in layer.learning.items()}

    def end_task(self, batches: Batches) -> None:
        gradients = self.gradients(batches)[0]
        _, seen = self.forward(torch.cat([x for x, _ in batches]), [la.effective(la.learning) for la in self.layers])
        losses = []
        for layer, gradient, vectors in zip(self.layers, gradients, seen, strict=True):
            scale = torch.eye(vectors.shape[1], dtype=vectors.dtype)
            for task, matrix in layer.learning.items():
                scale = scale + layer.dense(task) @ matrix @ layer.dense(task)
            read = vectors @ scale.T  # what W itself is multiplied with
            moments = read.T @ read
            losses.append(OldLoss(layer.weight.clone(), gradient, moments * len(moments) / moments.trace()))
        super().end_task(batches)
        self.losses.append(losses)
