"""A stream and a network so small that learning them takes a fraction of a second."""

from __future__ import annotations

import torch
from torch import nn

from cuber import MultiHead, Stream, Task
from cuber.networks import MLP

FAST = {"epochs": 6, "lr": 0.1, "batch_size": 4}


def blobs(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around three corners of an 8-dimensional cube."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randint(0, 2, (3, 8), generator=torch.Generator().manual_seed(seed // 10)).float()
    labels = torch.randint(0, 3, (count,), generator=generator)
    return centres[labels] + 0.3 * torch.randn(count, 8, generator=generator), labels


def task(number: int, *, validation: bool = True) -> Task:
    held_out = blobs(10 * number + 2, 20) if validation else None
    return Task(f"blobs {number}", blobs(10 * number, 40), blobs(10 * number + 1, 30), held_out, classes=3)


def stream(tasks: int = 3, *, shared_head: bool = False, validation: bool = True) -> Stream:
    return Stream("blobs", [task(n, validation=validation) for n in range(tasks)], shared_head=shared_head)


def model(tasks: int = 3, *, shared_head: bool = False, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    if shared_head:
        return MLP(8, 16, 3)
    return MultiHead(MLP(8, 16, 16, last_relu=True), 16, [3] * tasks)


class WithNorm(nn.Module):
    """Dropout and batch norm: everything that random numbers and buffers can spoil."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.3)
        self.second = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(self.first(x)).relu())).relu()


def model_with_norm(tasks: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return MultiHead(WithNorm(), 16, [3] * tasks)
