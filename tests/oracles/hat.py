"""Hard attention to the task, from the formulas of Serra et al. (2018), section 2, in float64 and with plain loops.

``h_l = a_l * relu(z_l)`` with ``a_l = sigmoid(s e_l)`` (gates behind the activation); the loss is the task's plus
``c * sum(a (1 - A)) / sum(1 - A)`` where A is the largest attention of old tasks; gradients of weights are multiplied
by ``1 - min(A_l,i, A_l-1,j)``, those of embeddings by ``smax (cosh(s e) + 1) / (s (cosh(e) + 1))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass
class SlowHAT:
    """A perceptron: every layer reads the one before, the last is the output layer (no gate) unless there are heads."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    heads: list[tuple[Tensor, Tensor]]
    smax: float
    c: float
    lr: float
    steps_per_epoch: int
    embeddings: list[list[Tensor]] = field(default_factory=list)
    """Task -> gated layer -> e."""
    step_of_epoch: int = 0
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Of the last step, as the optimizer gets them."""

    @property
    def task(self) -> int:
        return len(self.embeddings) - 1

    def begin_task(self, embeddings: list[Tensor]) -> None:
        self.embeddings.append([e.detach().clone() for e in embeddings])
        self.step_of_epoch = 0

    # The network

    def forward(self, x: Tensor, gates: list[Tensor]) -> Tensor:
        for layer in range(len(self.weights)):
            x = self.preactivation(layer, x)
            if layer < len(gates):
                x = x.relu() * gates[layer]
        return x

    def preactivation(self, layer: int, x: Tensor) -> Tensor:
        bias = self.biases[layer]
        z = x @ self.weights[layer].T
        return z if bias is None else z + bias

    def behind(self, layer: int, column: int, attention: list[Tensor]) -> float:
        """Attention to what a column of a layer's weight, flattened, is multiplied with."""
        return 1.0 if layer == 0 else float(attention[layer - 1][column])

    def logits(self, x: Tensor, task: int, s: float) -> Tensor:
        features = self.forward(x, [torch.sigmoid(s * e) for e in self.embeddings[task]])
        if not self.heads:
            return features
        weight, bias = self.heads[task]
        return features @ weight.T + bias

    # The algorithm

    def sharpness(self) -> float:
        b, steps = self.step_of_epoch + 1, self.steps_per_epoch
        return 1 / self.smax + (self.smax - 1 / self.smax) * (b - 1) / (steps - 1)

    def cumulative(self) -> list[Tensor]:
        """The largest attention of old tasks, gated layer by gated layer."""
        largest = [torch.zeros_like(e) for e in self.embeddings[-1]]
        for task in range(self.task):
            for layer, e in enumerate(self.embeddings[task]):
                for unit in range(len(e)):
                    attention = 1 / (1 + math.exp(-self.smax * float(e[unit])))
                    largest[layer][unit] = max(float(largest[layer][unit]), attention)
        return largest

    def step(self, batch: Batch) -> float:
        """One step of plain SGD; the loss of the task alone."""
        x, y = batch
        s, old = self.sharpness(), self.cumulative()
        trained = self.trained()
        for tensor in trained.values():
            tensor.requires_grad_().grad = None
        loss = functional.cross_entropy(self.logits(x, self.task, s), y)
        (loss + self.c * self.regularizer(s, old)).backward()
        for name, tensor in trained.items():
            tensor.requires_grad_(False)
            assert tensor.grad is not None
            self.gradients[name] = tensor.grad.clone()
        self.compensate(s)
        if self.task > 0:
            self.mask(old)
        for name, tensor in trained.items():
            tensor -= self.lr * self.gradients[name]
        for e in self.embeddings[-1]:
            for unit in range(len(e)):
                e[unit] = min(max(float(e[unit]), -6.0), 6.0)
        self.step_of_epoch += 1
        return loss.item()

    def end_epoch(self) -> None:
        self.step_of_epoch = 0

    def trained(self) -> dict[str, Tensor]:
        tensors = {f"weight {layer}": weight for layer, weight in enumerate(self.weights)}
        tensors |= {f"bias {layer}": bias for layer, bias in enumerate(self.biases) if bias is not None}
        tensors |= {f"embedding {layer}": e for layer, e in enumerate(self.embeddings[-1])}
        if self.heads:
            tensors |= {"head": self.heads[self.task][0], "head bias": self.heads[self.task][1]}
        return tensors

    def regularizer(self, s: float, old: list[Tensor]) -> Tensor:
        total, count = torch.zeros((), dtype=torch.float64), 0.0
        for e, taken in zip(self.embeddings[-1], old, strict=True):
            for unit in range(len(e)):
                total = total + torch.sigmoid(s * e[unit]) * (1 - taken[unit])
                count += 1 - float(taken[unit])
        return total / count

    def compensate(self, s: float) -> None:
        for layer, embedding in enumerate(self.embeddings[-1]):
            for unit in range(len(embedding)):
                e = float(embedding[unit])
                exponent = min(max(s * e, -50.0), 50.0)
                factor = self.smax * (math.cosh(exponent) + 1) / (s * (math.cosh(e) + 1))
                self.gradients[f"embedding {layer}"][unit] *= factor

    def mask(self, old: list[Tensor]) -> None:
        for layer in range(len(self.weights)):
            gradient = self.gradients[f"weight {layer}"].flatten(1)
            for unit in range(gradient.shape[0]):
                taken = float(old[layer][unit]) if layer < len(old) else 1.0
                for column in range(gradient.shape[1]):
                    gradient[unit, column] *= 1 - min(taken, self.behind(layer, column, old))
                if self.biases[layer] is not None:
                    self.gradients[f"bias {layer}"][unit] *= 1 - taken


@dataclass
class SlowConvolutional(SlowHAT):
    """A convolution, a ReLU, all positions of all channels in a row, and linear layers."""

    def preactivation(self, layer: int, x: Tensor) -> Tensor:
        if layer > 0:
            return super().preactivation(layer, x.flatten(1))
        return functional.conv2d(x, self.weights[0], self.biases[0])

    def forward(self, x: Tensor, gates: list[Tensor]) -> Tensor:
        return super().forward(x, [gates[0][:, None, None], *gates[1:]])

    def behind(self, layer: int, column: int, attention: list[Tensor]) -> float:
        if layer != 1:
            return super().behind(layer, column, attention)
        positions = self.weights[1].shape[1] // len(attention[0])
        return float(attention[0][column // positions])


@dataclass
class SlowResidual(SlowHAT):
    """``h_0 + h_1`` with ``h_1`` computed from ``h_0``, into the output layer: a unit of it is there if either is."""

    def forward(self, x: Tensor, gates: list[Tensor]) -> Tensor:
        first = self.preactivation(0, x).relu() * gates[0]
        second = self.preactivation(1, first).relu() * gates[1]
        return self.preactivation(2, first + second)

    def behind(self, layer: int, column: int, attention: list[Tensor]) -> float:
        if layer < 2:
            return super().behind(layer, column, attention)
        return max(float(attention[0][column]), float(attention[1][column]))
