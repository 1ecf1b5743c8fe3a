"""Accuracy and loss on a part of a task: evaluation mode, fixed order, fixed batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from cuber.core.device import device_of
from cuber.core.learner import LossFunction
from cuber.layers import evaluation_mode
from cuber.streams import FixedLoader, Split


@dataclass(frozen=True)
class Score:
    """How well a model does; two of them make that of all samples together."""

    samples: int
    correct: int
    total_loss: float
    """NaN where it was not asked for."""

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.samples

    @property
    def loss(self) -> float:
        """Per sample."""
        return self.total_loss / self.samples

    def __add__(self, other: Score) -> Score:
        return Score(self.samples + other.samples, self.correct + other.correct, self.total_loss + other.total_loss)


@torch.no_grad()
def evaluate(
    model: nn.Module, part: Split, batch_size: int, loss_fn: LossFunction | None = None, order: int | None = None
) -> Score:
    """The score of the model as it now answers; the loss too where ``loss_fn`` is given.

    ``order`` is the seed of another order of the samples, which matters where batches are normalized by themselves.
    """
    device = device_of(model)
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    with evaluation_mode(model):
        for x, y in FixedLoader(part, batch_size, order):
            x, y = x.to(device), y.to(device)
            output = model(x)
            correct += (output.argmax(1) == y).sum()
            if loss_fn is not None:
                loss += loss_fn(output, y) * len(y)
    return Score(len(part), int(correct), float(loss) if loss_fn is not None else math.nan)
