"""What A-GEM and ER have in common, one sample at a time: plain SGD on flat vectors.

The oracle chooses neither the batches nor the samples that are replayed: it is told.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Statistics = dict[str, Tensor]
Remembered = tuple[int, Tensor, Tensor]
"""The task of a sample, its input and its label."""


class SlowReplay(ABC):
    """A network of its own; with several heads, it has a ``backbone`` and a list of ``heads``."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.model: Any = copy.deepcopy(model)
        self.lr = lr
        self.statistics: list[Statistics] = []
        """Task -> what its normalization layers answer with, if there are any; told at the end of each task."""

    @abstractmethod
    def combine(self, own: Tensor, replayed: Tensor) -> Tensor:
        """The step's gradient, from that of the new batch and that of the replayed samples."""

    def answer(self, task: int, x: Tensor) -> Tensor:
        if hasattr(self.model, "heads"):
            return self.model.heads[task](self.model.backbone(x))
        return self.model(x)

    def gradient(self, loss: Tensor) -> Tensor:
        """All derivatives as one vector, 0 for what the loss does not depend on."""
        parameters = list(self.model.parameters())
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        return torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])

    def loss_of(self, sample: Remembered) -> Tensor:
        task, x, y = sample
        return functional.cross_entropy(self.answer(task, x.unsqueeze(0)), y.unsqueeze(0))

    def replayed(self, samples: list[Remembered]) -> Tensor:
        """The mean of the samples' gradients, each as its task answers: with the statistics that it ended with."""
        present = copy.deepcopy(dict(self.model.named_buffers()))
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.eval()
        total = torch.zeros(1)
        for sample in samples:
            if norms:
                self.set_buffers(self.statistics[sample[0]])
            total = total + self.gradient(self.loss_of(sample))
        for norm in norms:
            norm.train()
        self.set_buffers(present)
        return total / len(samples)

    def set_buffers(self, values: Statistics) -> None:
        for name, buffer in self.model.named_buffers():
            buffer.copy_(values[name])

    def step(self, task: int, x: Tensor, y: Tensor, samples: list[Remembered]) -> tuple[float, Tensor]:
        """The loss of the batch, and the vector that is taken off the weights, times the learning rate."""
        loss = functional.cross_entropy(self.answer(task, x), y)
        vector = self.gradient(loss)
        if samples:
            vector = self.combine(vector, self.replayed(samples))
        position = 0
        with torch.no_grad():
            for parameter in self.model.parameters():
                part = vector[position : position + parameter.numel()]
                parameter -= self.lr * part.reshape(parameter.shape)
                position += parameter.numel()
        return loss.item(), vector
