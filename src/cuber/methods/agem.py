"""Averaged Gradient Episodic Memory (Chaudhry et al., 2018): take no step that raises the loss of remembered samples.

Each step draws a batch from the memory of all old tasks. Where the gradient of its mean loss and that of the present
task have a negative inner product, the latter loses its part along the former: to first order, the loss of old tasks
does not rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cuber.core.batches import Batch
from cuber.core.replay_method import ReplayMethod
from cuber.replay import Reservoir


@dataclass(eq=False, repr=False)
class AGEM(ReplayMethod):
    """Take no step that would raise the mean loss of samples remembered from old tasks.

    Args:
        model: any ``nn.Module``, with a ``MultiHead`` where tasks have a head each.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> learner = AGEM(nn.Linear(4, 2), memory=500, replay=256)
    """

    def combine(self, gradients: list[Tensor], replayed: list[Tensor]) -> list[Tensor]:
        """Return g, or g - (g . r / r . r) r where g . r < 0; all gradients together are one vector."""
        if inner_product(gradients, replayed) >= 0:
            return gradients
        # Where the loss of samples is nearly 0, so is their gradient, and its square underflows: scale it.
        largest = torch.stack([r.abs().max() for r in replayed]).max()
        direction = [r / largest for r in replayed]
        along = inner_product(gradients, direction) / inner_product(direction, direction)
        return [g - along * r for g, r in zip(gradients, direction, strict=True)]

    def remember(self, loader: Iterable[Batch]) -> None:
        """Divide the memory equally among all tasks; old ones drop samples at random."""
        shares = [len(range(task, self.memory, self.tasks + 1)) for task in range(self.tasks + 1)]
        chosen = Reservoir(shares[-1], self.generator).read(loader).new()
        memory = self.episodic_memory
        for task in memory.sizes:
            memory = memory.limit(task, shares[task], self.generator)
        self.episodic_memory = memory.add(self.tasks, chosen)


def inner_product(one: list[Tensor], other: list[Tensor]) -> Tensor:
    """Return the inner product of two vectors in pieces."""
    return torch.stack([a.flatten().dot(b.flatten()) for a, b in zip(one, other, strict=True)]).sum()
