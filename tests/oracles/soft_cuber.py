"""SoftCUBER for a multi-layer perceptron, dense, in float64: every old task keeps a quadratic model of its own.

The loss of task j is remembered around the weight w_j at which it was learned. Ours keeps one sum for all tasks, which
follows the weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cuber.methods.soft_cuber import DAMPING
from tests.oracles.trajectory import Batches, SlowLearner


@dataclass
class OldLoss:
    """``<g_j, W - w_j> + c / 2 tr((W - w_j) A_j (W - w_j)')``, with ``A_j = E[x x'] / E||w_j x||^2``."""

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
    every: int = 1
    losses: list[list[OldLoss]] = field(default_factory=list)
    """Per task and layer."""
    pulls: list[Tensor] = field(default_factory=list)
    """Per layer: the gradient of old losses, computed anew after ``every`` steps."""
    steps: int = 0
    starts: list[Tensor] = field(default_factory=list)
    """Per layer: its weight when the task began."""

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        if self.steps == 0:
            self.starts = [layer.weight.clone() for layer in self.layers]
        if self.steps % self.every == 0:
            self.pulls = [self.old_gradient(position, layer.weight) for position, layer in enumerate(self.layers)]
        self.steps += 1
        weights, scalings = self.gradients([batch])
        for position, (layer, gradient, of_scalings) in enumerate(zip(self.layers, weights, scalings, strict=True)):
            inverse = torch.eye(gradient.shape[1], dtype=gradient.dtype)
            for losses in self.losses:
                inverse = inverse + self.curvature * losses[position].moments / self.soft
            layer.weight = layer.weight - self.lr * (gradient + self.pulls[position]) @ torch.linalg.inv(inverse)
            layer.learning = {task: A - self.lr * of_scalings[task] for task, A in layer.learning.items()}

    def old_gradient(self, position: int, weight: Tensor) -> Tensor:
        weight = weight.clone().requires_grad_()
        total = weight.sum() * 0
        for losses in self.losses:
            total = total + self.old * losses[position].value(weight, self.curvature)
        gradient = torch.autograd.grad(total, weight)[0]
        # What the gradient was when the task began is damped where there is little curvature.
        H = sum((self.curvature * losses[position].moments for losses in self.losses), 0 * weight.T @ weight).detach()
        start = gradient - self.old * (weight - self.starts[position]).detach() @ H
        damped = torch.linalg.inv(H + DAMPING * self.soft * torch.eye(len(H), dtype=H.dtype)) @ H
        return gradient - start + start @ damped

    def end_task(self, batches: Batches) -> None:
        gradients = self.gradients(batches)[0]
        _, seen = self.forward(torch.cat([x for x, _ in batches]), [la.effective(la.learning) for la in self.layers])
        losses = []
        for layer, gradient, vectors in zip(self.layers, gradients, seen, strict=True):
            scale = torch.eye(vectors.shape[1], dtype=vectors.dtype)
            for task, matrix in layer.learning.items():
                scale = scale + layer.dense(task) @ matrix @ layer.dense(task)
            read = vectors @ scale.T  # what W itself is multiplied with
            moments = read.T @ read / (read @ layer.weight.T).square().sum()
            losses.append(OldLoss(layer.weight.clone(), gradient, moments))
        super().end_task(batches)
        self.losses.append(losses)
        self.steps = 0
