"""Orthogonal weights modification as its paper prints it: dense projectors, one rank-one update after the other.

The network is plain torch, what its layers see is asked for one sample at a time, nothing is remembered but P.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.oracles.patches import patches


class SlowOWM:
    """For the Linear and convolutional layers of ``model`` outside its heads; a setting for each of them."""

    def __init__(
        self, model: nn.Module, lr: float, alpha: Sequence[float], alpha_decay: Sequence[float], averaged: int
    ) -> None:
        self.model: Any = model
        self.lr, self.alpha, self.alpha_decay, self.averaged = lr, alpha, alpha_decay, averaged
        self.layers: list[list[Any]] = []
        """The modules of each layer: more than one where they share their weight."""
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and "heads." not in name:
                for modules in self.layers:
                    if modules[0].weight is module.weight:
                        modules.append(module)
                        break
                else:
                    self.layers.append([module])
        self.P = [torch.eye(self.matrix(m[0]).shape[1], dtype=torch.float64) for m in self.layers]

    @staticmethod
    def matrix(module: Any) -> Tensor:
        """``[W | b]``."""
        weight = module.weight.detach().flatten(1)
        return weight.clone() if module.bias is None else torch.cat([weight, module.bias.detach()[:, None]], dim=1)

    def step(self, x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
        """One step of gradient descent: the loss, and the gradient of each layer as it was let through."""
        self.model.train()
        loss = functional.cross_entropy(self.model(x), y)
        self.model.zero_grad()
        loss.backward()
        projected = []
        for (module, *_), P in zip(self.layers, self.P, strict=True):
            gradient = module.weight.grad.flatten(1)
            if module.bias is not None:
                gradient = torch.cat([gradient, module.bias.grad[:, None]], dim=1)
            gradient = gradient @ P
            projected.append(gradient)
            columns = module.weight[0].numel()
            module.weight.grad = gradient[:, :columns].reshape(module.weight.shape)
            if module.bias is not None:
                module.bias.grad = gradient[:, columns]
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= self.lr * parameter.grad
        return float(loss.detach()), projected

    def end_task(self, samples: Tensor) -> None:
        """Take the mean inputs of the task's batches into P, in their order."""
        self.model.eval()
        seen = [self.look(samples[k : k + 1]) for k in range(len(samples))]
        starts = range(0, len(samples), self.averaged)
        for number, start in enumerate(starts, start=1):
            batch = seen[start : start + self.averaged]
            for layer, P in enumerate(self.P):
                alpha = self.alpha[layer] * self.alpha_decay[layer] ** (number / len(starts))
                for position in range(len(batch[0][layer])):
                    x = sum(sample[layer][position] for sample in batch) / len(batch)
                    k = P @ x / (alpha + x @ P @ x)
                    P = P - torch.outer(k, x) @ P
                self.P[layer] = P

    def look(self, x: Tensor) -> list[list[Tensor]]:
        """The input vectors of each layer for one sample, position after position, use after use."""
        seen: list[list[Tensor]] = [[] for _ in self.layers]
        hooks = []
        for vectors, modules in zip(seen, self.layers, strict=True):

            def record(module: Any, inputs: Any, output: Tensor, vectors: list[Tensor] = vectors) -> None:
                vectors += self.vectors(module, inputs[0], output)

            hooks += [module.register_forward_hook(record) for module in modules]
        with torch.no_grad():
            self.model(x)
        for hook in hooks:
            hook.remove()
        return seen

    @staticmethod
    def vectors(module: Any, x: Tensor, output: Tensor) -> list[Tensor]:
        rows = x if isinstance(module, nn.Linear) else patches(module, x, output.shape[2:])
        rows = rows.reshape(-1, module.weight[0].numel())
        one = torch.ones(1, dtype=torch.float64)
        return [row if module.bias is None else torch.cat([row, one]) for row in rows]
