"""Accuracy and loss on a split, and the mean training loss of an epoch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cuber.core.batches import device_of
from cuber.core.learner import LossFunction
from cuber.layers import evaluation_mode
from cuber.streams import FixedLoader, Split


class Score(NamedTuple):
    """Correct answers and loss, summed over samples."""

    samples: int
    correct: int
    total_loss: float
    """NaN if no loss was computed."""

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.samples

    @property
    def loss(self) -> float:
        """Per sample."""
        return self.total_loss / self.samples


@torch.no_grad()
def evaluate(
    model: nn.Module, split: Split, batch_size: int, loss_fn: LossFunction | None = None, order: int | None = None
) -> Score:
    """Evaluate a model on a split, in evaluation mode.

    Args:
        loss_fn: Also compute this loss.
        order: Seed that shuffles the samples; it matters where batches are normalized by their own statistics.
    """
    device = device_of(model)
    correct = torch.zeros((), dtype=torch.long, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    with evaluation_mode(model):
        for x, y in FixedLoader(split, batch_size, order):
            x, y = x.to(device), y.to(device)
            output = model(x)
            correct += (output.argmax(1) == y).sum()
            if loss_fn is not None:
                loss += loss_fn(output, y) * len(y)
    return Score(len(split), int(correct), float(loss) if loss_fn is not None else math.nan)


class RunningLoss:
    """Mean loss of an epoch; losses are collected first, because reading one synchronizes the device."""

    def __init__(self) -> None:
        self.steps = 0
        """Number of losses read so far."""
        self.total = 0.0
        self.samples = 0
        self.not_finite: tuple[int, float] | None = None
        """The first step (from 1) whose loss was NaN or infinite, and that loss."""
        self._unread: list[tuple[Tensor, int]] = []

    def add(self, loss: Tensor, samples: int) -> None:
        """Add the mean loss of one batch."""
        self._unread.append((loss.detach(), samples))

    def mean(self) -> float:
        """Return the mean loss per sample so far."""
        values = torch.stack([loss for loss, _ in self._unread]).double().tolist() if self._unread else []
        # Summed one by one, so that the bits do not depend on how often the mean is read.
        for value, (_, samples) in zip(values, self._unread, strict=True):
            self.steps += 1
            self.total += value * samples
            self.samples += samples
            if self.not_finite is None and not math.isfinite(value):
                self.not_finite = self.steps, value
        self._unread = []
        return self.total / max(self.samples, 1)

    def state(self) -> dict[str, Any]:
        """Return what ``load`` needs."""
        self.mean()
        return {name: getattr(self, name) for name in ("steps", "total", "samples", "not_finite")}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        vars(self).update(state)
