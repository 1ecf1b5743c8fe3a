"""Joint training, one sample at a time: each one's loss with its own task's head, the mean over the batch, a step.

Networks are functions of named weights and of a single sample, written out.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Answer = Callable[[Weights, Tensor, int], Tensor]


def affine(weights: Weights, name: str, x: Tensor) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def perceptron_with_heads(weights: Weights, x: Tensor, task: int) -> Tensor:
    for layer in range(2):
        x = affine(weights, f"backbone.layers.{layer}", x).clamp(min=0)
    return affine(weights, f"heads.{task}", x)


def perceptron(weights: Weights, x: Tensor, task: int) -> Tensor:
    """One head for all: the task makes no difference."""
    for layer in range(2):
        x = affine(weights, f"layers.{layer}", x).clamp(min=0)
    return affine(weights, "layers.2", x)


def convolution_with_heads(weights: Weights, x: Tensor, task: int) -> Tensor:
    """3x3 kernels at every place inside an image, the mean over the places, a head."""
    kernels, bias = weights["backbone.0.weight"], weights["backbone.0.bias"]
    places = [
        (kernels * x[:, row : row + 3, column : column + 3]).sum((1, 2, 3)) + bias
        for row in range(x.shape[1] - 2)
        for column in range(x.shape[2] - 2)
    ]
    return affine(weights, f"heads.{task}", torch.stack([place.clamp(min=0) for place in places]).mean(0))


class SlowMultitask:
    def __init__(self, weights: Weights, answer: Answer, lr: float) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
        self.answer = answer
        self.lr = lr

    def loss(self, x: Tensor, y: int, task: int) -> Tensor:
        answer = self.answer(self.weights, x, task)
        return -torch.log(answer[y].exp() / answer.exp().sum())

    def step(self, x: Tensor, y: Tensor, tasks: Tensor) -> tuple[float, Weights]:
        """The mean loss of a batch and its gradient, before the step that follows it."""
        mean_loss, mean_gradient = 0.0, {name: torch.zeros_like(tensor) for name, tensor in self.weights.items()}
        for n in range(len(x)):
            self.weights = {name: tensor.detach().requires_grad_() for name, tensor in self.weights.items()}
            loss = self.loss(x[n], int(y[n]), int(tasks[n]))
            gradients = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
            mean_loss += float(loss.detach()) / len(x)
            for name, gradient in zip(self.weights, gradients, strict=True):
                if gradient is not None:
                    mean_gradient[name] += gradient / len(x)
        self.weights = {name: tensor.detach() - self.lr * mean_gradient[name] for name, tensor in self.weights.items()}
        return mean_loss, mean_gradient
