"""Equation 3 of Kirkpatrick et al. (2017) and the online form of Schwarz et al. (2018), sample by sample.

Every anchor and every Fisher is kept, the penalty is written out and left to autograd; nothing clever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

Batches = list[tuple[Tensor, Tensor]]
Weights = dict[str, Tensor]


def fisher(model: nn.Module, names: list[str], batches: Batches) -> Weights:
    """The mean over all samples of the squared gradient of log p(y | x), one sample at a time."""
    model.eval()
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(parameters[name]) for name in names}
    count = 0
    for x, y in batches:
        for sample in range(len(y)):
            model.zero_grad()
            functional.cross_entropy(model(x[sample : sample + 1]), y[sample : sample + 1]).backward()
            for name in names:
                if parameters[name].grad is not None:
                    total[name] += parameters[name].grad ** 2
            count += 1
    model.train()
    return {name: values / count for name, values in total.items()}


def draw(model: nn.Module, batches: Batches, seed: int) -> Batches:
    """Labels from p(y | x): the first class at which the sum of the probabilities reaches a random number."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for x, y in batches:
        labels = []
        for sample in range(len(y)):
            probabilities = functional.softmax(model(x[sample : sample + 1]).detach()[0], dim=0).tolist()
            wanted, label = float(torch.rand(1, generator=generator, dtype=torch.float64)), 0
            while label < len(probabilities) - 1 and sum(probabilities[: label + 1]) < wanted:
                label += 1
            labels.append(label)
        drawn.append((x, torch.tensor(labels)))
    model.train()
    return drawn


@dataclass
class SlowEWC:
    model: nn.Module
    names: list[str]
    """The parameters that are held."""
    lam: float
    lr: float
    online: bool = False
    gamma: float = 1.0
    labels: Callable[[nn.Module, Batches, int], Batches] = lambda model, batches, task: batches
    memory: list[tuple[Weights, Weights]] = field(default_factory=list)
    """Per old task, or only for the last in the online form: F and theta*."""
    tasks: int = 0

    def penalty(self) -> Tensor:
        """lam/2 sum_j sum_i F_j,i (theta_i - theta*_j,i)^2."""
        parameters = dict(self.model.named_parameters())
        total = torch.zeros((), dtype=torch.float64)
        for importance, anchor in self.memory:
            for name in self.names:
                total = total + self.lam / 2 * (importance[name] * (parameters[name] - anchor[name]) ** 2).sum()
        return total

    def step(self, batch: tuple[Tensor, Tensor]) -> tuple[float, Weights]:
        """A step of plain SGD on the whole loss; that loss, and its gradients."""
        x, y = batch
        self.model.zero_grad()
        loss = functional.cross_entropy(self.model(x), y) + self.penalty()
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter -= self.lr * parameter.grad
        return float(loss.detach()), gradients

    def end_task(self, batches: Batches) -> None:
        new = fisher(self.model, self.names, self.labels(self.model, batches, self.tasks))
        parameters = dict(self.model.named_parameters())
        anchor = {name: parameters[name].detach().clone() for name in self.names}
        if self.online and self.memory:
            old = self.memory.pop()[0]
            new = {name: self.gamma * old[name] + new[name] for name in self.names}
        self.memory.append((new, anchor))
        self.tasks += 1
